//! What products cost: every weight once, and a multiply-add for each of its numbers and each row.

use super::Cost;
use super::node::{F32, Meter, flops, matrix};
use crate::device::MatrixSpec;
use crate::dims::Axis;
use crate::low_rank::LowRankRef;
use crate::op::Id;
use crate::panel::PANEL_ROWS;
use crate::weight::WeightRef;

impl Meter<'_> {
    fn packed(&self, spec: MatrixSpec) -> u64 {
        self.device.matrix_bytes(&spec).unwrap_or(0) as u64
    }

    /// Multiply-adds of `rows` rows with one matrix of a stack.
    fn products(&self, spec: &MatrixSpec, rows: u64) -> Cost {
        let n = rows * spec.rows as u64 * spec.cols as u64;
        if self.device.multiplies_integers(spec) {
            Cost { ops: n, ..Cost::default() }
        } else {
            flops(2 * n)
        }
    }

    /// The rows that are looked up, each as its share of a panel.
    pub(super) fn embed(&self, table: WeightRef, scale: f32, made: u64) -> Cost {
        let Some(spec) = matrix(table) else { return Cost::default() };
        let panel = self.packed(MatrixSpec { experts: 1, rows: PANEL_ROWS, ..spec });
        let rows = made / (spec.cols as u64).max(1);
        let weight_bytes = rows * panel / PANEL_ROWS as u64;
        Cost { weight_bytes, ..flops(if scale == 1.0 { 0 } else { made }) }
    }

    pub(super) fn linear(&self, x: Id, weight: WeightRef, low_rank: Option<LowRankRef>) -> Cost {
        let Some(spec) = matrix(weight) else { return Cost::default() };
        let mut cost = low_rank.map_or(Cost::default(), |l| self.low_rank(x, l));
        cost += self.products(&spec, self.shape(x).0);
        cost.weight_bytes += self.packed(spec);
        cost
    }

    pub(super) fn grouped(&self, x: Id, weight: WeightRef) -> Cost {
        let Some(spec) = matrix(weight) else { return Cost::default() };
        let products = self.products(&spec, self.shape(x).0 * spec.experts as u64);
        Cost { weight_bytes: self.packed(spec), ..products }
    }

    /// What adapters add where rows name one: each pair is read once, and has the rank that there is room for.
    fn low_rank(&self, x: Id, l: LowRankRef) -> Cost {
        let axis = self.plan.nodes[x as usize].shape.map_or(Axis::Tokens, |s| s.rows);
        let mut named = Vec::new();
        let mut rows = 0;
        for row in self.rows.iter().filter(|row| row.adapter > 0) {
            let live = match axis {
                Axis::Tokens => row.tokens,
                Axis::Outputs => row.results,
            };
            rows += live as u64;
            if live > 0 && !named.contains(&row.adapter) {
                named.push(row.adapter);
            }
        }
        let unit = l.spec.unit() as u64;
        let weight_bytes = named.len() as u64 * unit * F32;
        Cost { weight_bytes, ..flops(rows * (2 * unit + l.spec.rows as u64)) }
    }

    /// Pairs of a row and an expert, and how many experts they are at most.
    fn routed(&self, routing: Id, experts: usize) -> (u64, u64) {
        let (rows, cols) = self.shape(routing);
        let pairs = rows * cols / 2;
        (pairs, pairs.min(experts as u64))
    }

    pub(super) fn experts_up(
        &self,
        routing: Id,
        gate: Option<WeightRef>,
        up: WeightRef,
        bias: bool,
    ) -> Cost {
        let mut cost = Cost::default();
        for spec in [gate, Some(up)].into_iter().flatten().filter_map(matrix) {
            let (pairs, experts) = self.routed(routing, spec.experts);
            cost += self.products(&spec, pairs);
            cost.weight_bytes += experts * self.packed(MatrixSpec { experts: 1, ..spec });
            // The function or the product with it, and the bias.
            cost.flops += pairs * spec.rows as u64 * (1 + u64::from(bias));
        }
        cost
    }

    pub(super) fn experts_down(&self, routing: Id, down: WeightRef, bias: bool) -> Cost {
        let Some(spec) = matrix(down) else { return Cost::default() };
        let (pairs, experts) = self.routed(routing, spec.experts);
        let mut cost = self.products(&spec, pairs);
        cost.weight_bytes = experts * self.packed(MatrixSpec { experts: 1, ..spec });
        // Times the expert's weight, into the sum; and the bias.
        cost.flops += pairs * spec.rows as u64 * (2 + u64::from(bias));
        cost
    }
}
