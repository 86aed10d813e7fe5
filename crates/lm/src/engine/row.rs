//! A row: a text with a place on the device, and what it has kept for later texts.

use longrun_array::Wanted;

use super::request::{Event, FinishReason};
use super::text::Text;
use crate::cache::Sequence;
use crate::draft::Read;
use crate::error::{Error, Result};
use crate::executor::{Executor, Span};
use crate::prefix::{Place, Prefixes};
use crate::schedule::Want;

pub(super) struct Row {
    pub(super) text: Text,
    pub(super) seq: Sequence,
    /// Tokens that it reads in this step.
    pub(super) share: usize,
    /// How much it had read before the step, and how many tokens of other rows stand in the step before its own.
    pub(super) from: usize,
    pub(super) before: usize,
    /// Results that it has in this step.
    pub(super) results: usize,
    /// What it may say next; read behind its last token.
    pub(super) drafts: Vec<u32>,
    /// Its last token and its drafts, one behind the other.
    reading: Vec<u32>,
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
        Self {
            text,
            seq,
            share: 0,
            from: 0,
            before: 0,
            results: 0,
            drafts: Vec::new(),
            reading: Vec::new(),
            end: None,
            kept: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// Tokens that wait to be read.
    pub(super) fn waiting(&self) -> usize {
        self.text.ids.len() - self.seq.past
    }

    /// The next token that it reads is one behind which the prompt goes on with a token that is to be scored.
    pub(super) fn is_scoring(&self) -> bool {
        self.text.unscored().is_some_and(|next| next == self.seq.past + 1)
    }

    /// What it can read now: nothing beyond the next length at which it is kept, and no more than `most` tokens that have
    /// a result each.
    pub(super) fn want(&self, exec: &Executor, most: usize) -> Want {
        let past = self.seq.past;
        let stop = self.next_stop(exec).unwrap_or(usize::MAX);
        let mut tokens = self.waiting().min(stop - past);
        match self.text.unscored() {
            Some(_) if self.is_scoring() => {
                // Where nothing is to be chosen, nobody asks what comes behind the last token.
                let end = self.text.prompt - usize::from(self.text.left == 0);
                tokens = tokens.min(most).min(end - past);
            }
            Some(next) => tokens = tokens.min(next - 1 - past),
            None => {}
        }
        Want { tokens, drafts: self.drafts.len(), weight: self.text.priority.weight() }
    }

    /// What it reads in this step. Where the share has room for its drafts, these too.
    pub(super) fn span(&mut self) -> Span<'_> {
        let past = self.seq.past;
        let last = past + self.share >= self.text.ids.len();
        if self.share <= 1 || !last {
            self.drafts.clear();
        }
        if self.drafts.is_empty() {
            let (wanted, results) = match last {
                _ if self.is_scoring() => (Wanted::All, self.share),
                true => (Wanted::Last, 1),
                false => (Wanted::None, 0),
            };
            self.results = results;
            let ids = &self.text.ids[past..][..self.share];
            return Span { seq: &mut self.seq, ids, wanted, drafts: 0 };
        }
        self.reading.clear();
        self.reading.extend(&self.text.ids[past..]);
        self.reading.extend(&self.drafts);
        let drafts = self.drafts.len();
        self.results = 1 + drafts;
        Span { seq: &mut self.seq, ids: &self.reading, wanted: Wanted::All, drafts }
    }

    /// What it has read in this step, for a drafter of which it can use `most` drafts.
    pub(super) fn read(&mut self, most: usize) -> Read<'_> {
        let (row, from, carried) = (self.text.id.0, self.from, self.before);
        let (ids, chooser) = self.text.chooser();
        Read { row, seq: &mut self.seq, ids, from, carried, most, chooser }
    }

    /// How many drafts it can use, of `most` that there is room for.
    pub(super) fn useful_drafts(&self, exec: &Executor, most: usize) -> usize {
        if self.waiting() != 1 || self.seq.past < self.text.prompt {
            return 0;
        }
        let stop = self.text.next_stop(self.seq.past).map_or(most, |stop| stop - self.seq.past - 1);
        let context = exec.room().context - self.text.ids.len();
        most.min(stop).min(self.text.left - 1).min(context)
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

    /// Scores what it has read of the prompt by as many of `logits` as there are tokens to be scored.
    fn score<'l>(
        &mut self,
        logits: &mut impl Iterator<Item = &'l mut [f32]>,
        events: &mut Vec<Event>,
    ) {
        let Some(next) = self.text.unscored().filter(|next| *next == self.from + 1) else { return };
        let count = (self.seq.past + 1).min(self.text.prompt) - next;
        let scores = logits.take(count).map(|logits| self.text.score(logits));
        match scores.collect::<Result<Option<Vec<_>>>>() {
            Ok(scores) => {
                let (row, scores) = (self.text.id, scores.unwrap_or_default());
                events.push(Event::Scored { row, scores });
            }
            Err(error) => self.end = Some(End::Failed(error)),
        }
    }

    /// After a step in which it has read its share: tells of it, scores what is to be scored, and chooses a token by
    /// each of the other `logits`, the first of which belong to its own last token and the others to its drafts, as long
    /// as the drafts are what it chooses. Gives how many of them were.
    pub(super) fn settle<'l>(
        &mut self,
        mut logits: impl Iterator<Item = &'l mut [f32]>,
        events: &mut Vec<Event>,
    ) -> usize {
        if self.seq.past <= self.text.prompt && self.text.prompt > 1 {
            let (row, done, total) = (self.text.id, self.seq.past, self.text.prompt);
            events.push(Event::Progress { row, done, total });
        }
        self.score(&mut logits, events);
        if self.text.left == 0 && self.text.unscored().is_none() && self.end.is_none() {
            self.end = Some(End::Finished(FinishReason::Length));
        }
        let mut right = 0;
        for logits in logits {
            if self.end.is_some() {
                break;
            }
            self.end = match self.text.choose(logits, events) {
                Ok(reason) => reason.map(End::Finished),
                Err(error) => Some(End::Failed(error)),
            };
            // What later texts share has to be read to its end, and not beyond.
            let goes_on = self.end.is_none() && !self.text.is_at_boundary();
            if !goes_on || self.drafts.get(right) != self.text.ids.last() {
                break;
            }
            right += 1;
        }
        self.drafts.clear();
        self.seq.accept(right);
        right
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
