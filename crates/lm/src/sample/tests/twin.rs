//! The naive twin: every filter written with sorts and the platform's `exp`, as its definition.

use super::super::rng::{Stream, uniform};
use super::super::{Sampler, SamplingParams};

/// The ids that the filters keep, ascending.
fn kept(logits: &[f32], params: &SamplingParams, xtc: bool) -> Vec<usize> {
    let prob = |x: f32| f64::from(x).exp();
    let total: f64 = logits.iter().map(|&x| prob(x)).sum();
    let mut ranked: Vec<usize> = (0..logits.len()).filter(|&i| logits[i].is_finite()).collect();
    ranked.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    let max = logits[ranked[0]];
    if 0.0 < params.top_p && params.top_p < 1.0 {
        let target = f64::from(params.top_p) * total;
        let mut above = 0.0;
        let mut least = max;
        for &i in &ranked {
            if above >= target {
                break;
            }
            least = logits[i];
            above += prob(logits[i]);
        }
        ranked.retain(|&i| logits[i] >= least);
    }
    if params.min_p > 0.0 {
        let least = max + f64::from(params.min_p).ln() as f32;
        let passing = ranked.iter().filter(|&&i| logits[i] >= least).count();
        ranked.truncate(passing.max(params.min_tokens_to_keep));
    }
    if xtc {
        let total: f64 = ranked.iter().map(|&i| prob(logits[i])).sum();
        let threshold = f64::from(params.xtc_threshold);
        let above = ranked.iter().filter(|&&i| prob(logits[i]) / total > threshold);
        let least = above.map(|&i| logits[i]).fold(f32::INFINITY, f32::min);
        ranked.retain(|&i| logits[i] <= least || params.xtc_special_tokens.contains(&(i as u32)));
    }
    if params.top_k > 0 {
        ranked.truncate(params.top_k);
    }
    ranked.sort_unstable();
    ranked
}

/// The token that the whole chain draws.
fn drawn(logits: &[f32], params: &SamplingParams, seed: u64, position: u64) -> usize {
    let coin = uniform(seed, position, Stream::Xtc);
    let xtc = params.xtc_probability > 0.0 && coin <= f64::from(params.xtc_probability);
    let kept = kept(logits, params, xtc);
    let max = kept.iter().map(|&i| logits[i]).fold(f32::NEG_INFINITY, f32::max);
    let temperature = f64::from(params.temperature);
    let mass = |i: usize| (f64::from(logits[i] - max) / temperature).exp();
    let total: f64 = kept.iter().map(|&i| mass(i)).sum();
    let target = uniform(seed, position, Stream::Token) * total;
    let mut sum = 0.0;
    for &i in &kept {
        sum += mass(i);
        if target < sum {
            return i;
        }
    }
    *kept.last().unwrap()
}

/// Uniform numbers, one after another.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 += 1;
        uniform(99, self.0, Stream::Token)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() * n as f64) as usize
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Logits of one of several shapes: smooth, peaked, full of ties, with holes.
    fn logits(&mut self, vocab: usize) -> Vec<f32> {
        let spread = self.one_of(&[0.5, 4.0, 12.0]);
        let tied = self.below(2) == 0;
        let holes = self.below(3) == 0;
        let mut logits: Vec<f32> = (0..vocab)
            .map(|_| {
                let x = (self.next() + self.next() + self.next() - 1.5) * spread;
                if tied { (x * 2.0).round() as f32 / 2.0 } else { x as f32 }
            })
            .collect();
        if holes {
            (0..vocab / 2).for_each(|_| logits[self.below(vocab)] = f32::NEG_INFINITY);
            let some = self.below(vocab);
            logits[some] = 0.5;
        }
        logits
    }

    fn params(&mut self, vocab: usize) -> SamplingParams {
        SamplingParams {
            temperature: self.one_of(&[0.3, 0.7, 1.0, 2.0]),
            top_p: self.one_of(&[0.0, 0.05, 0.5, 0.9, 0.999, 1.0]),
            top_k: self.one_of(&[0, 0, 1, 2, 7, 64, vocab - 1, vocab]),
            min_p: self.one_of(&[0.0, 0.0, 0.01, 0.2, 1.0]),
            min_tokens_to_keep: self.one_of(&[1, 1, 3, 40]),
            xtc_probability: self.one_of(&[0.0, 0.0, 0.5, 1.0]),
            xtc_threshold: self.one_of(&[0.0, 0.001, 0.1, 0.5]),
            xtc_special_tokens: self.one_of(&[vec![], vec![1, 0]]),
            seed: Some(self.below(1_000) as u64),
            ..SamplingParams::default()
        }
    }
}

fn check(cases: u64, vocabs: &[usize], first: u64) {
    let mut numbers = Numbers(first);
    for case in 0..cases {
        let vocab = numbers.one_of(vocabs);
        let (logits, params) = (numbers.logits(vocab), numbers.params(vocab));
        let mut sampler = Sampler::new(params.clone(), vocab).unwrap();
        let history = sampler.history();
        let choice = sampler.sample(&mut logits.clone(), &history, case).unwrap();
        let want = drawn(&logits, &params, sampler.seed(), case);
        assert_eq!(choice.id as usize, want, "case {case}: {params:?}");
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = sampler.mass.sum(&logits, max, 1.0);
        for xtc in [false, true] {
            sampler.narrow(&logits, max, Some(total), xtc);
            let got: Vec<usize> = sampler.candidates.iter().map(|c| c.id as usize).collect();
            assert_eq!(got, kept(&logits, &params, xtc), "case {case}, xtc {xtc}: {params:?}");
        }
    }
}

#[test]
fn filters_and_draws_equal_the_twin() {
    check(2_000, &[2, 5, 63, 64, 65, 300], 0);
}

#[test]
fn filters_and_draws_equal_the_twin_on_a_real_vocabulary() {
    check(4, &[151_936], 1 << 40);
}
