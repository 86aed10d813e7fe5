//! Weights of every format against sums in f64 over the exact numbers of their bytes.
//!
//! Bounds, with `S = sum |x w|` over the row of the weight: float weights and the exact mode `1e-5 S + 1e-6`; the fast
//! mode of quantised weights rounds activations to 8 bits in blocks of 32, so `sum over blocks of max|x| / 253 * sum |w|`
//! more.

use std::panic::{RefUnwindSafe, catch_unwind};

use longrun_array::{
    CpuOptions, ExpertsUp, Format, Head, Key, Limits, Map, Outputs, Runtime, Scoring, Step, TABLES,
    Weight,
};

use crate::common::{
    IDS, Rng, Row, cpu, cuda, machines, net, random_matrix, run_step, spec, token,
};

/// A number and how far from it a kernel may be.
#[derive(Clone, Copy)]
struct Bound(f64, f64);

/// `x . w`, as `quantised` activations allow it.
fn dot(x: &[f32], w: &[f32], quantised: bool) -> Bound {
    let (mut sum, mut magnitude, mut rounding) = (0.0, 0.0, 0.0);
    for (x, w) in x.chunks(32).zip(w.chunks(32)) {
        let peak = x.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
        for (&x, &w) in x.iter().zip(w) {
            let product = f64::from(x) * f64::from(w);
            sum += product;
            magnitude += product.abs();
            rounding += f64::from(peak) / 253.0 * f64::from(w).abs();
        }
    }
    Bound(sum, 1e-5 * magnitude + 1e-6 + if quantised { rounding } else { 0.0 })
}

/// Columns for a format, not a multiple of 16 where it has no blocks.
fn columns(format: Format) -> usize {
    match format.block_len() {
        _ if format.is_float() => 37,
        len if len > 32 => len,
        _ => 96,
    }
}

/// What multiplies.
#[derive(Clone, Copy, Debug)]
enum On {
    Cpu(CpuOptions),
    Cuda,
}

impl On {
    fn runtime(self) -> Runtime {
        match self {
            Self::Cpu(options) => cpu(options),
            Self::Cuda => {
                Runtime::new(cuda().expect("there was a device before"), Limits::default())
            }
        }
    }
}

/// Runs `check` for every format, precision and machine of the CPU.
fn for_each(check: impl Fn(Format, bool, On)) {
    for format in Format::ALL {
        for exact in [true, false] {
            for options in machines(exact) {
                check(format, !exact && format.quantises_activations(), On::Cpu(options));
            }
        }
    }
}

/// Runs `check` for every format on a CUDA device, where there is one; all formats are tried before one fails.
fn for_each_on_cuda(check: impl Fn(Format, bool, On) + RefUnwindSafe) {
    let Some(_held) = cuda() else { return };
    let tried =
        Format::ALL.map(|format| (format, catch_unwind(|| check(format, false, On::Cuda)).is_ok()));
    let wrong: Vec<_> = tried.iter().filter(|(_, ok)| !ok).map(|(f, _)| f.name()).collect();
    assert!(wrong.is_empty(), "wrong on cuda: {wrong:?}");
}

/// Rows of two, one and five tokens, all different.
fn batch() -> Vec<Row> {
    let row = |(slot, ids): (u32, &[u32])| Row { ids: ids.into(), slot, ..token(0, 0) };
    [(0, &[5, 9][..]), (1, &[77]), (2, &[0, 96, 31, 8, 50])].map(row).into()
}

fn ids() -> Vec<usize> {
    batch().iter().flat_map(|row| &row.ids).map(|id| *id as usize).collect()
}

/// Records `write`, runs the batch, and returns `cols` numbers a token.
fn results(rt: &mut Runtime, write: impl for<'s> Fn(Step<'s>), cols: usize) -> Vec<f32> {
    let key = Key::fit(8, 3, Outputs::PerRow, Head::Logits).unwrap();
    rt.prepare(&net(write), &[key], [0; TABLES]).unwrap();
    run_step(rt, key, &batch(), ids().len() * cols).unwrap()
}

fn check(what: &str, got: &[f32], want: impl Iterator<Item = Bound>) {
    let want: Vec<_> = want.collect();
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (got, Bound(want, bound))) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= bound, "{what} at {at}: {got} for {want}, {bound} allowed");
    }
}

fn lookup(format: Format, _: bool, on: On) {
    let (mut rt, mut rng, cols) = (on.runtime(), Rng::new(3), columns(format));
    let (table, numbers) = random_matrix(&rt, &mut rng, spec(format, 1, IDS, cols));
    let got = results(&mut rt, |step| step.emit(step.ids().embed(&table, 1.5)), cols);
    let want = ids().into_iter().flat_map(|id| &numbers[id * cols..][..cols]);
    assert!(got.iter().eq(want.map(|x| x * 1.5).collect::<Vec<_>>().iter()), "{format:?}");
}

#[test]
fn lookups_are_exact() {
    for_each(lookup);
}

#[test]
fn lookups_are_exact_on_cuda() {
    for_each_on_cuda(lookup);
}

fn linear_layer(format: Format, quantised: bool, on: On) {
    let (mut rt, mut rng) = (on.runtime(), Rng::new(4));
    let (rows, cols) = (83, columns(format));
    let (table, x) = random_matrix(&rt, &mut rng, spec(Format::F32, 1, IDS, cols));
    let (weight, w) = random_matrix(&rt, &mut rng, spec(format, 1, rows, cols));
    let b = rng.floats(rows, -1.0, 1.0);
    let bias = Weight::vector(&rt, "bias", &b).unwrap();
    let write = |step: Step<'_>| {
        step.emit(step.ids().embed(&table, 1.0).linear(&weight, Some(&bias)));
    };
    let got = results(&mut rt, write, rows);
    let (x, w, b) = (&x, &w, &b);
    let want = ids().into_iter().flat_map(|id| {
        (0..rows).map(move |n| {
            let Bound(y, e) = dot(&x[id * cols..][..cols], &w[n * cols..][..cols], quantised);
            Bound(y + f64::from(b[n]), e)
        })
    });
    check(&format!("{} {on:?}", format.name()), &got, want);
}

#[test]
fn linear_layers_are_within_their_bound() {
    for_each(linear_layer);
}

#[test]
fn linear_layers_are_within_their_bound_on_cuda() {
    for_each_on_cuda(linear_layer);
}

const EXPERTS: usize = 5;
const RANKS: usize = 2;

/// The two best of these logits: weights (which sum to 1) and numbers.
fn best(logits: &[f32]) -> [(f64, usize); RANKS] {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let e = [0, 1].map(|rank| f64::from(logits[order[rank]] - logits[order[0]]).exp());
    [0, 1].map(|rank| (e[rank] / (e[0] + e[1]), order[rank]))
}

fn experts_up(format: Format, quantised: bool, on: On) {
    let (mut rt, mut rng) = (on.runtime(), Rng::new(5));
    let (inner, cols) = (71, columns(format));
    let table = spec(Format::F32, 1, IDS, cols + EXPERTS);
    let (table, x) = random_matrix(&rt, &mut rng, table);
    let [(gate, g), (up, u)] =
        [0; 2].map(|_| random_matrix(&rt, &mut rng, spec(format, EXPERTS, inner, cols)));
    let write = |step: Step<'_>| {
        let [x, logits] = step.ids().embed(&table, 1.0).split([cols, EXPERTS]);
        let routing = logits.route(RANKS, Scoring::softmax(true));
        step.emit(x.experts_up(routing, ExpertsUp::gated(&gate, &up, Map::Silu)));
    };
    let got = results(&mut rt, write, RANKS * inner);
    let mut want = Vec::new();
    for id in ids() {
        let (x, logits) = x[id * (cols + EXPERTS)..][..cols + EXPERTS].split_at(cols);
        for (_, e) in best(logits) {
            for n in 0..inner {
                let at = (e * inner + n) * cols;
                let Bound(g, eg) = dot(x, &g[at..][..cols], quantised);
                let Bound(u, eu) = dot(x, &u[at..][..cols], quantised);
                let silu = g / (1.0 + (-g).exp());
                // Silu is nowhere steeper than 1.1.
                let slack = 1.1 * eg * (u.abs() + eu) + silu.abs() * eu;
                want.push(Bound(silu * u, slack + 1e-6 * (silu * u).abs()));
            }
        }
    }
    check(&format!("{} {on:?}", format.name()), &got, want.into_iter());
}

#[test]
fn experts_are_within_their_bound_on_the_way_up() {
    for_each(experts_up);
}

#[test]
fn experts_are_within_their_bound_on_the_way_up_on_cuda() {
    for_each_on_cuda(experts_up);
}

fn experts_down(format: Format, quantised: bool, on: On) {
    let (mut rt, mut rng) = (on.runtime(), Rng::new(6));
    let (rows, inner) = (83, columns(format));
    let width = RANKS * inner + EXPERTS;
    let (table, x) = random_matrix(&rt, &mut rng, spec(Format::F32, 1, IDS, width));
    let (down, d) = random_matrix(&rt, &mut rng, spec(format, EXPERTS, rows, inner));
    let write = |step: Step<'_>| {
        let [x, logits] = step.ids().embed(&table, 1.0).split([RANKS * inner, EXPERTS]);
        let routing = logits.route(RANKS, Scoring::softmax(true));
        step.emit(x.experts_down(routing, &down, None));
    };
    let got = results(&mut rt, write, rows);
    let mut want = Vec::new();
    for id in ids() {
        let (x, logits) = x[id * width..][..width].split_at(RANKS * inner);
        let best = best(logits);
        for n in 0..rows {
            let parts = best.iter().zip(x.chunks_exact(inner)).map(|((weight, e), x)| {
                let Bound(y, e) = dot(x, &d[(e * rows + n) * inner..][..inner], quantised);
                Bound(weight * y, weight * e + 1e-6 * y.abs())
            });
            want.push(parts.fold(Bound(0.0, 0.0), |a, b| Bound(a.0 + b.0, a.1 + b.1)));
        }
    }
    check(&format!("{} {on:?}", format.name()), &got, want.into_iter());
}

#[test]
fn experts_are_within_their_bound_on_the_way_down() {
    for_each(experts_down);
}

#[test]
fn experts_are_within_their_bound_on_the_way_down_on_cuda() {
    for_each_on_cuda(experts_down);
}
