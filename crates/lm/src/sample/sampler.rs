//! The sampler of one row: logits in, one token out.
//!
//! Owns its scratch, so that tokens after the first cost no allocation, beyond what scratch grows
//! when more candidates survive than ever before (room for more than 32,768 goes back at once).
//! Refuses logits that are broken rather than choosing among them.

use super::mass::{self, Mass};
use super::processors::process;
use super::rng::{self, Stream};
use super::select::{self, Candidate};
use super::{History, SamplingParams};
use crate::{Error, Kind, Result};

/// Candidates that the scratch of an idle row may keep room for.
const IDLE_CANDIDATES: usize = 1 << 15;

/// A chosen token and what was asked about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub id: u32,
    /// Its natural log-probability under the processed logits, before temperature and filters;
    /// present exactly when `logprobs` was asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens and their log-probabilities, best first, the lowest id among equals: as
    /// many as asked for, less those that cannot occur. The chosen token need not be among them.
    pub top: Vec<(u32, f32)>,
}

/// Chooses the tokens of one row.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    seed: u64,
    pub(super) mass: Mass,
    /// The maximum of each block of the logits.
    blocks: Vec<f32>,
    nth: Vec<f32>,
    sums: Vec<f64>,
    pub(super) candidates: Vec<Candidate>,
    order: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for logits of `vocab` entries.
    ///
    /// # Errors
    /// [`Kind::Usage`] as [`SamplingParams::validate`], or if `vocab` is 0 or beyond 32 bits.
    pub fn new(mut params: SamplingParams, vocab: usize) -> Result<Self> {
        if vocab == 0 || u32::try_from(vocab).is_err() {
            return Err(Error::usage(format!("a vocabulary cannot have {vocab} ids")));
        }
        params.validate(vocab)?;
        params.top_k = params.top_k.min(vocab);
        params.min_tokens_to_keep = params.min_tokens_to_keep.min(vocab);
        params.logprobs = params.logprobs.map(|n| n.min(vocab));
        params.xtc_special_tokens.sort_unstable();
        let seed = params.seed.unwrap_or_else(rng::fresh_seed);
        Ok(Self {
            params,
            vocab,
            seed,
            mass: Mass::new(vocab),
            blocks: Vec::new(),
            nth: Vec::new(),
            sums: Vec::new(),
            candidates: Vec::new(),
            order: Vec::new(),
        })
    }

    /// The seed in use: the one asked for, or the one taken in its place.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The parameters in use, counts clamped to the vocabulary.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// An empty history that remembers what this sampler's penalties need.
    pub fn history(&self) -> History {
        History::new(&self.params)
    }

    /// Chooses the token at `position` (its index in the text, prompt included) from `logits`, one
    /// per id, given the ids before it. The logits are left as the processors made them. Negative
    /// infinity excludes a token.
    ///
    /// # Errors
    /// [`Kind::Device`] if a logit is NaN or positive infinity, or if every token is excluded;
    /// [`Kind::Bug`] if `logits` or `history` belong to another model or request.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        history: &History,
        position: u64,
    ) -> Result<Choice> {
        if logits.len() != self.vocab {
            let (got, want) = (logits.len(), self.vocab);
            return Err(Error::new(Kind::Bug, format!("{got} logits for {want} ids")));
        }
        process(&self.params, history, logits)?;
        let best = select::scan(logits, &mut self.blocks)
            .ok_or_else(|| broken(logits).at(format!("position {position}")))?;
        let total = self.needs_total().then(|| self.mass.sum(logits, best.value, 1.0));
        let id = match self.params.temperature {
            0.0 => best.id,
            _ => self.draw(logits, best.value, total, position),
        };
        let mut choice = Choice { id, logprob: None, top: Vec::new() };
        if let (Some(count), Some(total)) = (self.params.logprobs, total) {
            self.report(logits, best.value, total, count, &mut choice);
        }
        Ok(choice)
    }

    /// What is said of the token `id` that stands where `logits` belong: its log-probability, and the `count`
    /// likeliest. The logits are taken as they are.
    ///
    /// # Errors
    /// As [`sample`](Self::sample); [`Kind::Bug`] if `id` is outside of the vocabulary.
    pub fn score(&mut self, logits: &[f32], id: u32, count: usize) -> Result<Choice> {
        let known = usize::try_from(id).is_ok_and(|id| id < logits.len());
        if logits.len() != self.vocab || !known {
            let (got, want) = (logits.len(), self.vocab);
            let what = format!("{got} logits for token {id} of {want} ids");
            return Err(Error::new(Kind::Bug, what));
        }
        let best = select::scan(logits, &mut self.blocks).ok_or_else(|| broken(logits))?;
        let total = self.mass.sum(logits, best.value, 1.0);
        let mut choice = Choice { id, logprob: None, top: Vec::new() };
        self.report(logits, best.value, total, count, &mut choice);
        Ok(choice)
    }

    /// Whether the mass of the whole vocabulary matters.
    fn needs_total(&self) -> bool {
        self.params.logprobs.is_some() || (self.params.temperature > 0.0 && self.cuts_mass())
    }

    fn cuts_mass(&self) -> bool {
        0.0 < self.params.top_p && self.params.top_p < 1.0
    }

    fn cuts_count(&self) -> bool {
        0 < self.params.top_k && self.params.top_k < self.vocab
    }

    fn draw(&mut self, logits: &[f32], max: f32, total: Option<f64>, position: u64) -> u32 {
        let uniform = rng::uniform(self.seed, position, Stream::Token);
        let xtc = self.params.xtc_probability > 0.0
            && rng::uniform(self.seed, position, Stream::Xtc)
                <= f64::from(self.params.xtc_probability);
        if !(xtc || self.cuts_mass() || self.cuts_count() || self.params.min_p > 0.0) {
            return self.pick_any(logits, max, uniform);
        }
        self.narrow(logits, max, total, xtc);
        let id = self.pick_candidate(uniform);
        self.candidates.shrink_to(IDLE_CANDIDATES);
        self.order.shrink_to(IDLE_CANDIDATES);
        id
    }

    /// Leaves in `candidates`, in id order, the tokens that pass every filter.
    pub(super) fn narrow(&mut self, logits: &[f32], max: f32, total: Option<f64>, xtc: bool) {
        let mut floor = f32::MIN;
        if self.cuts_count() && !xtc {
            floor = select::floor_of_best(&self.blocks, self.params.top_k, &mut self.nth);
        }
        if self.params.min_p > 0.0 {
            floor = floor.max(self.floor_of_min_p(max));
        }
        match total.filter(|_| self.cuts_mass()) {
            Some(total) => self.narrow_by_mass(logits, max, total, floor),
            None => select::gather(logits, &self.blocks, floor, &mut self.candidates),
        }
        if self.params.min_p > 0.0 {
            let least = self.least_of_min_p(max);
            let passing = self.candidates.iter().filter(|c| c.value >= least).count();
            let count = passing.max(self.params.min_tokens_to_keep);
            select::keep_best(&mut self.candidates, count, &mut self.order);
        }
        if xtc {
            self.exclude_top_choices(max);
        }
        if self.cuts_count() {
            select::keep_best(&mut self.candidates, self.params.top_k, &mut self.order);
        }
    }

    /// Gathers what top-p keeps of the entries of at least `floor`; no other filter goes below it.
    fn narrow_by_mass(&mut self, logits: &[f32], max: f32, total: f64, floor: f32) {
        let top_p = f64::from(self.params.top_p);
        let target = top_p * total;
        // Entries further down than this hold, all together, less than the mass that may be lost.
        let reach = mass::ln(self.vocab as f64 / ((1.0 - top_p) * total)).max(0.0) + 0.01;
        let enough = max - reach as f32;
        select::gather(logits, &self.blocks, floor.max(enough), &mut self.candidates);
        let mut held = select::mass_of(&self.candidates, max, self.mass);
        if held < target && enough > floor {
            // Rounding: the share that may be lost is itself below the quantum of mass.
            select::gather(logits, &self.blocks, floor, &mut self.candidates);
            held = select::mass_of(&self.candidates, max, self.mass);
        }
        if held >= target {
            let least =
                select::value_at_mass(&self.candidates, max, target, self.mass, &mut self.order);
            self.candidates.retain(|c| c.value >= least);
        }
    }

    /// The smallest logit that min-p lets pass.
    fn least_of_min_p(&self, max: f32) -> f32 {
        max + mass::ln(f64::from(self.params.min_p)) as f32
    }

    /// A value that everything min-p keeps reaches.
    fn floor_of_min_p(&mut self, max: f32) -> f32 {
        let least = self.least_of_min_p(max);
        match self.params.min_tokens_to_keep {
            1 => least,
            keep => least.min(select::floor_of_best(&self.blocks, keep, &mut self.nth)),
        }
    }

    /// XTC: of the candidates above the threshold, only the least likely and its equals stay.
    fn exclude_top_choices(&mut self, max: f32) {
        let total = select::mass_of(&self.candidates, max, self.mass);
        let threshold = f64::from(self.params.xtc_threshold) * total;
        let above = self.candidates.iter().filter(|c| self.mass.of(c.value - max) > threshold);
        let least = above.map(|c| c.value).fold(f32::INFINITY, f32::min);
        let special = &self.params.xtc_special_tokens;
        self.candidates.retain(|c| c.value <= least || special.binary_search(&c.id).is_ok());
    }

    /// Draws from `candidates` by inverse distribution function, in id order.
    fn pick_candidate(&self, uniform: f64) -> u32 {
        let max = self.candidates.iter().map(|c| c.value).fold(f32::NEG_INFINITY, f32::max);
        let scale = self.scale();
        let mass = |c: &Candidate| self.mass.of((c.value - max) * scale);
        let mut left = uniform * self.candidates.iter().map(mass).sum::<f64>();
        for candidate in &self.candidates {
            let here = mass(candidate);
            if left < here {
                return candidate.id;
            }
            left -= here;
        }
        // Not reached: `uniform` is below 1, and sums and differences of masses are exact.
        self.candidates.iter().find(|c| c.value == max).map_or(0, |c| c.id)
    }

    /// Draws from all of `logits`, as `pick_candidate` would if none had been filtered.
    fn pick_any(&mut self, logits: &[f32], max: f32, uniform: f64) -> u32 {
        let scale = self.scale();
        self.sums.clear();
        let blocks = logits.chunks(select::BLOCK);
        self.sums.extend(blocks.map(|block| self.mass.sum(block, max, scale)));
        let mut left = uniform * self.sums.iter().sum::<f64>();
        for (block, &sum) in self.sums.iter().enumerate() {
            if left >= sum {
                left -= sum;
                continue;
            }
            let start = block * select::BLOCK;
            for (id, &x) in (start..).zip(&logits[start..]) {
                let here = self.mass.of((x - max) * scale);
                if left < here {
                    return u32::try_from(id).unwrap_or(u32::MAX);
                }
                left -= here;
            }
        }
        // Not reached, as above.
        0
    }

    /// What the distance from the largest logit is multiplied by.
    fn scale(&self) -> f32 {
        (1.0 / self.params.temperature).min(f32::MAX)
    }

    /// Fills in log-probabilities: of the chosen token, and of the `count` best.
    fn report(&mut self, logits: &[f32], max: f32, total: f64, count: usize, choice: &mut Choice) {
        let log_total = mass::ln(total);
        let logprob = |x: f32| (f64::from(x) - f64::from(max) - log_total) as f32;
        let chosen = usize::try_from(choice.id).ok().and_then(|id| logits.get(id));
        choice.logprob = chosen.map(|&x| logprob(x));
        if count == 0 {
            return;
        }
        let floor = select::floor_of_best(&self.blocks, count, &mut self.nth);
        select::gather(logits, &self.blocks, floor, &mut self.candidates);
        select::keep_best(&mut self.candidates, count, &mut self.order);
        self.candidates.sort_unstable_by(Candidate::rank);
        choice.top.extend(self.candidates.iter().map(|c| (c.id, logprob(c.value))));
    }
}

/// Why no token can be chosen from `logits`.
fn broken(logits: &[f32]) -> Error {
    let bad = logits.iter().position(|&x| x.is_nan() || x == f32::INFINITY);
    let what = match bad {
        Some(id) => format!("the logit of token {id} is {}", logits[id]),
        None => "every token is excluded: all logits are -inf".to_owned(),
    };
    Error::new(Kind::Device, what).hint("check the weights, or the masks and biases of the request")
}
