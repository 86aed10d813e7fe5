use super::super::super::lanes::Isa;
use super::super::tile::{Tile, merge_tile};
use super::*;
use proptest::prelude::*;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn int(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % below
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.int(1 << 20) as f32 / (1 << 19) as f32 - 1.0).collect()
    }

    /// What a query sees of some blocks that follow each other: nothing, all of them or a part.
    fn seen(&mut self, blocks: usize) -> Range<usize> {
        let end = [0, blocks * BLOCK, 1 + self.int(blocks * BLOCK)][self.int(3)];
        [0, self.int(end + 1)][self.int(2)]..end
    }
}

/// Some blocks in a type that kernels load.
enum Kept {
    F32(Vec<f32>),
    F16(Vec<[u8; 2]>),
    BF16(Vec<[u8; 2]>),
}

impl Kept {
    fn new(random: &mut Random, n: usize) -> Self {
        let halves = |x: Vec<f32>, f: fn(f32) -> [u8; 2]| x.into_iter().map(f).collect();
        let x = random.floats(n);
        match random.int(3) {
            0 => Self::F32(x),
            1 => Self::F16(halves(x, |x| ::half::f16::from_f32(x).to_le_bytes())),
            _ => Self::BF16(halves(x, |x| ::half::bf16::from_f32(x).to_le_bytes())),
        }
    }

    fn numbers(&self, at: usize, len: usize) -> Numbers<'_> {
        match self {
            Self::F32(x) => Numbers::F32(&x[at..][..len]),
            Self::F16(x) => Numbers::F16(&x[at..][..len]),
            Self::BF16(x) => Numbers::BF16(&x[at..][..len]),
        }
    }

    fn floats(&self, at: usize, len: usize) -> Vec<f32> {
        match self.numbers(at, len) {
            Numbers::F32(x) => x.to_vec(),
            Numbers::F16(x) => x.iter().map(|x| half(u16::from_le_bytes(*x))).collect(),
            Numbers::BF16(x) => x.iter().map(|x| brain(*x)).collect(),
        }
    }

    /// Makes what nobody sees something that shows wherever it is multiplied.
    fn poison(&mut self, places: impl Iterator<Item = usize>) {
        for at in places {
            match self {
                Self::F32(x) => x[at] = f32::NAN,
                Self::F16(x) | Self::BF16(x) => x[at] = [0xff; 2],
            }
        }
    }
}

proptest! {
    /// Queries together have the bits of each alone by the kernel of one, on every instruction set, whatever lies where
    /// a query does not look.
    #[test]
    fn queries_together_have_the_bits_of_each_alone(
        dim in 1..70_usize, dv in 1..140_usize, count in 1..20_usize, capped: bool, seed: u64,
    ) {
        const BLOCKS: usize = 3;
        let mut random = Random(seed | 1);
        let (scale, softcap) = (0.3, if capped { 5.0 } else { 0.0 });
        let q = random.floats(count * dim);
        let seen: Vec<_> = (0..count).map(|_| random.seen(BLOCKS)).collect();
        let mut k = Kept::new(&mut random, BLOCKS * dim * BLOCK);
        let mut v = Kept::new(&mut random, BLOCKS * dv * BLOCK);
        let unseen = |p: &usize| !seen.iter().any(|seen| seen.contains(p));
        let mut unseen: Vec<usize> = (0..BLOCKS * BLOCK).filter(unseen).collect();
        // And one that some may see: it is theirs alone.
        unseen.push(random.int(BLOCKS * BLOCK));
        let key = |p: usize, d: usize| (p / BLOCK * dim + d) * BLOCK + p % BLOCK;
        k.poison(unseen.iter().flat_map(|p| (0..dim).map(|d| key(*p, d))));
        v.poison(unseen.iter().flat_map(|p| p * dv..(p + 1) * dv));
        let place = |seen: &Range<usize>, j: usize| {
            let [from, to] = [seen.start, seen.end].map(|p| p.saturating_sub(j * BLOCK).min(BLOCK));
            from..to
        };
        let sink = |i: usize| Running::from([f32::NEG_INFINITY, 0.5][i % 2]);

        let mut want = vec![0.0; count * dv];
        for (i, (sums, q)) in want.chunks_mut(dv).zip(q.chunks(dim)).enumerate() {
            let mut run = sink(i);
            for j in 0..BLOCKS {
                let (k, v) = (k.floats(j * dim * BLOCK, dim * BLOCK), v.floats(j * dv * BLOCK, dv * BLOCK));
                let Range { start: from, end: to } = place(&seen[i], j);
                if from < to {
                    let tile = Tile { k: &k, v: &v, from, to };
                    merge_tile(Isa::SCALAR, &mut run, sums, q, tile, scale, softcap);
                }
            }
            sums.iter_mut().for_each(|sum| *sum /= run.sum);
        }
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        for isa in Isa::available() {
            let mut got = vec![7.0; count * dv];
            let rows = got.chunks_mut(dv).zip(q.chunks(dim)).enumerate();
            let mut queries: Vec<_> =
                rows.map(|(i, (sums, q))| Query { q, sums, run: sink(i), seen: 0..0, fresh: true }).collect();
            for j in 0..BLOCKS {
                queries.iter_mut().zip(&seen).for_each(|(query, seen)| query.seen = place(seen, j));
                let (k, v) = (k.numbers(j * dim * BLOCK, dim * BLOCK), v.numbers(j * dv * BLOCK, dv * BLOCK));
                let merge = Merge { queries: &mut queries, k, v, ahead: [None; 2], scale, softcap };
                // SAFETY: the kernel has no pointers but those of its slices.
                unsafe { isa.run(merge) };
            }
            queries.iter_mut().for_each(Query::end);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                prop_assert_eq!(bits(*got), bits(*want), "{:?} query {} number {}", isa, i / dv, i % dv);
            }
        }
    }
}
