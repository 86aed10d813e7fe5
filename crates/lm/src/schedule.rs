//! Who reads how many tokens in the next step: a pure function of what each row has waiting.
//!
//! Rows that decode come first, a token each. What is left of the step's budget is shared among prompts by weight: none
//! waits for another to be through, and what a short one does not need goes to the others.

/// What a row has waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Tokens it can read now. One is decoding; more is a prompt.
    pub tokens: usize,
    /// Its share beside other prompts; at least 1.
    pub weight: usize,
}

/// Shares `budget` tokens among rows, in the order of `wants` (oldest first), into `shares`.
///
/// No row gets more than it wants or more than `chunk`; rows that decode are served first; no budget is left while
/// somebody could read more; and the first prompt gets at least one token if any is left for prompts.
pub fn share(wants: &[Want], budget: usize, chunk: usize, shares: &mut Vec<usize>) {
    shares.clear();
    let mut left = budget;
    for want in wants {
        let take = usize::from(want.tokens == 1 && left > 0);
        left -= take;
        shares.push(take);
    }
    // Prompts that need less than their part go first; then each gets its part of what is left.
    let mut open: Vec<usize> = (0..wants.len()).filter(|&i| wants[i].tokens > 1).collect();
    let most = |i: usize| wants[i].tokens.min(chunk);
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
        let want = (0usize..900, 1usize..9).prop_map(|(tokens, weight)| Want { tokens, weight });
        proptest::collection::vec(want, 1..64)
    }

    proptest! {
        #[test]
        fn shares_fit_and_decoding_comes_first(
            wants in wants(), budget in 1usize..600, chunk in 1usize..600
        ) {
            let mut shares = Vec::new();
            share(&wants, budget, chunk, &mut shares);
            prop_assert!(shares.iter().sum::<usize>() <= budget);
            prop_assert!(shares.iter().zip(&wants).all(|(s, w)| *s <= w.tokens.min(chunk)));
            let decoding = wants.iter().filter(|w| w.tokens == 1).count();
            let served = shares.iter().zip(&wants).filter(|(s, w)| w.tokens == 1 && **s == 1).count();
            prop_assert_eq!(served, decoding.min(budget));
            // Nobody is left out while there is room.
            let all = wants.iter().map(|w| w.tokens.min(chunk)).sum::<usize>();
            prop_assert_eq!(shares.iter().sum::<usize>(), all.min(budget));
        }

        #[test]
        fn prompts_get_their_parts(wants in wants(), budget in 64usize..600) {
            let mut shares = Vec::new();
            share(&wants, budget, budget, &mut shares);
            let left = budget - wants.iter().filter(|w| w.tokens == 1).count().min(budget);
            let all: usize = wants.iter().filter(|w| w.tokens > 1).map(|w| w.weight).sum();
            for (share, want) in shares.iter().zip(&wants).filter(|(_, w)| w.tokens > 1) {
                // What it wants, or at least its part less what rounding gave to those before it.
                let part = left * want.weight / all;
                prop_assert!(*share == want.tokens || *share + wants.len() >= part, "{share} of {want:?}");
            }
        }
    }

    #[test]
    fn a_short_prompt_does_not_wait_for_a_long_one() {
        let want = |tokens| Want { tokens, weight: 1 };
        let mut shares = Vec::new();
        share(&[want(30_000), want(40), want(1), want(900)], 513, 512, &mut shares);
        assert_eq!(shares, [236, 40, 1, 236]);
    }
}
