//! Who reads how many tokens in the next step: a pure function of what each row has waiting.
//!
//! Rows that decode come first, a token each with its drafts. A chunk of what is left of the step's budget is shared
//! among prompts by weight: none waits for another to be through, and what a short one does not need goes to the others.

/// What a row has waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Tokens it can read now. One is decoding; more is a prompt.
    pub tokens: usize,
    /// Behind a token that decodes: drafts, which it reads only if there is room for all.
    pub drafts: usize,
    /// Its share beside other prompts; at least 1.
    pub weight: usize,
}

/// Shares `budget` tokens among rows, in the order of `wants` (oldest first), into `shares`.
///
/// No row gets more than it wants; rows that decode are served first; prompts get no more than `chunk` together, and no
/// less while there is budget; and the first prompt gets at least one token if any is left for prompts.
pub fn share(wants: &[Want], budget: usize, chunk: usize, shares: &mut Vec<usize>) {
    shares.clear();
    let mut left = budget;
    // Nobody's drafts take another one's token.
    let mut decoding = wants.iter().filter(|want| want.tokens == 1).count();
    for want in wants {
        let mut take = 0;
        if want.tokens == 1 && left > 0 {
            decoding -= 1;
            take = if left >= 1 + want.drafts + decoding { 1 + want.drafts } else { 1 };
        }
        left -= take;
        shares.push(take);
    }
    left = left.min(chunk);
    // Prompts that need less than their part go first; then each gets its part of what is left.
    let mut open: Vec<usize> = (0..wants.len()).filter(|&i| wants[i].tokens > 1).collect();
    let most = |i: usize| wants[i].tokens;
    open.sort_by_key(|&i| (most(i).div_ceil(wants[i].weight.max(1)), i));
    let mut weights: usize = open.iter().map(|&i| wants[i].weight.max(1)).sum();
    for i in open {
        let weight = wants[i].weight.max(1);
        let part = (left * weight).div_ceil(weights);
        shares[i] = most(i).min(part).min(left);
        left -= shares[i];
        weights -= weight;
    }
}

#[cfg(test)]
mod tests {
    use super::{Want, share};
    use proptest::prelude::*;

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let tokens = prop_oneof![Just(1usize), 0usize..900];
        let want = (tokens, 0usize..9, 1usize..9);
        let want = want.prop_map(|(tokens, drafts, weight)| Want { tokens, drafts, weight });
        proptest::collection::vec(want, 1..64)
    }

    proptest! {
        #[test]
        fn shares_fit_and_decoding_comes_first(
            wants in wants(), budget in 1usize..600, chunk in 1usize..600
        ) {
            let mut shares = Vec::new();
            share(&wants, budget, chunk, &mut shares);
            let all = shares.iter().zip(&wants);
            prop_assert!(shares.iter().sum::<usize>() <= budget);
            let decodes = |w: &Want| w.tokens == 1;
            let decoding = wants.iter().filter(|w| decodes(w)).count();
            let served = all.clone().filter(|(s, w)| decodes(w) && **s > 0).count();
            prop_assert_eq!(served, decoding.min(budget));
            for (share, want) in all.clone().filter(|(_, w)| decodes(w)) {
                prop_assert!([0, 1, 1 + want.drafts].contains(share));
            }
            // Prompts have a chunk together while there is budget, and want.
            let prompts = || all.clone().filter(|(_, w)| !decodes(w));
            prop_assert!(prompts().all(|(s, w)| *s <= w.tokens));
            let read: usize = prompts().map(|(s, _)| s).sum();
            let left = budget - (shares.iter().sum::<usize>() - read);
            let wanted: usize = prompts().map(|(_, w)| w.tokens).sum();
            prop_assert_eq!(read, wanted.min(chunk).min(left));
        }

        #[test]
        fn prompts_get_their_parts(wants in wants(), chunk in 64usize..600) {
            let mut shares = Vec::new();
            share(&wants, 1 << 20, chunk, &mut shares);
            let all: usize = wants.iter().filter(|w| w.tokens > 1).map(|w| w.weight).sum();
            for (share, want) in shares.iter().zip(&wants).filter(|(_, w)| w.tokens > 1) {
                // What it wants, or at least its part less what rounding gave to those before it.
                let part = chunk * want.weight / all;
                let fair = *share == want.tokens || *share + wants.len() >= part;
                prop_assert!(fair, "{share} of {want:?}");
            }
        }
    }

    #[test]
    fn a_short_prompt_does_not_wait_for_a_long_one() {
        let want = |tokens| Want { tokens, drafts: 0, weight: 1 };
        let mut shares = Vec::new();
        share(&[want(30_000), want(40), want(1), want(900)], 600, 512, &mut shares);
        assert_eq!(shares, [236, 40, 1, 236]);
    }
}
