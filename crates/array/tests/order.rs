//! The order rule: the bits of a token's result depend on its sequence alone. Not on the batch, not on how its tokens
//! are cut into steps, not on the plan's capacities, threads or the instruction set.
//!
//! The twin reads each sequence alone, token by token, on one thread of the plainest instruction set.

mod common;

use common::{
    MOST_ROWS, MOST_WINDOW, Rng, SLOTS, Sequence, WIDTHS, cpu, cut, net, random_matrix, script_key,
    script_keys, sequences, spec,
};
use longrun_array::matmul::Isa;
use longrun_array::{
    AttentionSpec, CpuOptions, DecayCurve, Delta, DeltaHeads, ExpertsUp, Format, Map, Record,
    Runtime, Scoring, State, StateKind, Step, Stored, Tensor, Weight,
};
use proptest::prelude::*;

const HIDDEN: usize = 96;
const KV: usize = 2;
const HEADS: usize = 4;
const DIM: usize = 20;
const EXPERTS: usize = 6;
const RANKS: usize = 2;
const INNER: usize = 64;
const DELTA: DeltaHeads = DeltaHeads { hk: 2, hv: 4, dk: 12, dv: 40 };
const TAPS: usize = 4;
const LOGITS: usize = 83;
const MIXED: usize = 2 * DELTA.keys() + DELTA.values();
const WIDE: usize = 256;

/// One layer of each kind over quantised and plain weights.
struct Tiny {
    embed: Weight,
    freq: Weight,
    norm: Weight,
    /// `(q, k, v)` of both attentions, and the way back.
    attention: [(Weight, Weight, [State; 2], Option<usize>); 2],
    mixer: Weight,
    taps: Weight,
    window: State,
    memory: State,
    sums: State,
    neg_a: Weight,
    bias: Weight,
    delta_out: Weight,
    router: Weight,
    experts: [Weight; 3],
    wide: [Weight; 2],
    head: Weight,
}

impl Tiny {
    /// `stored` are the types of keys and of values.
    fn new(rt: &Runtime, rng: &mut Rng, stored: [Stored; 2]) -> Self {
        let mut m = |format, experts, rows, cols| {
            random_matrix(rt, rng, spec(format, experts, rows, cols)).0
        };
        let qkv = (HEADS + 2 * KV) * DIM;
        let cache = |table| {
            let blocks = MOST_ROWS * WIDTHS[table];
            let kinds = [
                StateKind::Keys { heads: KV, dim: DIM },
                StateKind::Values { heads: KV, dim: DIM },
            ];
            [0, 1].map(|i| State::entries(rt, kinds[i], blocks, table, 1, stored[i]).unwrap())
        };
        let slots = |len| State::new(rt, StateKind::slots(len), SLOTS, 0).unwrap();
        let back = HEADS * DIM;
        let full =
            (m(Format::Q8_0, 1, qkv, HIDDEN), m(Format::F32, 1, HIDDEN, back), cache(0), None);
        let window = Some(MOST_WINDOW - 3);
        let ring =
            (m(Format::Q4_0, 1, qkv, HIDDEN), m(Format::BF16, 1, HIDDEN, back), cache(1), window);
        let matrices = (
            m(Format::Q5_1, 1, common::IDS, HIDDEN),
            m(Format::Q4_1, 1, MIXED + 2 * DELTA.hv, HIDDEN),
            m(Format::Q8_0, 1, HIDDEN, DELTA.values()),
            m(Format::F32, 1, EXPERTS, HIDDEN),
            [m(Format::Q4_0, EXPERTS, INNER, HIDDEN), m(Format::Q4_0, EXPERTS, INNER, HIDDEN)],
            m(Format::Q5_0, EXPERTS, HIDDEN, INNER),
            [m(Format::F16, 1, WIDE, HIDDEN), m(Format::Q6_K, 1, HIDDEN, WIDE)],
            m(Format::BF16, 1, LOGITS, HIDDEN),
        );
        let (embed, mixer, delta_out, router, [gate, up], down, wide, head) = matrices;
        let mut v = |n, low, high| Weight::vector(rt, "v", &rng.floats(n, low, high)).unwrap();
        Self {
            embed,
            freq: v(DIM / 2, 1e-3, 1.0),
            norm: v(HIDDEN, 0.5, 1.5),
            attention: [full, ring],
            mixer,
            taps: v(TAPS * MIXED, -1.0, 1.0),
            window: slots((TAPS - 1) * MIXED),
            sums: slots(2 * DELTA.hv),
            memory: slots(DELTA.hv * DELTA.dk * DELTA.dv),
            neg_a: v(DELTA.hv, -0.3, -0.01),
            bias: v(DELTA.hv, -1.0, 1.0),
            delta_out,
            router,
            experts: [gate, up, down],
            wide,
            head,
        }
    }

    fn norm<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        x.rms_norm(&self.norm, HIDDEN, 1e-6)
    }

    fn attend<'s>(&self, x: Tensor<'s>, layer: usize) -> Tensor<'s> {
        let (qkv, back, [keys, values], window) = &self.attention[layer];
        let step = x.step();
        let qkv = self.norm(x).linear(qkv, None);
        let [q, k, v] = qkv.split([HEADS * DIM, KV * DIM, KV * DIM]);
        let turns = step.positions().rope_table(&self.freq, 1.0);
        let [q, k] = [q, k].map(|x| x.unit_norm(DIM, 1e-6, 1.0).rope(turns, DIM, false));
        let (keys, values) = (step.open(keys).write(k), step.open(values).write(v));
        let spec = AttentionSpec { heads: HEADS, scale: 4.0, window: *window, softcap: None };
        x + q.attend(&keys, &values, spec).linear(back, None)
    }

    fn recur<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let step = x.step();
        let mixed = self.norm(x).linear(&self.mixer, None);
        let [mixed, a, b] = mixed.split([MIXED, DELTA.hv, DELTA.hv]);
        let (mixed, _) = mixed.conv(&self.taps, None, step.open(&self.window), Map::Silu);
        let [q, k, v] = mixed.split([DELTA.keys(), DELTA.keys(), DELTA.values()]);
        let [q, k] = [q, k].map(|x| x.unit_norm(DELTA.dk, 1e-6, 1.0));
        let (decay, _) =
            a.decay(&self.neg_a, &self.bias, step.open(&self.sums), DecayCurve::Softplus);
        let beta = b.apply(Map::Sigmoid);
        let (y, _) = Delta { q, k, v, decay, beta }.rule(DELTA, step.open(&self.memory));
        x + y.unit_norm(DELTA.dv, 1e-6, 1.0).linear(&self.delta_out, None)
    }

    fn route<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let h = self.norm(x);
        let routing = h.linear(&self.router, None);
        let routing = routing.route(RANKS, Scoring::softmax(true));
        let [gate, up, down] = &self.experts;
        x + h
            .experts_up(routing, ExpertsUp::gated(gate, up, Map::Silu))
            .experts_down(routing, down, None)
    }
}

impl Record for Tiny {
    fn record<'s>(&self, step: Step<'s>) {
        let x = step.ids().embed(&self.embed, 1.0);
        let x = self.route(self.recur(self.attend(self.attend(x, 0), 1)));
        let [up, down] = &self.wide;
        let x = x + self.norm(x).linear(up, None).apply(Map::GeluTanh).linear(down, None);
        step.emit(self.norm(x).take_outputs().linear(&self.head, None));
    }
}

/// The bits of every result, by sequence and position.
type Bits = Vec<Vec<Vec<u32>>>;

fn run(
    (options, stored): (CpuOptions, [Stored; 2]),
    sequences: &[Sequence],
    steps: &[Vec<(usize, common::Row)>],
) -> Bits {
    let mut rt = cpu(options);
    let model = Tiny::new(&rt, &mut Rng::new(11), stored);
    rt.prepare(&model, &script_keys(), WIDTHS).unwrap();
    let mut bits: Bits = vec![Vec::new(); sequences.len()];
    for step in steps {
        let rows: Vec<_> = step.iter().map(|(_, row)| row.clone()).collect();
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let key = script_key(&rows);
        let result = common::run_step(&mut rt, key, &rows, tokens * LOGITS).unwrap();
        let mut results = result.chunks_exact(LOGITS);
        for (sequence, row) in step {
            for logits in results.by_ref().take(row.ids.len()) {
                bits[*sequence].push(logits.iter().map(|x| x.to_bits()).collect());
            }
        }
    }
    bits
}

/// Each sequence alone, token by token.
fn one_by_one(sequences: &[Sequence]) -> Vec<Vec<(usize, common::Row)>> {
    let tokens = sequences.iter().enumerate();
    tokens.flat_map(|(i, s)| (0..s.ids.len()).map(move |t| vec![(i, s.row(t, t + 1))])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    #[test]
    fn neighbours_cuts_threads_and_instruction_sets_change_no_bit(
        seed: u64, rows in 1..=MOST_ROWS, threads in 1..4_usize, isa in 0..3_usize, exact: bool,
        stored in prop::array::uniform2(prop::sample::select(&Stored::ALL[..])),
    ) {
        let mut rng = Rng::new(seed);
        let sequences = sequences(&mut rng, rows, 130);
        let steps = cut(&mut rng, &sequences);
        let plain = CpuOptions { threads: 1, isa: Some(Isa::SCALAR), exact, reference: false };
        let isa = Isa::available().nth(isa).unwrap_or(Isa::detect());
        let machine = CpuOptions { threads, isa: Some(isa), ..plain };
        let want = run((plain, stored), &sequences, &one_by_one(&sequences));
        prop_assert!(want.iter().flatten().flatten().all(|x| f32::from_bits(*x).is_finite()));
        prop_assert!(run((machine, stored), &sequences, &steps) == want, "other bits on {:?} {:?}", machine, stored);
    }
}

/// Two sequences that read the same blocks of a common beginning see what each would see alone.
#[test]
fn a_shared_beginning_is_as_good_as_an_own_one() {
    let mut rng = Rng::new(5);
    let mut alone = sequences(&mut rng, 2, 1);
    let ids = |n, rng: &mut Rng| (0..n).map(|_| rng.int(0, 96) as u32).collect::<Vec<_>>();
    let (start, ends) = (ids(64, &mut rng), [ids(7, &mut rng), ids(9, &mut rng)]);
    for (sequence, end) in alone.iter_mut().zip(&ends) {
        sequence.ids = [&start[..], end].concat();
    }
    let attention_only = |rt: &Runtime, stored| {
        let tiny = Tiny::new(rt, &mut Rng::new(11), [stored; 2]);
        net(move |step| {
            let x = tiny.attend(step.ids().embed(&tiny.embed, 1.0), 0);
            step.emit(x.take_outputs().linear(&tiny.head, None));
        })
    };
    let run = |sequences: &[Sequence], first_reads: [usize; 2], stored| {
        let mut rt = cpu(common::threads(2));
        let model = attention_only(&rt, stored);
        rt.prepare(&model, &script_keys(), WIDTHS).unwrap();
        let begin = [sequences[0].row(0, 64), sequences[1].row(0, first_reads[1])];
        let begin = &begin[..1 + usize::from(first_reads[1] > 0)];
        common::run_step(&mut rt, script_key(begin), begin, 0).unwrap();
        let end: Vec<_> = sequences.iter().map(|s| s.row(64, s.ids.len())).collect();
        common::run_step(&mut rt, script_key(&end), &end, 16 * LOGITS).unwrap()
    };
    let mut shared = alone.clone();
    let (first, second) = shared.split_at_mut(1);
    second[0].tables[0][..2].copy_from_slice(&first[0].tables[0][..2]);
    for stored in Stored::ALL {
        assert_eq!(run(&shared, [64, 0], stored), run(&alone, [64, 64], stored), "{stored:?}");
    }
}
