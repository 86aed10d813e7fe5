//! What the sampler promises: exact vectors, ties, determinism, bounds, refusals.

mod requests;
mod twin;

use proptest::prelude::*;

use super::{History, Sampler, SamplingParams};
use crate::Kind;

/// Logits whose softmax is `probs`.
fn log(probs: &[f64]) -> Vec<f32> {
    probs.iter().map(|p| p.ln() as f32).collect()
}

/// The distribution that the filters leave at temperature 1.
fn filtered(probs: &[f64], params: SamplingParams, xtc: bool) -> Vec<f64> {
    let mut logits = log(probs);
    let mut sampler =
        Sampler::new(SamplingParams { temperature: 1.0, ..params }, logits.len()).unwrap();
    let history = sampler.history();
    sampler.sample(&mut logits, &history, 0).unwrap();
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = sampler.mass.sum(&logits, max, 1.0);
    sampler.narrow(&logits, max, Some(total), xtc);
    let mut kept = vec![0.0; probs.len()];
    let sum: f64 = sampler.candidates.iter().map(|c| f64::from(c.value).exp()).sum();
    for c in &sampler.candidates {
        kept[c.id as usize] = f64::from(c.value).exp() / sum;
    }
    kept
}

#[track_caller]
fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    let off = got.iter().zip(want).any(|(g, w)| (g - w).abs() > 1e-6 || (*w == 0.0) != (*g == 0.0));
    assert!(!off, "got {got:?}, want {want:?}");
}

#[test]
fn top_p_vectors() {
    let top_p = |probs: &[f64], top_p| {
        filtered(probs, SamplingParams { top_p, ..Default::default() }, false)
    };
    close(&top_p(&[0.9, 0.0, 0.0, 0.1], 0.3), &[1.0, 0.0, 0.0, 0.0]);
    close(&top_p(&[0.9, 0.0, 0.0, 0.1], 0.95), &[0.9, 0.0, 0.0, 0.1]);
    let probs = [0.0, 0.5, 0.4, 0.1];
    close(&top_p(&probs, 0.4), &[0.0, 1.0, 0.0, 0.0]);
    close(&top_p(&probs, 0.6), &[0.0, 5.0 / 9.0, 4.0 / 9.0, 0.0]);
    close(&top_p(&probs, 0.95), &probs);
    close(&top_p(&probs, 0.0), &probs);
    close(&top_p(&probs, 1.0), &probs);
    // Equals of the token that crosses stay.
    close(&top_p(&[0.2, 0.2, 0.4, 0.2], 0.5), &[0.2, 0.2, 0.4, 0.2]);
}

#[test]
fn min_p_vectors() {
    let min_p = |min_p, min_tokens_to_keep| {
        let params = SamplingParams { min_p, min_tokens_to_keep, ..Default::default() };
        filtered(&[0.9, 0.0, 0.0, 0.1], params, false)
    };
    close(&min_p(0.8, 1), &[1.0, 0.0, 0.0, 0.0]);
    close(&min_p(0.05, 1), &[0.9, 0.0, 0.0, 0.1]);
    close(&min_p(0.8, 2), &[0.9, 0.0, 0.0, 0.1]);
    close(&min_p(1.0, 1), &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn top_k_vectors() {
    let top_k = |probs: &[f64], top_k| {
        filtered(probs, SamplingParams { top_k, ..Default::default() }, false)
    };
    close(&top_k(&[0.9, 0.0, 0.0, 0.1], 1), &[1.0, 0.0, 0.0, 0.0]);
    close(&top_k(&[0.6, 0.0, 0.1, 0.3], 2), &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0]);
    // Exactly k, the lowest ids among equals.
    close(&top_k(&[0.2, 0.2, 0.4, 0.2], 2), &[1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
    close(&top_k(&[0.2, 0.2, 0.4, 0.2], 400), &[0.2, 0.2, 0.4, 0.2]);
}

#[test]
fn xtc_vectors() {
    let xtc = |xtc_threshold, xtc_special_tokens, acts| {
        let params = SamplingParams { xtc_threshold, xtc_special_tokens, ..Default::default() };
        filtered(&[0.4, 0.3, 0.15, 0.15], params, acts)
    };
    close(&xtc(0.2, vec![], true), &[0.0, 0.5, 0.25, 0.25]);
    close(&xtc(0.1, vec![], true), &[0.0, 0.0, 0.5, 0.5]);
    close(&xtc(0.1, vec![0], true), &[4.0 / 7.0, 0.0, 1.5 / 7.0, 1.5 / 7.0]);
    close(&xtc(0.1, vec![0], false), &[0.4, 0.3, 0.15, 0.15]);
    close(&xtc(0.5, vec![], true), &[0.4, 0.3, 0.15, 0.15]);
}

/// The logits after the processors of `params`, given the ids before.
fn processed(params: SamplingParams, ids: &[u32], mut logits: Vec<f32>) -> Vec<f32> {
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut history = sampler.history();
    history.extend(ids);
    sampler.sample(&mut logits, &history, 0).unwrap();
    logits
}

#[test]
fn penalty_vectors() {
    let ids = [0, 0, 0, 1, 1];
    let presence =
        SamplingParams { presence_penalty: 0.5, presence_context: 5, ..Default::default() };
    assert_eq!(processed(presence, &ids, vec![0.0; 4]), [-0.5, -0.5, 0.0, 0.0]);
    let frequency =
        SamplingParams { frequency_penalty: 0.5, frequency_context: 5, ..Default::default() };
    assert_eq!(processed(frequency, &ids, vec![0.0; 4]), [-1.5, -1.0, 0.0, 0.0]);
    let repetition = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    let logits = processed(repetition, &[0, 0, 1, 9], vec![1.0, -1.0, 1.0, -1.0]);
    assert_eq!(logits, [0.5, -2.0, 1.0, -1.0]);
    // In order: (1 + 1) / 2 - 0.25 - 2 * 0.5; any other order gives another number.
    let all = SamplingParams {
        logit_bias: vec![(0, 1.0)],
        repetition_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        ..Default::default()
    };
    assert_eq!(processed(all, &[0, 0], vec![1.0, 1.0]), [-0.25, 1.0]);
}

#[test]
fn each_window_has_its_own_length_and_zero_is_everything() {
    let params = |context| SamplingParams {
        presence_penalty: 1.0,
        presence_context: context,
        frequency_penalty: 10.0,
        frequency_context: 2,
        ..Default::default()
    };
    let ids = [0, 1, 2, 2, 3];
    let logits = |context| processed(params(context), &ids, vec![0.0; 5]);
    assert_eq!(logits(1), [0.0, 0.0, -10.0, -11.0, 0.0]);
    assert_eq!(logits(2), [0.0, 0.0, -11.0, -11.0, 0.0]);
    assert_eq!(logits(4), [0.0, -1.0, -11.0, -11.0, 0.0]);
    assert_eq!(logits(0), [-1.0, -1.0, -11.0, -11.0, 0.0]);
    assert_eq!(logits(usize::MAX), [-1.0, -1.0, -11.0, -11.0, 0.0]);
}

/// A cheap deterministic stream of ids below `vocab`.
fn ids(vocab: u32) -> impl Iterator<Item = u32> {
    (0u32..).map(move |i| i.wrapping_mul(2_654_435_761).rotate_left(13) % vocab)
}

#[test]
fn a_million_tokens_leave_a_history_no_larger() {
    let finite = SamplingParams {
        repetition_penalty: 1.1,
        presence_penalty: 0.1,
        presence_context: 64,
        ..Default::default()
    };
    let endless = SamplingParams { frequency_context: 0, frequency_penalty: 0.1, ..finite.clone() };
    let cases = [(SamplingParams::default(), 1_000_000, 0), (finite, 1_000_000, 148)];
    for (params, tokens, most) in cases.into_iter().chain([(endless, 100_000, 648)]) {
        let mut history = History::new(&params);
        let mut ids = ids(500);
        ids.by_ref().take(10_000).for_each(|id| history.push(id));
        let early = history.capacity();
        ids.take(tokens - 10_000).for_each(|id| history.push(id));
        assert_eq!(history.len(), tokens as u64);
        assert!(history.held() <= most, "{} held", history.held());
        // A hash map may double once to clear the graves of old ids, and never again.
        assert!(history.capacity() <= 2 * early.max(1), "{} after {early}", history.capacity());
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    for (at, len) in [(0, 1), (3, 9), (70, 1_000), (999, 1_000)] {
        let mut logits = vec![-1.0f32; len];
        for x in &mut logits[at..] {
            *x = 2.5;
        }
        let mut sampler = Sampler::new(SamplingParams::default(), len).unwrap();
        let history = sampler.history();
        let choice = sampler.sample(&mut logits, &history, 7).unwrap();
        assert_eq!((choice.id as usize, choice.logprob, choice.top), (at, None, vec![]));
    }
}

#[test]
fn logprobs_are_of_the_processed_logits_and_sorted() {
    let params = SamplingParams {
        temperature: 3.0,
        top_k: 1,
        logit_bias: vec![(2, 1.0)],
        logprobs: Some(3),
        ..Default::default()
    };
    let mut sampler = Sampler::new(params, 5).unwrap();
    let history = sampler.history();
    let mut logits = [0.5, f32::NEG_INFINITY, 1.0, 0.5, -3.0];
    let choice = sampler.sample(&mut logits, &history, 0).unwrap();
    let total = 2.0 * 0.5f64.exp() + 2.0f64.exp() + (-3.0f64).exp();
    let want = |x: f64| (x - total.ln()) as f32;
    assert_eq!(choice.id, 2);
    assert!((choice.logprob.unwrap() - want(2.0)).abs() < 1e-6);
    let ids: Vec<u32> = choice.top.iter().map(|t| t.0).collect();
    assert_eq!(ids, [2, 0, 3]);
    assert!(choice.top.iter().zip([2.0, 0.5, 0.5]).all(|(t, x)| (t.1 - want(x)).abs() < 1e-6));
    assert_eq!(choice.top[0].1, choice.logprob.unwrap());

    let all = SamplingParams { logprobs: Some(usize::MAX), ..Default::default() };
    let mut sampler = Sampler::new(all, 5).unwrap();
    let choice = sampler.sample(&mut logits, &history, 0).unwrap();
    assert_eq!(choice.top.len(), 4, "what cannot occur is no alternative");
    let none = SamplingParams { logprobs: Some(0), ..Default::default() };
    let choice = Sampler::new(none, 5).unwrap().sample(&mut logits, &history, 0).unwrap();
    assert!(choice.top.is_empty() && choice.logprob.is_some());
}

#[test]
fn broken_logits_are_refused_with_their_position() {
    let inf = f32::INFINITY;
    for temperature in [0.0, 1.0] {
        for logits in
            [vec![f32::NAN; 3], vec![0.0, f32::NAN, 1.0], vec![0.0, inf, 1.0], vec![-inf; 3]]
        {
            let params = SamplingParams { temperature, top_p: 0.5, ..Default::default() };
            let mut sampler = Sampler::new(params, 3).unwrap();
            let history = sampler.history();
            let error = sampler.sample(&mut logits.clone(), &history, 41).unwrap_err();
            assert_eq!(error.kind(), Kind::Device);
            assert!(error.to_string().contains("position 41"), "{error}");
            // The row can be used again.
            assert!(sampler.sample(&mut [-inf, 0.0, -inf], &history, 42).unwrap().id == 1);
        }
    }
    let mut sampler = Sampler::new(SamplingParams::default(), 3).unwrap();
    let history = sampler.history();
    assert_eq!(sampler.sample(&mut [0.0; 2], &history, 0).unwrap_err().kind(), Kind::Bug);
    let params = SamplingParams { presence_penalty: 1.0, ..Default::default() };
    let mut sampler = Sampler::new(params, 3).unwrap();
    assert_eq!(sampler.sample(&mut [0.0; 3], &history, 0).unwrap_err().kind(), Kind::Bug);
}

/// The 99.9 % quantile of chi-square with 7 degrees of freedom.
const CHI_SQUARE_7: f64 = 24.32;

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0f32, -0.5, 1.0, 0.25, -1.0, 0.8, f32::NEG_INFINITY, -2.0, 0.1];
    for top_p in [0.0, 0.999_9] {
        let params =
            SamplingParams { temperature: 0.7, top_p, seed: Some(5), ..Default::default() };
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let history = sampler.history();
        let mut seen = [0u32; 9];
        let draws = 40_000;
        for position in 0..draws {
            let choice = sampler.sample(&mut logits.clone(), &history, position).unwrap();
            seen[choice.id as usize] += 1;
        }
        let mass = |x: f32| (f64::from(x) / 0.7).exp();
        let total: f64 = logits.iter().map(|&x| mass(x)).sum();
        let mut chi_square = 0.0;
        for (&x, &count) in logits.iter().zip(&seen).filter(|(x, _)| x.is_finite()) {
            let expected = draws as f64 * mass(x) / total;
            chi_square += (f64::from(count) - expected).powi(2) / expected;
        }
        assert_eq!(seen[6], 0);
        assert!(chi_square < CHI_SQUARE_7, "top_p {top_p}: {chi_square}");
    }
}

#[test]
fn extreme_temperatures_stay_sane() {
    for temperature in [f32::MIN_POSITIVE, 1e-45, f32::MAX] {
        for top_k in [0, 2] {
            let params = SamplingParams { temperature, top_k, seed: Some(1), ..Default::default() };
            let mut sampler = Sampler::new(params, 4).unwrap();
            let history = sampler.history();
            let mut logits = [-3.0e38, 0.0, 1.0, f32::NEG_INFINITY];
            let choice = sampler.sample(&mut logits, &history, 0).unwrap();
            assert!(choice.id < 3 && (temperature > 1.0 || choice.id == 2));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..ProptestConfig::with_cases(32)
    })]

    /// Rows drawn in any order, alone or between others, say the same.
    #[test]
    fn neighbours_do_not_matter(order in Just((0..24usize).collect::<Vec<_>>()).prop_shuffle()) {
        let logits: Vec<f32> = ids(1_000).take(90).map(|i| i as f32 / 250.0).collect();
        let row = |seed: usize| {
            let params = SamplingParams {
                temperature: 1.0,
                top_p: if seed.is_multiple_of(2) { 0.9 } else { 0.0 },
                xtc_probability: 0.5,
                xtc_threshold: 0.01,
                seed: Some(seed as u64),
                ..Default::default()
            };
            Sampler::new(params, logits.len()).unwrap()
        };
        let mut rows: Vec<Sampler> = (0..4).map(row).collect();
        let mut texts = [[0; 6]; 4];
        for step in order {
            let (seed, position) = (step % 4, step / 4);
            let history = rows[seed].history();
            let choice = rows[seed].sample(&mut logits.clone(), &history, position as u64).unwrap();
            texts[seed][position] = choice.id;
        }
        for (seed, text) in texts.iter().enumerate() {
            let mut alone = row(seed);
            let history = alone.history();
            for (position, &id) in text.iter().enumerate() {
                let choice = alone.sample(&mut logits.clone(), &history, position as u64).unwrap();
                prop_assert_eq!(choice.id, id);
            }
        }
    }
}

/// Another machine, build or version must say this too.
#[test]
fn a_seed_means_these_ids() {
    let logits: Vec<f32> = ids(5_000).take(1_000).map(|i| i as f32 / 900.0).collect();
    for (top_p, want) in [(0.0, GOLDEN), (0.8, GOLDEN_NUCLEUS)] {
        let params =
            SamplingParams { temperature: 0.9, top_p, seed: Some(42), ..Default::default() };
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let history = sampler.history();
        let draw = |position| sampler.sample(&mut logits.clone(), &history, position).unwrap().id;
        assert_eq!((0..8).map(draw).collect::<Vec<_>>(), want, "top_p {top_p}");
    }
}

const GOLDEN: [u32; 8] = [601, 986, 835, 733, 325, 313, 230, 351];
const GOLDEN_NUCLEUS: [u32; 8] = [597, 986, 835, 733, 324, 307, 230, 351];

#[test]
fn seeds_are_honoured_and_fresh_when_absent() {
    let text = |seed| {
        let params = SamplingParams { temperature: 1.0, seed, ..Default::default() };
        let mut sampler = Sampler::new(params, 1_000).unwrap();
        let history = sampler.history();
        let draw = |position| sampler.sample(&mut [0.0; 1_000], &history, position).unwrap().id;
        (0..8).map(draw).collect::<Vec<_>>()
    };
    assert_eq!(text(Some(0)), text(Some(0)));
    assert_ne!(text(Some(0)), text(Some(1)));
    assert_ne!(text(None), text(None));
    let sampler = Sampler::new(SamplingParams::default(), 10).unwrap();
    let params = SamplingParams { seed: Some(sampler.seed()), ..Default::default() };
    assert_eq!(Sampler::new(params, 10).unwrap().seed(), sampler.seed());
}
