//! One match over the operations of a plan: which family records its launches.

use super::recorder::{Buffers, Launch, Recorder};
use super::{
    attention, carry, delta, experts, hyper, linear, low_rank, ops, paged, pool, recurrent, route,
    select, ssm,
};
use crate::device::Shared;
use crate::op::Op;
use crate::plan::Plan;

/// Records every operation of the plan in order.
///
/// # Errors
/// There is no kernel for one of them, or it names memory that is gone.
pub(super) fn record(
    plan: &Plan,
    buffers: Buffers<'_>,
    shared: Shared,
    processors: u32,
) -> Result<Vec<Launch>, String> {
    let mut r = Recorder::new(plan, buffers, shared, processors)?;
    for (node, recorded) in plan.nodes.iter().enumerate() {
        r.begin(node);
        let done = record_node(&mut r, recorded.op);
        let done = done.and_then(|()| {
            r.launches.iter().rev().take_while(|l| l.node == node).try_for_each(Launch::check)
        });
        done.map_err(|what| format!("{} at {}: {what}", recorded.op.name(), recorded.at))?;
    }
    Ok(r.launches)
}

fn record_node(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    match op {
        // A view.
        Op::Columns { .. } => Ok(()),
        Op::RopeTable { .. }
        | Op::PositionScale { .. }
        | Op::Concat { .. }
        | Op::TakeOutputs { .. }
        | Op::Add { .. }
        | Op::Apply { .. }
        | Op::Gate { .. }
        | Op::RmsNorm { .. }
        | Op::GatedRmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::UnitNorm { .. }
        | Op::Rope { .. }
        | Op::Emit { .. } => ops::record(r, op),
        Op::Embed { table, scale } => linear::embed(r, table, scale),
        Op::Linear { x, weight, bias, low_rank } => {
            linear::linear(r, x, weight, bias)?;
            low_rank.map_or(Ok(()), |l| low_rank::add(r, x, l))
        }
        Op::GroupedLinear { x, weight } => linear::grouped(r, x, weight),
        Op::Carried { state } => carry::carried(r, state),
        Op::Carry { x, state } => carry::carry(r, x, state),
        Op::WriteKv { x, state } => paged::write(r, x, state),
        Op::Attention { .. } => attention::record(r, op),
        Op::Select { .. } => select::record(r, op),
        Op::Pool { .. } => pool::record(r, op),
        Op::HyperWeights { .. } | Op::HyperIn { .. } | Op::HyperOut { .. } => hyper::record(r, op),
        Op::Conv { .. } | Op::Decay { .. } => recurrent::record(r, op),
        Op::DeltaRule { .. } => delta::record(r, op),
        Op::Ssm { .. } => ssm::record(r, op),
        Op::Route { logits, scoring, bias, table, gain, .. } => {
            route::record(r, logits, scoring, [bias, table, gain])
        }
        Op::ExpertsUp { .. } | Op::ExpertsDown { .. } => experts::record(r, op),
    }
}

/// Bytes of scratch of a node, for `rows` rows at most.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, rows: usize) -> usize {
    low_rank::scratch_bytes(plan.nodes[node].op.low_rank(), rows)
        + attention::scratch_bytes(plan, node, rows)
        + select::scratch_bytes(plan, node, rows)
}
