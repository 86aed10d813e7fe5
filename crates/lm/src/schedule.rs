//! Who reads how many tokens in the next step: a pure function of what each row has waiting.
//!
//! Rows that decode come first, a token each; what is left of the step's budget goes to prompts, the oldest first.

/// Shares `budget` tokens among rows, in the order of `waiting` (oldest first), into `shares`. A row with one token
/// waiting decodes; more is a prompt, which reads at most `chunk`.
pub fn share(
    waiting: impl Iterator<Item = usize> + Clone,
    budget: usize,
    chunk: usize,
    shares: &mut Vec<usize>,
) {
    shares.clear();
    let mut left = budget;
    for tokens in waiting.clone() {
        let take = usize::from(tokens == 1 && left > 0);
        left -= take;
        shares.push(take);
    }
    for (share, tokens) in shares.iter_mut().zip(waiting) {
        if tokens > 1 {
            *share = tokens.min(chunk).min(left);
            left -= *share;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_fit_and_decoding_comes_first(
            waiting in proptest::collection::vec(0usize..900, 1..64), budget in 1usize..600, chunk in 1usize..600
        ) {
            let mut shares = Vec::new();
            share(waiting.iter().copied(), budget, chunk, &mut shares);
            prop_assert!(shares.iter().sum::<usize>() <= budget);
            prop_assert!(shares.iter().zip(&waiting).all(|(s, w)| s <= w && *s <= chunk));
            let decoding = waiting.iter().filter(|w| **w == 1).count();
            let served = shares.iter().zip(&waiting).filter(|(s, w)| **w == 1 && **s == 1).count();
            prop_assert_eq!(served, decoding.min(budget));
            // Nobody is left out while there is room.
            let all = waiting.iter().map(|w| (*w).min(chunk)).sum::<usize>();
            prop_assert_eq!(shares.iter().sum::<usize>(), all.min(budget));
        }
    }
}
