//! Reasoning before an answer: a grammar that begins behind it, and a bound on its length.
//!
//! Owns where a row is: before its reasoning, in it, or behind it. Refuses to look at text: tags are ids.

use std::sync::Arc;

use crate::engine::{Mask, TokenMask};
use crate::error::Result;

/// How a row reasons before it answers; it makes masks for such rows.
///
/// While a row reasons, every token is possible but those of `forbidden`. Behind `close` the mask of the answer begins,
/// with nothing of the reasoning in it. When `most` tokens of reasoning are there, the ids of `close` are forced, one a
/// token: all other logits become negative infinity, so that whatever a sampler does with the rest, it chooses this
/// one. Its own logit stays what it is: a bias that excludes it ends the row with the sampler's error.
#[derive(Clone, Debug)]
pub struct Reasoning {
    /// The id that opens it, if the row may begin with its answer instead. None: the row reasons from its first token
    /// on, because its prompt ends in the open tag.
    pub open: Option<u32>,
    /// The ids that end it, one behind the other. It is never over if there are none.
    pub close: Arc<[u32]>,
    /// Tokens of reasoning at most, without those of `close`.
    pub most: Option<usize>,
    /// What is impossible meanwhile: ids that end a text, for a row that must not end before its answer.
    pub forbidden: Arc<[u32]>,
}

impl Reasoning {
    /// A mask that begins with the reasoning. Without one for the answer, that is free.
    pub fn mask(&self, answer: Option<Mask>) -> Mask {
        let place = if self.open.is_some() { Place::Before } else { Place::within() };
        Mask(Box::new(Gate { rules: self.clone(), answer, place }))
    }
}

struct Gate {
    rules: Reasoning,
    answer: Option<Mask>,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Before,
    Within {
        /// Tokens so far.
        read: usize,
        /// The last of them, as many as `close` has, the oldest first.
        last: Vec<u32>,
    },
    Behind,
}

impl Place {
    fn within() -> Self {
        Self::Within { read: 0, last: Vec::new() }
    }
}

impl Gate {
    /// How many ids of `close` the last tokens are.
    fn closed(&self, last: &[u32]) -> usize {
        let close = &self.rules.close;
        (0..=close.len().min(last.len())).rev().find(|&n| last.ends_with(&close[..n])).unwrap_or(0)
    }
}

impl TokenMask for Gate {
    fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        match &self.place {
            Place::Before => {
                let open = self.rules.open.and_then(|id| Some((id, *logits.get(id as usize)?)));
                if let Some(Mask(answer)) = &mut self.answer {
                    answer.apply(logits)?;
                }
                if let Some((id, logit)) = open {
                    logits[id as usize] = logit;
                }
            }
            Place::Within { read, last } => {
                let due = self.rules.most.is_some_and(|most| *read >= most);
                let next = self.rules.close.get(self.closed(last));
                if let Some(&next) = next.filter(|_| due) {
                    let others = logits.iter_mut().enumerate().filter(|(i, _)| *i != next as usize);
                    others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                } else {
                    for id in self.rules.forbidden.iter() {
                        logits
                            .get_mut(*id as usize)
                            .into_iter()
                            .for_each(|l| *l = f32::NEG_INFINITY);
                    }
                }
            }
            Place::Behind => {
                if let Some(Mask(answer)) = &mut self.answer {
                    answer.apply(logits)?;
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        let close = self.rules.close.len();
        match &mut self.place {
            Place::Before if self.rules.open == Some(id) => {
                self.place = Place::within();
                return Ok(());
            }
            Place::Before => self.place = Place::Behind,
            Place::Within { read, last } => {
                *read += 1;
                last.push(id);
                let extra = last.len().saturating_sub(close);
                last.drain(..extra);
                if close > 0 && **last == *self.rules.close {
                    self.place = Place::Behind;
                }
                return Ok(());
            }
            Place::Behind => {}
        }
        match &mut self.answer {
            Some(Mask(answer)) => answer.accept(id),
            None => Ok(()),
        }
    }

    fn is_done(&self) -> bool {
        let Some(Mask(answer)) = &self.answer else { return false };
        matches!(self.place, Place::Behind) && answer.is_done()
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        let Self { rules, answer, place } = self;
        Box::new(Self { rules: rules.clone(), answer: answer.clone(), place: place.clone() })
    }
}
