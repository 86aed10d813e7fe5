//! A row: a text with a place on the device, and what it has kept for later texts.

use super::request::{Event, FinishReason};
use super::text::Text;
use crate::cache::Sequence;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::prefix::{Place, Prefixes};
use crate::schedule::Want;

pub(super) struct Row {
    pub(super) text: Text,
    pub(super) seq: Sequence,
    /// Tokens that it reads in this step.
    pub(super) share: usize,
    pub(super) end: Option<End>,
    /// Snapshots of its own text.
    kept: Vec<Place>,
    /// Those among them that lie where chunks end, with their lengths.
    chunks: Vec<(usize, Place)>,
}

pub(super) enum End {
    Finished(FinishReason),
    Failed(Error),
}

impl Row {
    pub(super) fn new(text: Text, seq: Sequence) -> Self {
        Self { text, seq, share: 0, end: None, kept: Vec::new(), chunks: Vec::new() }
    }

    /// Tokens that wait to be read.
    pub(super) fn waiting(&self) -> usize {
        self.text.ids.len() - self.seq.past
    }

    /// What it can read now: nothing beyond the next length at which it is kept.
    pub(super) fn want(&self, exec: &Executor) -> Want {
        let stop = self.next_stop(exec).unwrap_or(usize::MAX);
        let tokens = self.waiting().min(stop - self.seq.past);
        Want { tokens, weight: self.text.priority.weight() }
    }

    fn next_stop(&self, exec: &Executor) -> Option<usize> {
        if exec.room().snapshots == 0 || !exec.pools().is_exact() {
            return None;
        }
        let chunk = exec.room().chunk;
        let end = (self.seq.past / chunk + 1) * chunk;
        let end = Some(end).filter(|end| *end < self.text.prompt);
        self.text.next_stop(self.seq.past).into_iter().chain(end).min()
    }

    /// After a step: keeps what later texts may begin with.
    pub(super) fn keep(&mut self, exec: &mut Executor, prefixes: &mut Prefixes) -> Result<()> {
        let past = self.seq.past;
        if exec.room().snapshots == 0 {
            return Ok(());
        }
        if !exec.pools().is_exact() {
            // It can be cut anywhere, so the longest will do.
            return if self.end.is_some() || past == self.text.prompt {
                self.keep_now(exec, prefixes, true).map(|_| ())
            } else {
                Ok(())
            };
        }
        let stop = self.text.stops.contains(&past) || self.end.is_some();
        let chunk = past.is_multiple_of(exec.room().chunk) && past < self.text.prompt;
        if !stop && !chunk {
            return Ok(());
        }
        if let Some(place) = self.keep_now(exec, prefixes, false)?.filter(|_| chunk && !stop) {
            self.chunks.push((past, place));
            while let Some(i) = too_many(self.chunks.iter().map(|(length, _)| *length)) {
                prefixes.remove_unused(exec, self.chunks.remove(i).1);
            }
        }
        Ok(())
    }

    fn keep_now(
        &mut self,
        exec: &mut Executor,
        prefixes: &mut Prefixes,
        alone: bool,
    ) -> Result<Option<Place>> {
        let place = prefixes.keep(exec, &self.seq, &self.text.ids[..self.seq.past])?;
        if alone && place.is_some() {
            self.kept.drain(..).for_each(|old| prefixes.remove_unused(exec, old));
        }
        self.kept.extend(place);
        Ok(place)
    }

    /// Leaves its place. A row that failed leaves nothing of itself.
    pub(super) fn leave(self, exec: &mut Executor, prefixes: &mut Prefixes) -> Text {
        if matches!(self.end, Some(End::Failed(_))) {
            self.kept.into_iter().for_each(|place| prefixes.remove(exec, place));
        }
        exec.release(self.seq);
        self.text
    }

    /// After a step in which it has read its share; `logits` if nothing waits any more.
    pub(super) fn settle(&mut self, logits: Option<&mut [f32]>, events: &mut Vec<Event>) {
        if self.seq.past <= self.text.prompt && self.text.prompt > 1 {
            let (row, done, total) = (self.text.id, self.seq.past, self.text.prompt);
            events.push(Event::Progress { row, done, total });
        }
        let Some(logits) = logits else { return };
        self.end = match self.text.choose(logits, events) {
            Ok(reason) => reason.map(End::Finished),
            Err(error) => Some(End::Failed(error)),
        };
    }
}

/// Which of the lengths at which chunks end is one too many: the last two stay, older ones lie ever further apart.
fn too_many(lengths: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator) -> Option<usize> {
    let lengths: Vec<usize> = lengths.collect();
    let last = *lengths.last()?;
    // Without the one between them, the gap must not be wider than the way from there to the end.
    let gap = |i: usize| lengths[i + 1] - i.checked_sub(1).map_or(0, |before| lengths[before]);
    (0..lengths.len().saturating_sub(2)).rev().find(|&i| gap(i) <= last - lengths[i + 1])
}

#[cfg(test)]
mod tests {
    use super::too_many;

    #[test]
    fn older_chunks_lie_ever_further_apart() {
        let mut kept: Vec<usize> = Vec::new();
        for n in 1..=1000 {
            kept.push(n * 512);
            while let Some(i) = too_many(kept.iter().copied()) {
                kept.remove(i);
            }
            let last = n * 512;
            assert!(kept.len() <= 2 + 2 * (n.ilog2() as usize + 1), "{} at {n}", kept.len());
            if n > 1 {
                assert_eq!(kept[kept.len() - 2..], [last - 512, last]);
            }
            // Wherever a text leaves this one, what it reads again is at most as long as what it leaves, or a chunk.
            let mut before = 0;
            for &length in &kept {
                assert!(length - before <= (last - length).max(512) + 512, "{kept:?}");
                before = length;
            }
        }
    }
}
