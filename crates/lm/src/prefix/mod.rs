//! Prefix reuse: snapshots under exactly the ids that they have consumed, found again by the next text that begins so.
//!
//! Owns the snapshots between requests and the order in which they go: the one longest unused first. A snapshot never
//! goes because another one begins with the same ids. Refuses to trim or to approximate: what a snapshot holds is what
//! reading its ids would make, or it is not used.

pub mod disk;
mod tree;

use std::collections::BTreeMap;

use crate::adapter::Identity;
use crate::cache::{Sequence, Snapshot};
use crate::error::Result;
use crate::executor::Executor;
use tree::{NodeId, Tree};

/// Where a kept snapshot is, and which one it was: places are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    adapter: Identity,
    node: NodeId,
    number: u64,
}

impl Place {
    fn at(self) -> (Identity, NodeId) {
        (self.adapter, self.node)
    }
}

/// Why a prompt began from nothing, or from less than it could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Miss {
    /// Prefixes are not kept: there is no room for snapshots.
    Off,
    /// Nothing kept begins with the same ids.
    Unknown,
    /// Kept texts have this many ids in common with the prompt, and no snapshot lies so early: the model's state can't be
    /// cut there.
    NoSnapshot {
        /// Ids in common.
        common: usize,
    },
    /// Kept texts have this many ids in common, and were read with positions stretched for another length.
    Stretched {
        /// Ids in common.
        common: usize,
    },
}

impl Miss {
    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Unknown => "unknown",
            Self::NoSnapshot { .. } => "no_snapshot",
            Self::Stretched { .. } => "stretched",
        }
    }

    /// The names of all.
    pub const NAMES: [&'static str; 4] = ["off", "unknown", "no_snapshot", "stretched"];
}

/// What was found for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where to go on from: a snapshot and how many of its tokens.
    pub hit: Option<(Place, usize)>,
    /// Why it is nothing.
    pub miss: Option<Miss>,
}

struct Kept {
    snapshot: Snapshot,
    /// When it was last used; also its place in the order.
    used: u64,
    number: u64,
}

/// Snapshots between requests.
#[derive(Default)]
pub struct Prefixes {
    /// Of each adapter those that were read with it: no other text can go on from them.
    trees: BTreeMap<Identity, Tree<Kept>>,
    /// By when they were last used.
    order: BTreeMap<u64, (Identity, NodeId)>,
    clock: u64,
    evicted: u64,
}

impl Prefixes {
    /// Snapshots that are kept.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Bytes of the ids they are kept under, on the host.
    pub fn id_bytes(&self) -> usize {
        self.trees.values().map(Tree::ids).sum::<usize>() * size_of::<u32>()
    }

    /// Snapshots that had to go so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn kept(&self, (adapter, node): (Identity, NodeId)) -> Option<&Kept> {
        self.trees.get(&adapter)?.value(node)
    }

    /// Keeps what `seq` holds under its adapter and the ids it has consumed, letting go of the longest unused if there is
    /// no room. Does nothing for ids under which something is kept already, or without any room at all.
    ///
    /// # Errors
    /// The device failed to copy a record.
    pub fn keep(
        &mut self,
        exec: &mut Executor,
        seq: &Sequence,
        ids: &[u32],
    ) -> Result<Option<Place>> {
        if ids.len() != seq.past || ids.is_empty() || exec.room().snapshots == 0 {
            return Ok(None);
        }
        let Some(adapter) = exec.adapter(seq.adapter) else { return Ok(None) };
        let same = |at: &(Identity, NodeId)| self.stretch(*at) == Some(seq.stretch);
        if let Some(at) = self.at(adapter, ids).filter(same) {
            self.touch(at);
            return Ok(None);
        }
        let kept = loop {
            match exec.keep(seq)? {
                Some(kept) => break kept,
                None if self.evict(exec) => {}
                None => return Ok(None),
            }
        };
        Ok(Some(self.put(exec, (adapter, ids), kept)))
    }

    /// Puts a snapshot under its adapter and ids, in place of what may be there.
    pub(crate) fn put(
        &mut self,
        exec: &mut Executor,
        (adapter, ids): (Identity, &[u32]),
        snapshot: Snapshot,
    ) -> Place {
        let used = self.tick();
        let tree = self.trees.entry(adapter).or_insert_with(Tree::new);
        let (node, old) = tree.insert(ids, Kept { snapshot, used, number: used });
        if let Some(old) = old {
            self.order.remove(&old.used);
            exec.forget(old.snapshot);
        }
        self.order.insert(used, (adapter, node));
        Place { adapter, node, number: used }
    }

    /// Where something is kept under exactly these ids.
    fn at(&self, adapter: Identity, ids: &[u32]) -> Option<(Identity, NodeId)> {
        let (_, same) = self.trees.get(&adapter)?.matches(ids, false);
        same.first().filter(|m| m.common == ids.len()).map(|m| (adapter, m.node))
    }

    /// Whether something is kept under this adapter and exactly these ids.
    pub(crate) fn has(&self, adapter: Identity, ids: &[u32]) -> bool {
        self.at(adapter, ids).is_some()
    }

    fn stretch(&self, at: (Identity, NodeId)) -> Option<f32> {
        Some(self.kept(at)?.snapshot.stretch())
    }

    fn touch(&mut self, at: (Identity, NodeId)) {
        let used = self.tick();
        let kept = self.trees.get_mut(&at.0).and_then(|tree| tree.value_mut(at.1));
        if let Some(kept) = kept {
            self.order.remove(&kept.used);
            kept.used = used;
            self.order.insert(used, at);
        }
    }

    /// The most of `ids` that a sequence can go on from, whose adapter is in slot `adapter` and whose positions are
    /// stretched by `stretch`. At least one id is left to be read: its logits are wanted.
    pub fn find(&self, exec: &Executor, ids: &[u32], adapter: usize, stretch: f32) -> Found {
        let found = |miss| Found { hit: None, miss: Some(miss) };
        if exec.room().snapshots == 0 {
            return found(Miss::Off);
        }
        let adapter =
            exec.adapter(adapter).and_then(|identity| self.trees.get_key_value(&identity));
        let Some((&adapter, tree)) = adapter else { return found(Miss::Unknown) };
        let most = ids.len().saturating_sub(1);
        let (common, matches) = tree.matches(&ids[..most], !exec.pools().is_exact());
        let mut other_stretch = false;
        let mut best: Option<(usize, u64, Place)> = None;
        for m in matches {
            let Some(kept) = tree.value(m.node) else { continue };
            if kept.snapshot.stretch() != stretch {
                other_stretch = true;
                continue;
            }
            let cut = exec.serves(&kept.snapshot, m.common);
            let place = Place { adapter, node: m.node, number: kept.number };
            if cut > 0 && best.is_none_or(|(most, used, _)| (cut, kept.used) > (most, used)) {
                best = Some((cut, kept.used, place));
            }
        }
        match best {
            Some((cut, _, place)) => Found { hit: Some((place, cut)), miss: None },
            None if common == 0 => found(Miss::Unknown),
            None if other_stretch => found(Miss::Stretched { common }),
            None => found(Miss::NoSnapshot { common }),
        }
    }

    /// A sequence that goes on from what was found.
    ///
    /// # Errors
    /// All rows are taken, or the device failed to copy the record.
    pub fn restore(
        &mut self,
        exec: &mut Executor,
        place: Place,
        cut: usize,
    ) -> Result<Option<Sequence>> {
        self.touch(place.at());
        match self.kept(place.at()).filter(|kept| kept.number == place.number) {
            Some(kept) => exec.restore(&kept.snapshot, cut).map(Some),
            None => Ok(None),
        }
    }

    /// Lets a snapshot go; nothing if it has gone already.
    pub fn remove(&mut self, exec: &mut Executor, place: Place) {
        if self.kept(place.at()).is_some_and(|kept| kept.number == place.number) {
            self.take(exec, place.at());
        }
    }

    /// Lets a snapshot go unless it was used since it was made.
    pub fn remove_unused(&mut self, exec: &mut Executor, place: Place) {
        let unused = |kept: &&Kept| kept.number == place.number && kept.used == place.number;
        if self.kept(place.at()).filter(unused).is_some() {
            self.take(exec, place.at());
        }
    }

    /// Lets go of the snapshot that was longest unused; false if there is none.
    pub fn evict(&mut self, exec: &mut Executor) -> bool {
        let Some((_, &at)) = self.order.first_key_value() else { return false };
        self.evicted += 1;
        self.take(exec, at);
        true
    }

    fn take(&mut self, exec: &mut Executor, (adapter, node): (Identity, NodeId)) {
        let Some(tree) = self.trees.get_mut(&adapter) else { return };
        if let Some(kept) = tree.remove(node) {
            self.order.remove(&kept.used);
            exec.forget(kept.snapshot);
        }
        if tree.ids() == 0 {
            self.trees.remove(&adapter);
        }
    }

    /// Lets go of all.
    pub fn clear(&mut self, exec: &mut Executor) {
        while let Some((_, &at)) = self.order.first_key_value() {
            self.take(exec, at);
        }
    }

    /// All snapshots with their adapters and ids, the last used first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Identity, Vec<u32>, &Snapshot)> {
        self.order.values().rev().filter_map(|(adapter, node)| {
            let tree = self.trees.get(adapter)?;
            Some((*adapter, tree.text(*node), &tree.value(*node)?.snapshot))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::tree::Tree;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn common(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(3), ..Default::default() })]

        /// The tree against a map from whole texts.
        #[test]
        fn a_tree_is_a_map_that_knows_beginnings(
            moves in proptest::collection::vec((proptest::collection::vec(0u32..3, 1..9), 0u8..4), 1..80)
        ) {
            let (mut tree, mut map) = (Tree::new(), BTreeMap::new());
            for (value, (text, what)) in moves.into_iter().enumerate() {
                if what == 0 {
                    let held = map.remove(&text);
                    let (_, found) = tree.matches(&text, false);
                    let found = found.first().filter(|m| m.common == text.len()).map(|m| m.node);
                    prop_assert_eq!(found.and_then(|node| tree.remove(node)), held);
                } else {
                    let (node, old) = tree.insert(&text, value);
                    prop_assert_eq!(tree.text(node), text.clone());
                    prop_assert_eq!(old, map.insert(text.clone(), value));
                }
                tree.check();
                let (most, all) = tree.matches(&text, true);
                let expect = map.keys().map(|t| common(t, &text)).max().unwrap_or(0);
                prop_assert_eq!(most, expect);
                // Texts that `text` begins with, and those that share the most with it and go on.
                for (t, v) in &map {
                    let found = all.iter().find(|m| tree.value(m.node) == Some(v)).map(|m| m.common);
                    let same = common(t, &text);
                    let listed = same > 0 && (same == t.len() || same == expect);
                    prop_assert_eq!(found, listed.then_some(same));
                }
            }
            let left: Vec<_> = map.into_keys().collect();
            for text in left {
                let (_, found) = tree.matches(&text, false);
                tree.remove(found[0].node);
            }
            prop_assert_eq!(tree.ids(), 0);
        }
    }
}
