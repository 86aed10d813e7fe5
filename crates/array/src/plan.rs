//! From a recorded step to a plan: dead code dropped, every temporary given a place in one arena.
//!
//! Owns the liveness analysis. Roots are results and state writes: they happen whether or not anybody reads them.
//! Launches keep the order in which the model wrote them, which is the order of the states' versions, so a read
//! can't move past a write. Refuses nothing: what it gets was checked when it was recorded.

use crate::device::{BufferId, Device};
use crate::dims::{Axis, Shape};
use crate::inputs::{Bounds, InputLayout};
use crate::key::Key;
use crate::op::{Effect, Id, Op};
use crate::state::StateKind;
use crate::step::Node;
use crate::weight::{WeightKind, WeightRef};

/// Where a tensor lies: `offset + row * stride + column`, in f32 numbers of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first number.
    pub offset: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Its shape.
    pub shape: Shape,
}

/// Numbers between rows are a multiple of this, so that each row starts on a cache line.
const ROW_ALIGN: usize = 16;

/// A step, ready to be compiled by a device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its capacities.
    pub key: Key,
    /// Its operations in launch order; dead ones are gone.
    pub nodes: Vec<Node>,
    /// The place of each node's tensor (by node, in step with `nodes`).
    pub places: Vec<Option<Place>>,
    /// Scratch memory of each node: (offset, length) in f32 numbers of the arena.
    pub scratch: Vec<(usize, usize)>,
    /// Numbers of arena that it needs.
    pub arena_len: usize,
    /// The shape of its result, if it has one.
    pub result: Option<Shape>,
    /// Every weight and state that it touches.
    pub buffers: Vec<BufferId>,
    /// Its step inputs.
    pub layout: InputLayout,
    /// What step inputs must stay below.
    pub bounds: Bounds,
}

impl Plan {
    /// Plans a recorded step for `device`.
    pub(crate) fn new(
        key: Key,
        nodes: Vec<Node>,
        layout: InputLayout,
        device: &dyn Device,
    ) -> Self {
        let nodes = drop_dead(nodes);
        let result = nodes.iter().find_map(|n| match n.op {
            Op::Emit { x } => nodes[x as usize].shape,
            _ => None,
        });
        let bounds = bounds(&nodes);
        let mut buffers: Vec<_> = nodes
            .iter()
            .flat_map(|n| {
                let weights = n.op.weights().map(|w| w.buffer);
                let weights = weights.chain(n.op.low_rank().map(|l| l.buffer));
                weights.chain(n.op.states().map(|s| s.buffer))
            })
            .collect();
        buffers.sort_unstable();
        buffers.dedup();
        let places = vec![None; nodes.len()];
        let scratch = vec![(0, 0); nodes.len()];
        let arena_len = 0;
        let mut plan =
            Self { key, nodes, places, scratch, arena_len, result, buffers, layout, bounds };
        plan.lay_out(device);
        plan
    }

    /// The place of a tensor.
    ///
    /// # Panics
    /// `id` names a node without a tensor, which recording refuses.
    pub fn place(&self, id: Id) -> Place {
        self.places[id as usize].expect("an operation reads a node without a tensor")
    }

    /// Room for rows on an axis.
    pub fn capacity(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tokens => self.layout.tokens,
            Axis::Outputs => self.layout.outputs,
        }
    }

    /// Operations that a device launches: all but views.
    pub fn launches(&self) -> usize {
        (0..self.nodes.len()).filter(|node| self.is_launched(*node)).count()
    }

    /// Whether a node is launched, and not a view.
    pub(crate) fn is_launched(&self, node: usize) -> bool {
        !matches!(self.nodes[node].op, Op::Columns { .. })
    }

    /// Gives each tensor an offset: first fit over those that are alive at the same time.
    fn lay_out(&mut self, device: &dyn Device) {
        let last = last_uses(&self.nodes);
        let mut arena = Arena::default();
        for (i, last) in last.into_iter().enumerate() {
            if let Op::Columns { x, start, .. } = self.nodes[i].op {
                let base = self.place(x);
                let shape = self.nodes[i].shape.unwrap_or(base.shape);
                self.places[i] = Some(Place { offset: base.offset + start, shape, ..base });
                continue;
            }
            if let Some(shape) = self.nodes[i].shape {
                let stride = shape.cols.next_multiple_of(ROW_ALIGN);
                let len = stride * self.capacity(shape.rows);
                let offset = arena.take(len, last.max(i));
                self.places[i] = Some(Place { offset, stride, shape });
            }
            let rows = self.capacity(self.nodes[i].shape.map_or(Axis::Tokens, |s| s.rows));
            let len = device.scratch_bytes(self, i, rows).div_ceil(4).next_multiple_of(ROW_ALIGN);
            if len > 0 {
                self.scratch[i] = (arena.take(len, i), len);
            }
            arena.release_until(i);
        }
        self.arena_len = arena.len;
    }
}

/// Keeps roots and what they read, in order; renumbers the rest.
fn drop_dead(nodes: Vec<Node>) -> Vec<Node> {
    let mut keep = vec![false; nodes.len()];
    for i in (0..nodes.len()).rev() {
        keep[i] |= nodes[i].op.effect() != Effect::Pure;
        if keep[i] {
            nodes[i].op.reads().for_each(|id| keep[id as usize] = true);
        }
    }
    let mut renamed = vec![Id::MAX; nodes.len()];
    let mut kept = Vec::new();
    for (i, mut node) in nodes.into_iter().enumerate().filter(|(i, _)| keep[*i]) {
        renamed[i] = kept.len() as Id;
        node.op.each_read(|id| *id = renamed[*id as usize]);
        kept.push(node);
    }
    kept
}

/// For each node the last node that reads its memory, through views too.
fn last_uses(nodes: &[Node]) -> Vec<usize> {
    let mut base: Vec<usize> = (0..nodes.len()).collect();
    let mut last = vec![0; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        if let Op::Columns { x, .. } = node.op {
            base[i] = base[x as usize];
        }
        for id in node.op.reads() {
            last[base[id as usize]] = i;
        }
    }
    last
}

/// What the smallest of what step inputs lead to has room for.
fn bounds(nodes: &[Node]) -> Bounds {
    let adapters = nodes.iter().filter_map(|n| n.op.low_rank()).map(|l| l.spec.slots).min();
    let mut bounds = Bounds { adapters: adapters.unwrap_or(0), ..Bounds::NONE };
    for node in nodes {
        bounds.ids = bounds.ids.min(match node.op {
            Op::Embed { table: WeightRef { kind: WeightKind::Matrix(m), .. }, .. } => m.rows,
            Op::Route {
                table: Some(WeightRef { kind: WeightKind::Vector { len }, .. }),
                k,
                ..
            } => len / k,
            _ => usize::MAX,
        });
        for state in node.op.states() {
            if let StateKind::Slots { log, .. } = state.kind {
                bounds.slots = bounds.slots.min(state.units);
                bounds.drafts = bounds.drafts.min(log.depth);
            }
        }
        if let Op::Carried { state } = node.op {
            bounds.carried = bounds.carried.min(state.units);
        }
    }
    bounds
}

/// Pieces of the arena in use, by offset, each with the node after which it is free.
#[derive(Default)]
struct Arena {
    used: Vec<(usize, usize, usize)>,
    len: usize,
}

impl Arena {
    /// The lowest gap of `len`; in use until node `until` has run.
    fn take(&mut self, len: usize, until: usize) -> usize {
        let (mut at, mut i) = (0, 0);
        while i < self.used.len() && self.used[i].0 < at + len {
            at = at.max(self.used[i].0 + self.used[i].1);
            i += 1;
        }
        let i = self.used.partition_point(|piece| piece.0 < at);
        self.used.insert(i, (at, len, until));
        self.len = self.len.max(at + len);
        at
    }

    fn release_until(&mut self, node: usize) {
        self.used.retain(|piece| piece.2 > node);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Arena;

    proptest! {
        #[test]
        fn pieces_alive_together_never_overlap(
            takes in proptest::collection::vec((1usize..50, 0usize..8), 1..60)
        ) {
            let mut arena = Arena::default();
            let mut alive: Vec<(usize, usize, usize)> = Vec::new();
            for (i, (len, life)) in takes.into_iter().enumerate() {
                let at = arena.take(len, i + life);
                for (a, l, _) in &alive {
                    prop_assert!(at + len <= *a || a + l <= at);
                }
                prop_assert!(at + len <= arena.len);
                alive.push((at, len, i + life));
                arena.release_until(i);
                alive.retain(|piece| piece.2 > i);
            }
        }
    }
}
