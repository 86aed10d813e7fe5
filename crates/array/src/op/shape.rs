//! The shape rule of every operation: what tensor it makes, or what is wrong with its arguments.
//!
//! Owns the checks that kernels rely on: after them every index of a kernel is inside of its tensor, weight or
//! state. Messages are clauses; the recording adds the operation's name and the model's source line.

use super::{Chosen, DeltaHeads, Glu, Groups, Id, Op, SsmHeads, Stretch, Values};
use crate::device::MatrixSpec;
use crate::dims::{Axis, Shape};
use crate::inputs::BLOCK;
use crate::state::{StateKind, StateRef};
use crate::stored::Stored;
use crate::weight::{WeightKind, WeightRef};

/// The most taps of a convolution.
pub const MOST_TAPS: usize = 8;

/// The most query heads that share a key head.
pub const MOST_SHARED_HEADS: usize = 128;

/// The most numbers of a key, and of its value if it has one of its own, where keys are chosen or not f32; and of a value
/// that is a part of its key.
pub const MOST_KEY: usize = 1024;

type Checked = Result<Shape, String>;

impl Op {
    /// The shape of the tensor it makes, `None` if it makes none; or what is wrong with its arguments.
    pub fn shape(&self, of: impl Fn(Id) -> Shape) -> Result<Option<Shape>, String> {
        let of = &of;
        Ok(Some(match *self {
            Self::WriteKv { x, state } => {
                write_kv(of(x), state)?;
                return Ok(None);
            }
            Self::Carry { x, state } => {
                let (has, wants) = (tokens(of(x))?.cols, state.carried()?);
                ensure(has == wants, || format!("x has {has} columns, the state wants {wants}"))?;
                return Ok(None);
            }
            Self::Emit { .. } => return Ok(None),
            Self::Attention { .. } | Self::Select { .. } | Self::Pool { .. } => {
                self.attention_shape(of)?
            }
            Self::Conv { .. } | Self::Decay { .. } | Self::DeltaRule { .. } | Self::Ssm { .. } => {
                self.recurrent_shape(of)?
            }
            Self::Linear { .. }
            | Self::GroupedLinear { .. }
            | Self::Route { .. }
            | Self::ExpertsUp { .. }
            | Self::ExpertsDown { .. } => self.matrix_shape(of)?,
            Self::HyperWeights { .. } | Self::HyperIn { .. } | Self::HyperOut { .. } => {
                self.hyper_shape(of)?
            }
            _ => self.row_shape(of)?,
        }))
    }

    /// Sources, views, and what works number by number or group by group.
    fn row_shape(&self, of: &impl Fn(Id) -> Shape) -> Checked {
        match *self {
            Self::Embed { table, .. } => Ok(Shape::tokens(plain_matrix(table)?.cols)),
            Self::RopeTable { freq, every, stretch, .. } => {
                let n = freq.vector()?;
                let sets = if stretch == Stretch::Choice { 2 } else { 1 };
                ensure(n.is_multiple_of(sets), || format!("{n} frequencies in {sets} sets"))?;
                ensure(every > 0, || "positions in steps of 0".into())?;
                Ok(Shape::tokens(2 * n / sets))
            }
            Self::PositionScale { every, .. } => {
                ensure(every > 0, || "positions in steps of 0".into())?;
                Ok(Shape::tokens(1))
            }
            Self::Carried { state } => Ok(Shape::tokens(state.carried()?)),
            Self::Columns { x, start, cols } => {
                let s = of(x);
                let end = start.saturating_add(cols);
                let fits = cols > 0 && end <= s.cols;
                ensure(fits, || format!("columns {start}..{end} of {}", s.cols))?;
                Ok(Shape { cols, ..s })
            }
            Self::Concat { a, b, groups: n } => {
                same_rows(of(a), of(b))?;
                ensure(
                    n > 0 && of(a).cols.is_multiple_of(n) && of(b).cols.is_multiple_of(n),
                    || format!("{} and {} columns in {n} groups", of(a).cols, of(b).cols),
                )?;
                Ok(Shape { cols: of(a).cols + of(b).cols, ..of(a) })
            }
            Self::TakeOutputs { x } => Ok(Shape { rows: Axis::Outputs, ..tokens(of(x))? }),
            Self::Add { a, b } => same(of(a), of(b)),
            Self::Apply { x, .. } => Ok(of(x)),
            Self::Gate { gate, x, .. } => {
                let (g, s) = (of(gate), of(x));
                if g.cols == 1 && g.rows == s.rows { Ok(s) } else { same(g, s) }
            }
            Self::RmsNorm { x, weight, group, .. } => norm(of(x), weight, group),
            Self::GatedRmsNorm { x, gate, weight, group, .. } => {
                norm(same(of(x), of(gate))?, weight, group)
            }
            Self::LayerNorm { x, weight, bias, .. } => {
                let (s, w, b) = (of(x), weight.vector()?, bias.vector()?);
                ensure(w == b, || format!("a weight of {w} and a bias of {b}"))?;
                groups(s, w)
            }
            Self::UnitNorm { x, group, .. } => groups(of(x), group),
            Self::Rope { x, table, dim, start, .. } => {
                let t = of(table);
                same_rows(of(x), t)?;
                ensure(t.cols.saturating_add(start) <= dim, || {
                    format!("{} rotated columns from {start} on in heads of {dim}", t.cols)
                })?;
                groups(of(x), dim)
            }
            _ => unreachable!("another rule's operation"),
        }
    }

    fn matrix_shape(&self, of: &impl Fn(Id) -> Shape) -> Checked {
        match *self {
            Self::Linear { x, weight, bias, low_rank } => {
                let s = linear(of(x), weight, bias)?;
                low_rank.map_or(Ok(()), |l| l.check([s.cols, of(x).cols]))?;
                Ok(s)
            }
            Self::GroupedLinear { x, weight } => {
                let (s, m) = (of(x), matrix(weight)?);
                ensure(s.cols == m.experts * m.cols, || {
                    format!(
                        "x has {} columns, {} groups of {} want more",
                        s.cols, m.experts, m.cols
                    )
                })?;
                Ok(Shape { cols: m.experts * m.rows, ..s })
            }
            Self::Route { logits, .. } => self.route(of(logits)),
            Self::ExpertsUp { x, routing, gate, up, bias, f } => {
                let u = matrix(up)?;
                let g = matrix(gate.unwrap_or(up))?;
                ensure(g.experts == u.experts && g.rows == u.rows && g.cols == u.cols, || {
                    format!("gate {g:?} and up {u:?} differ")
                })?;
                ensure(of(x).cols == u.cols, || {
                    format!("x has {} columns, experts want {}", of(x).cols, u.cols)
                })?;
                for bias in bias.into_iter().flatten() {
                    expert_bias(bias, u)?;
                }
                ensure(gate.is_some() || matches!(f, Glu::Of(_)), || {
                    format!("{f:?} wants a gate")
                })?;
                Ok(Shape { cols: ranks(of(x), of(routing))? * u.rows, ..of(x) })
            }
            Self::ExpertsDown { x, routing, down, bias } => {
                let d = matrix(down)?;
                let k = ranks(of(x), of(routing))?;
                ensure(of(x).cols == k * d.cols, || {
                    format!("x has {} columns, {k} experts of {} want more", of(x).cols, d.cols)
                })?;
                bias.map_or(Ok(()), |bias| expert_bias(bias, d))?;
                Ok(Shape { cols: d.rows, ..of(x) })
            }
            _ => unreachable!("another rule's operation"),
        }
    }

    fn route(&self, s: Shape) -> Checked {
        let Self::Route { k, scoring, bias, table, gain, .. } = *self else {
            unreachable!("another rule's operation")
        };
        ensure(k > 0 && k <= s.cols, || format!("{k} of {} experts", s.cols))?;
        for each in bias.into_iter().chain(gain) {
            let len = each.vector()?;
            ensure(len == s.cols, || format!("a vector of {len}, {} experts", s.cols))?;
        }
        if let Some(table) = table {
            tokens(s)?;
            let len = table.vector()?;
            ensure(len.is_multiple_of(k), || format!("a table of {len} for {k} experts"))?;
        }
        if let Some(Groups { count, keep }) = scoring.groups {
            let whole = count > 0 && s.cols.is_multiple_of(count) && s.cols / count > 1;
            let enough = keep > 0 && keep <= count && keep * (s.cols / count.max(1)) >= k;
            ensure(whole && enough, || {
                format!("{k} of {} experts, {keep} of {count} groups", s.cols)
            })?;
        }
        Ok(Shape { cols: 2 * k, ..s })
    }

    fn recurrent_shape(&self, of: &impl Fn(Id) -> Shape) -> Checked {
        match *self {
            Self::Conv { x, taps, bias, state, .. } => {
                let s = conv(tokens(of(x))?, taps, state)?;
                let len = bias.map_or(Ok(s.cols), WeightRef::vector)?;
                ensure(len == s.cols, || format!("a bias of {len} for {} columns", s.cols))?;
                Ok(s)
            }
            Self::Decay { x, neg_a, bias, state, .. } => {
                let s = tokens(of(x))?;
                let (a, b) = (neg_a.vector()?, bias.vector()?);
                slots(state, 2 * s.cols, s.cols)?;
                ensure(a == s.cols && b == s.cols, || {
                    format!("x has {} columns, weights {a} and {b}", s.cols)
                })?;
                Ok(s)
            }
            Self::DeltaRule { q, k, v, decay, beta, state, heads } => {
                delta_rule([q, k, v, decay, beta].map(of), state, heads)
            }
            Self::Ssm { x, b, c, dt, neg_a, bias, skip, state, heads, .. } => {
                ssm([x, b, c, dt].map(of), [neg_a, bias, skip], state, heads)
            }
            _ => unreachable!("another rule's operation"),
        }
    }

    fn attention_shape(&self, of: &impl Fn(Id) -> Shape) -> Checked {
        match *self {
            Self::Attention { q, keys, values, entries, chosen, .. } => {
                let q = tokens(of(q))?;
                let s = self.attention(q, keys, values)?;
                let numbers = gathered(keys, values);
                let own = match values {
                    Values::Of(values) => Some(values),
                    Values::Keys { .. } => None,
                };
                for state in [Some(keys), own, entries].into_iter().flatten() {
                    decoded(state, numbers)?;
                }
                if let Some(entries) = entries {
                    let own = matches!(values, Values::Keys { .. });
                    ensure(own && entries.kind == keys.kind, || {
                        format!("entries {:?} beside keys {:?}", entries.kind, keys.kind)
                    })?;
                }
                if let Some(Chosen { list, every }) = chosen {
                    tokens(of(list))?;
                    let unit = entries.map_or(every, |e| e.every);
                    ensure(every > 0 && unit == every, || {
                        format!("a choice of every {every}, entries of every {unit}")
                    })?;
                    ensure(numbers <= MOST_KEY, || {
                        format!("a choice of keys of {numbers}, at most {MOST_KEY}")
                    })?;
                }
                Ok(s)
            }
            Self::Select { q, weights, keys, heads, k, .. } => {
                let StateKind::Keys { heads: 1, dim } = keys.kind else {
                    return Err(format!("wants keys of one head, has {:?}", keys.kind));
                };
                decoded(keys, dim)?;
                let (q, w) = (tokens(of(q))?, tokens(of(weights))?);
                ensure(q.cols == heads * dim && w.cols == heads && k > 0, || {
                    format!("{heads} heads of {dim}: q has {} columns, weights {}", q.cols, w.cols)
                })?;
                Ok(Shape { cols: k, ..q })
            }
            Self::Pool { x, gate, bias, state, every, overlap } => {
                let s = tokens(same(of(x), of(gate))?)?;
                let len = bias.vector()?;
                ensure(every > 0 && len == every * s.cols, || {
                    format!("a bias of {len} for {every} times {} columns", s.cols)
                })?;
                ensure(!overlap || s.cols.is_multiple_of(2), || {
                    format!("halves of {} columns", s.cols)
                })?;
                let cols = if overlap { s.cols / 2 } else { s.cols };
                let len = 2 * every * (s.cols + if overlap { cols } else { 0 });
                slots(state, len, 2 * s.cols)?;
                Ok(Shape { cols, ..s })
            }
            _ => unreachable!("another rule's operation"),
        }
    }

    fn attention(&self, q: Shape, keys: StateRef, values: Values) -> Checked {
        let Self::Attention { heads, window, softcap, sinks, .. } = *self else {
            unreachable!("another rule's operation")
        };
        let StateKind::Keys { heads: hk, dim } = keys.kind else {
            return Err(format!("wants keys, has {:?}", keys.kind));
        };
        let dv = match values {
            Values::Of(values) => {
                let StateKind::Values { heads: hv, dim: dv } = values.kind else {
                    return Err(format!("wants keys and values, has {:?}", values.kind));
                };
                ensure(hk == hv, || format!("{hk} key heads and {hv} value heads"))?;
                ensure(keys.table == values.table && keys.every == 1 && values.every == 1, || {
                    "keys and values have different tables".into()
                })?;
                dv
            }
            Values::Keys { dim: dv } => {
                let fits = dv > 0 && dv <= dim && dv <= MOST_KEY;
                ensure(fits, || format!("values of {dv} in keys of {dim}, at most {MOST_KEY}"))?;
                dv
            }
        };
        ensure(keys.every == 1, || format!("a key for each {} tokens", keys.every))?;
        ensure(heads.is_multiple_of(hk), || format!("{heads} heads over {hk}"))?;
        let want = heads * dim;
        ensure(q.cols == want, || format!("q has {} columns, wants {heads} x {dim}", q.cols))?;
        ensure(heads / hk <= MOST_SHARED_HEADS, || {
            format!("{} query heads a key head, at most {MOST_SHARED_HEADS}", heads / hk)
        })?;
        ensure(window != Some(0), || "a window of 0".into())?;
        ensure(softcap.is_none_or(|c| c > 0.0), || format!("a softcap of {softcap:?}"))?;
        let sinks = sinks.map_or(Ok(heads), WeightRef::vector)?;
        ensure(sinks == heads, || format!("{sinks} sinks for {heads} heads"))?;
        Ok(Shape { cols: heads * dv, ..q })
    }

    fn hyper_shape(&self, of: &impl Fn(Id) -> Shape) -> Checked {
        match *self {
            Self::HyperWeights { z, scale, base, n, .. } => {
                let (s, scales, bases) = (of(z), scale.vector()?, base.vector()?);
                let all = 2 * n + n * n;
                let fits = (s.cols == all && scales == 3) || (s.cols == n && scales == 1);
                ensure(n > 0 && n <= MOST_STREAMS && fits && bases == s.cols, || {
                    format!("{} columns, {scales} scales, {bases} bases for {n} streams", s.cols)
                })?;
                Ok(s)
            }
            Self::HyperIn { streams, weights } => {
                let (s, n) = (of(streams), of(weights).cols);
                same_rows(s, of(weights))?;
                ensure(s.cols.is_multiple_of(n), || format!("{} columns in {n} streams", s.cols))?;
                Ok(Shape { cols: s.cols / n, ..s })
            }
            Self::HyperOut { streams, y, weights } => {
                let (s, h, w) = (of(streams), of(y), of(weights));
                same_rows(s, h)?;
                same_rows(s, w)?;
                let n = s.cols / h.cols.max(1);
                let whole = n > 0 && n <= MOST_STREAMS && n * h.cols == s.cols;
                ensure(whole && w.cols == n + n * n, || {
                    format!("{} columns of streams, {} of y, {} weights", s.cols, h.cols, w.cols)
                })?;
                Ok(s)
            }
            _ => unreachable!("another rule's operation"),
        }
    }
}

/// Numbers of a key, and of its value if it has one of its own.
fn gathered(keys: StateRef, values: Values) -> usize {
    let dim = |kind| match kind {
        StateKind::Keys { dim, .. } | StateKind::Values { dim, .. } => dim,
        StateKind::Slots { .. } | StateKind::Carry { .. } => 0,
    };
    let own = match values {
        Values::Of(values) => dim(values.kind),
        Values::Keys { .. } => 0,
    };
    dim(keys.kind) + own
}

/// What is not f32 is decoded a tile at a time, so the numbers of a key and its value are bounded.
fn decoded(state: StateRef, numbers: usize) -> Result<(), String> {
    ensure(state.stored == Stored::F32 || numbers <= MOST_KEY, || {
        format!("keys of {numbers} as {}, at most {MOST_KEY}", state.stored.name())
    })
}

/// The most streams of hyper-connections.
pub const MOST_STREAMS: usize = 8;

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

/// A row of these operations is a token at a position, not a wanted result.
fn tokens(s: Shape) -> Checked {
    ensure(s.rows == Axis::Tokens, || "wants all tokens, has the wanted results only".into())?;
    Ok(s)
}

fn same_rows(a: Shape, b: Shape) -> Result<(), String> {
    ensure(a.rows == b.rows, || format!("rows of {:?} and of {:?}", a.rows, b.rows))
}

/// How many experts a row of `x` is routed to.
fn ranks(x: Shape, routing: Shape) -> Result<usize, String> {
    same_rows(x, routing)?;
    ensure(routing.cols.is_multiple_of(2), || format!("a routing of {} columns", routing.cols))?;
    Ok(routing.cols / 2)
}

fn expert_bias(bias: WeightRef, m: MatrixSpec) -> Result<(), String> {
    let (len, want) = (bias.vector()?, m.experts * m.rows);
    ensure(len == want, || format!("a bias of {len}, experts want {want}"))
}

fn same(a: Shape, b: Shape) -> Checked {
    ensure(a == b, || format!("shapes {a:?} and {b:?} differ"))?;
    Ok(a)
}

fn groups(s: Shape, group: usize) -> Checked {
    ensure(group > 0 && s.cols.is_multiple_of(group), || {
        format!("{} columns in groups of {group}", s.cols)
    })?;
    Ok(s)
}

/// A weight of one group serves all; a longer one is several groups, again and again.
fn norm(s: Shape, weight: WeightRef, group: usize) -> Checked {
    let len = weight.vector()?;
    let whole = group > 0 && len > 0 && len.is_multiple_of(group);
    ensure(whole, || format!("groups of {group} with a weight of {len}"))?;
    groups(s, len)
}

fn linear(s: Shape, weight: WeightRef, bias: Option<WeightRef>) -> Checked {
    let m = plain_matrix(weight)?;
    ensure(s.cols == m.cols, || format!("x has {} columns, the matrix wants {}", s.cols, m.cols))?;
    if let Some(bias) = bias {
        let len = bias.vector()?;
        ensure(len == m.rows, || format!("a bias of {len} for {} rows", m.rows))?;
    }
    Ok(Shape { cols: m.rows, ..s })
}

fn write_kv(x: Shape, state: StateRef) -> Result<(), String> {
    ensure(state.kind.is_paged(), || "wants a paged state".into())?;
    let unit = state.kind.unit() / BLOCK;
    let cols = tokens(x)?.cols;
    ensure(cols == unit, || format!("x has {cols} columns, the state wants {unit}"))
}

fn conv(x: Shape, taps: WeightRef, state: StateRef) -> Checked {
    let taps = taps.vector()?;
    ensure(taps.is_multiple_of(x.cols) && taps >= x.cols, || {
        format!("{taps} taps for {} columns", x.cols)
    })?;
    ensure(taps / x.cols <= MOST_TAPS, || format!("{} taps, at most {MOST_TAPS}", taps / x.cols))?;
    slots(state, taps - x.cols, x.cols)?;
    Ok(x)
}

fn delta_rule(args: [Shape; 5], state: StateRef, heads: DeltaHeads) -> Checked {
    args.into_iter().try_for_each(|s| tokens(s).map(|_| ()))?;
    let cols = args.map(|s| s.cols);
    // A decay for each value head, or for each key number of each.
    let decays = if cols[3] == heads.hv { heads.hv } else { heads.hv * heads.dk };
    let want = [heads.keys(), heads.keys(), heads.values(), decays, heads.hv];
    ensure(cols == want, || format!("columns {cols:?}, wants {want:?}"))?;
    ensure(heads.hv.is_multiple_of(heads.hk), || "value heads per key head".into())?;
    slots(state, heads.hv * heads.dk * heads.dv, cols[1..].iter().sum())?;
    Ok(args[2])
}

fn ssm(args: [Shape; 4], weights: [WeightRef; 3], state: StateRef, heads: SsmHeads) -> Checked {
    args.into_iter().try_for_each(|s| tokens(s).map(|_| ()))?;
    let SsmHeads { heads: n, groups, dim, state: len } = heads;
    let cols = args.map(|s| s.cols);
    let want = [n * dim, groups * len, groups * len, n];
    ensure(cols == want, || format!("columns {cols:?}, wants {want:?}"))?;
    ensure(groups > 0 && n.is_multiple_of(groups), || format!("{n} heads in {groups} groups"))?;
    for weight in weights {
        let len = weight.vector()?;
        ensure(len == n, || format!("a weight of {len} for {n} heads"))?;
    }
    slots(state, n * len * dim, cols[0] + cols[1] + cols[3])?;
    Ok(args[0])
}

/// Records of `want` numbers; if they have logs, of `brings` numbers a token.
fn slots(state: StateRef, want: usize, brings: usize) -> Result<(), String> {
    let fits = match state.kind {
        StateKind::Slots { len, log } => len == want && (log.depth == 0 || log.inputs == brings),
        StateKind::Keys { .. } | StateKind::Values { .. } | StateKind::Carry { .. } => false,
    };
    ensure(fits, || {
        let kind = state.kind;
        format!("the state is {kind:?}, wants slots of {want} with logs of {brings} a token")
    })
}

fn matrix(w: WeightRef) -> Result<MatrixSpec, String> {
    match w.kind {
        WeightKind::Matrix(spec) => Ok(spec),
        WeightKind::Vector { len } => Err(format!("wants a matrix, has a vector of {len}")),
    }
}

fn plain_matrix(w: WeightRef) -> Result<MatrixSpec, String> {
    let m = matrix(w)?;
    ensure(m.experts == 1, || "a stack of experts is not one matrix".into())?;
    Ok(m)
}
