//! The plain twins: of attention, two passes over what a token sees; of writing, token by token.

use super::super::context::Context;
use super::super::paged::Paged;
use super::super::view::{Mat, MatMut};
use super::{Memory, Spec, units};
use crate::inputs::BLOCK;
use crate::state::StateRef;

/// The plain twin of [`write_kv`](super::write_kv).
pub(in crate::cpu) fn write_reference(c: &Context<'_>, x: Mat<'_>, state: StateRef) {
    let paged = Paged::new(c, state);
    let (heads, dim) = paged.dims();
    for (t, h) in (0..c.b.tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
        let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
        if (pos + 1).is_multiple_of(state.every) {
            let entry = pos / state.every;
            let block = c.b.block(state.table, row, entry / BLOCK);
            // SAFETY: one thread, one token at a time.
            unsafe { paged.define((block, h), entry % BLOCK, &x.row(t)[h * dim..][..dim]) };
        }
    }
}

/// Where a reference looks: in the entries or the keys, the block, and the place in it.
type Place = (bool, usize, usize);

/// Everything that token `t` sees, in order.
fn places(c: &Context<'_>, spec: &Spec<'_>, t: usize) -> Vec<Place> {
    let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
    let at = |state: StateRef, n: usize| (c.b.block(state.table, row, n / BLOCK), n % BLOCK);
    let key = |p: usize| (false, at(spec.keys, p).0, at(spec.keys, p).1);
    let Some(entries) = spec.entries else {
        return match spec.chosen {
            None => spec.visible(pos).map(key).collect(),
            Some((list, every)) => {
                spec.chosen_positions(pos, list.row(t), every).map(key).collect()
            }
        };
    };
    let mut seen: Vec<usize> = (0..(pos + 1) / entries.every).collect();
    if let Some((list, _)) = spec.chosen {
        let chosen: Vec<usize> = units(list.row(t)).collect();
        seen.retain(|e| chosen.contains(e));
    }
    let entry = |e: usize| (true, at(entries, e).0, at(entries, e).1);
    spec.visible(pos).map(key).chain(seen.into_iter().map(entry)).collect()
}

/// The plain twin of [`attention`](super::attention): two passes over what a token sees.
pub(in crate::cpu) fn reference(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    let memory = Memory::new(c, &spec);
    let (kv_heads, dim, dv) = spec.dims();
    let per_key = spec.heads / kv_heads;
    for (t, h) in (0..q.rows).flat_map(|t| (0..spec.heads).map(move |h| (t, h))) {
        let places = places(c, &spec, t);
        let number = |&(entry, block, at): &Place, d: usize| {
            let keys = if entry { memory.entries.unwrap_or(memory.keys) } else { memory.keys };
            // SAFETY: no kernel writes states while attention runs.
            unsafe { keys.number(block, h / per_key, d, at) }
        };
        let value = |place: &Place, d: usize| match memory.values {
            // SAFETY: as above.
            Some(values) => unsafe { values.number(place.1, h / per_key, d, place.2) },
            None => number(place, d),
        };
        let q = &q.row(t)[h * dim..][..dim];
        let score = |place: &Place| {
            let dot: f32 = q.iter().enumerate().map(|(d, q)| q * number(place, d)).sum();
            spec.softcap.map_or(spec.scale * dot, |c| c * (spec.scale * dot / c).tanh())
        };
        let mut weights: Vec<f32> = places.iter().map(score).collect();
        let sink = spec.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
        let max = weights.iter().copied().fold(sink, f32::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
        let sum = (sink - max).exp() + weights.iter().sum::<f32>();
        // SAFETY: one thread, one piece at a time.
        let out = unsafe { out.piece(t, h * dv, dv) };
        for (d, o) in out.iter_mut().enumerate() {
            let seen = weights.iter().zip(&places);
            *o = seen.map(|(weight, place)| weight / sum * value(place, d)).sum();
        }
    }
}
