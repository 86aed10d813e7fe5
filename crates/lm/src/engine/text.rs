//! A request's text: its ids so far and how the next one is chosen. It has no place on the device.

use std::sync::Arc;

use super::request::{Event, FinishReason, Mask, Priority, Request, RowId, Score};
use crate::draft::{Ask, Chooser};
use crate::error::Result;
use crate::sample::{Choice, History, Sampler};

pub(super) struct Text {
    pub(super) id: RowId,
    pub(super) priority: Priority,
    /// The slot of its adapter.
    pub(super) adapter: usize,
    /// The prompt and what was generated.
    pub(super) ids: Vec<u32>,
    pub(super) prompt: usize,
    /// Tokens still to be generated.
    pub(super) left: usize,
    /// Lengths at which it is kept for later texts, in rising order.
    pub(super) stops: Vec<usize>,
    /// It has had a place before and lost it: its start was told.
    pub(super) preempted: bool,
    /// The token of the prompt that is scored next, and what is told of it.
    score: Option<Score>,
    sampler: Sampler,
    history: History,
    stop_ids: Arc<[u32]>,
    boundary_ids: Arc<[u32]>,
    mask: Option<Mask>,
}

impl Text {
    pub(super) fn new(id: RowId, request: Request, vocab: usize) -> Result<Self> {
        let sampler = Sampler::new(request.params, vocab)?;
        let mut history = sampler.history();
        history.extend(&request.prompt);
        let prompt = request.prompt.len();
        // One token is left to be read: its logits are wanted.
        let mut stops = request.boundaries;
        stops.push(prompt - 1);
        stops.retain(|stop| (1..prompt).contains(stop));
        stops.sort_unstable();
        stops.dedup();
        Ok(Self {
            id,
            priority: request.priority,
            adapter: request.adapter,
            ids: request.prompt,
            prompt,
            left: request.max_tokens,
            stops,
            preempted: false,
            score: request.score,
            sampler,
            history,
            stop_ids: request.stop_ids,
            boundary_ids: request.boundary_ids,
            mask: request.mask,
        })
    }

    /// The most tokens it may come to.
    pub(super) fn most(&self) -> usize {
        self.ids.len() + self.left
    }

    /// The next token of the prompt that has to be scored.
    pub(super) fn unscored(&self) -> Option<usize> {
        self.score.map(|score| score.from).filter(|next| *next < self.prompt)
    }

    /// What a kept beginning can stand for: what has to be scored is read.
    pub(super) fn reusable(&self) -> &[u32] {
        &self.ids[..self.unscored().unwrap_or(self.ids.len())]
    }

    /// Scores the next token of the prompt.
    ///
    /// # Errors
    /// Logits are broken.
    pub(super) fn score(&mut self, logits: &[f32]) -> Result<Option<Choice>> {
        let (Some(next), Some(score)) = (self.unscored(), &mut self.score) else { return Ok(None) };
        let told = self.sampler.score(logits, self.ids[next], score.top);
        let told = told.map_err(|e| e.at(format!("position {next}")))?;
        score.from += 1;
        Ok(Some(told))
    }

    /// The next length at which it is kept, after `past`.
    pub(super) fn next_stop(&self, past: usize) -> Option<usize> {
        self.stops.iter().copied().find(|stop| *stop > past)
    }

    /// Whether the last token ends something that later texts are likely to share.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.stops.last() == Some(&self.ids.len())
    }

    /// Asks for at most `most` drafts.
    pub(super) fn ask<'a>(&'a mut self, most: usize, drafts: &'a mut Vec<u32>) -> Ask<'a> {
        drafts.clear();
        let (row, text_most) = (self.id.0, self.most());
        let (ids, chooser) = self.chooser();
        Ask { row, ids, text_most, most, chooser, drafts }
    }

    /// Its ids, and how it chooses the next.
    pub(super) fn chooser(&mut self) -> (&[u32], Chooser<'_>) {
        (&self.ids, Chooser { sampler: &mut self.sampler, history: &self.history })
    }

    /// Chooses the next token. Why it has ended, if it has.
    ///
    /// # Errors
    /// Logits are broken, or the mask has failed.
    pub(super) fn choose(
        &mut self,
        logits: &mut [f32],
        events: &mut Vec<Event>,
    ) -> Result<Option<FinishReason>> {
        if let Some(Mask(mask)) = &mut self.mask {
            mask.apply(logits)?;
        }
        let choice = self.sampler.sample(logits, &self.history, self.ids.len() as u64)?;
        let id = choice.id;
        let mut done = false;
        if let Some(Mask(mask)) = &mut self.mask {
            mask.accept(id)?;
            done = mask.is_done();
        }
        events.push(Event::Token { row: self.id, choice });
        self.history.push(id);
        self.ids.push(id);
        self.left -= 1;
        if self.boundary_ids.contains(&id) {
            self.stops.push(self.ids.len());
        }
        Ok(if done || self.stop_ids.contains(&id) {
            Some(FinishReason::Stop)
        } else if self.left == 0 {
            Some(FinishReason::Length)
        } else {
            None
        })
    }
}
