//! What the integration tests share: numbers from a seed, random weights, random ragged batches, recording by closure.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

pub mod deferred;
pub mod drafts;
pub mod small;

use longrun_array::{
    BLOCK, CpuDevice, CpuOptions, CudaDevice, Device, Format, Head, Key, Limits, MatrixSpec,
    NullDevice, Outputs, Record, RowInput, Runtime, Step, TABLES, Ticket, Wanted, Weight,
    matmul::Isa,
};

/// Numbers from a seed, the same on every machine.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as u32
    }

    /// An integer in `low..=high`.
    pub fn int(&mut self, low: usize, high: usize) -> usize {
        low + self.next() as usize % (high - low + 1)
    }

    /// `n` numbers in `low..high`.
    pub fn floats(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        let unit = |rng: &mut Self| (rng.next() >> 7) as f32 / (1 << 24) as f32;
        (0..n).map(|_| low + (high - low) * unit(self)).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.int(0, i));
        }
    }
}

/// Random bytes of a matrix, with tame floats where the format keeps its own.
pub fn random_rows(rng: &mut Rng, spec: &MatrixSpec) -> Vec<u8> {
    let numbers = spec.experts * spec.rows * spec.cols;
    if spec.format.is_float() {
        let mut bytes = vec![0; spec.format.row_bytes(numbers).unwrap()];
        assert!(spec.format.quantize_row(&rng.floats(numbers, -1.0, 1.0), &mut bytes));
        return bytes;
    }
    let mut bytes = vec![0; numbers / spec.format.block_len() * spec.format.block_bytes()];
    bytes.iter_mut().for_each(|byte| *byte = rng.int(0, 255) as u8);
    for block in bytes.chunks_exact_mut(spec.format.block_bytes()) {
        tame(spec.format, block);
    }
    bytes
}

/// Gives the scales of a random block an exponent from a small range.
fn tame(format: Format, block: &mut [u8]) {
    let (halves, floats): (&[usize], &[usize]) = match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4_NL | Format::IQ4_XS => (&[1], &[]),
        Format::IQ1_S | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => (&[1], &[]),
        Format::IQ3_XXS | Format::IQ3_S => (&[1], &[]),
        Format::TQ1_0 => (&[53], &[]),
        Format::TQ2_0 => (&[65], &[]),
        Format::IQ1_M => {
            block[55] = block[55] & 0x8f | 0x20;
            block[53] &= 0x3f;
            return;
        }
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => (&[1, 3], &[]),
        Format::Q2_K => (&[81, 83], &[]),
        Format::Q3_K => (&[109], &[]),
        Format::Q6_K => (&[209], &[]),
        Format::Affine(f) if f.is_wide() => (&[], &[3, 7]),
        Format::Affine(_) => (&[1, 3], &[]),
        Format::Fp4(f) if !f.is_wide() => (&[1], &[]),
        Format::Fp4(_) | Format::Fp8(_) => (&[], &[3]),
        Format::MXFP4 => {
            block[0] = block[0] & 7 | 0x74;
            return;
        }
        Format::F16 | Format::BF16 | Format::F32 => unreachable!("floats are handled above"),
    };
    halves.iter().for_each(|&at| block[at] = block[at] & 0x83 | 0x20);
    floats.iter().for_each(|&at| block[at] = block[at] & 0x81 | 0x3c);
}

/// A random matrix on a device, and its exact numbers.
pub fn random_matrix(rt: &Runtime, rng: &mut Rng, spec: MatrixSpec) -> (Weight, Vec<f32>) {
    let bytes = random_rows(rng, &spec);
    let mut numbers = vec![0.0; spec.experts * spec.rows * spec.cols];
    spec.format.dequantize_row(&bytes, &mut numbers);
    (Weight::matrix(rt, "matrix", spec, &bytes).unwrap(), numbers)
}

/// `experts` matrices of `[rows, cols]`.
pub fn spec(format: Format, experts: usize, rows: usize, cols: usize) -> MatrixSpec {
    MatrixSpec { format, experts, rows, cols }
}

/// A step written as a closure.
pub struct Net<F>(pub F);

impl<F: for<'s> Fn(Step<'s>)> Record for Net<F> {
    fn record<'s>(&self, step: Step<'s>) {
        (self.0)(step);
    }
}

/// Ties a closure to the signature that [`Net`] wants.
pub fn net<F: for<'s> Fn(Step<'s>)>(f: F) -> Net<F> {
    Net(f)
}

pub fn null() -> Runtime {
    Runtime::new(Box::new(NullDevice::new()), Limits::default())
}

pub fn cpu(options: CpuOptions) -> Runtime {
    Runtime::new(Box::new(CpuDevice::new(options)), Limits::default())
}

pub fn threads(threads: usize) -> CpuOptions {
    CpuOptions { threads, ..CpuOptions::default() }
}

/// A CUDA device of this machine; none, which is said, if there is none. `LONGRUN_CUDA` makes that a failure.
pub fn cuda() -> Option<Box<dyn Device>> {
    match CudaDevice::new(0) {
        Ok(device) => Some(Box::new(device)),
        Err(what) if std::env::var_os("LONGRUN_CUDA").is_some() => panic!("{what}"),
        Err(what) => {
            eprintln!("cuda was not tried: {what}");
            None
        }
    }
}

/// The plain kernels: the definition.
pub fn definition() -> CpuOptions {
    CpuOptions { threads: 1, isa: Some(Isa::SCALAR), exact: true, reference: true }
}

/// Every instruction set of this machine with one thread and with three.
pub fn machines(exact: bool) -> impl Iterator<Item = CpuOptions> {
    let options =
        move |isa, threads| CpuOptions { threads, isa: Some(isa), exact, reference: false };
    Isa::available().flat_map(move |isa| [options(isa, 1), options(isa, 3)])
}

/// One row of a step, owned.
#[derive(Clone, Debug)]
pub struct Row {
    pub ids: Vec<u32>,
    pub past: usize,
    /// Tokens before these that are in the log.
    pub logged: usize,
    /// How many of the logged tokens and these stay out of the records, from the end on.
    pub drafts: usize,
    pub slot: u32,
    pub adapter: usize,
    pub wanted: Wanted,
    pub tables: [Vec<u32>; TABLES],
}

impl Row {
    pub fn input(&self) -> RowInput<'_> {
        let Self { ref ids, past, logged, drafts, slot, adapter, wanted, ref tables } = *self;
        let confirmed = (logged + ids.len()).wrapping_sub(drafts);
        let tables = std::array::from_fn(|i| &tables[i][..]);
        let (stretch, carried) = (1.0, past % MOST_CARRIED);
        #[rustfmt::skip]
        let input = RowInput {
            ids, past, logged, confirmed, slot, adapter, wanted, stretch, carried, tables,
        };
        input
    }
}

/// Launches one step of these rows and returns the first `numbers` of its result.
pub fn run_step(
    rt: &mut Runtime,
    key: Key,
    rows: &[Row],
    numbers: usize,
) -> longrun_array::Result<Vec<f32>> {
    let (ticket, _) = launch_step(rt, key, rows)?;
    let mut result = vec![f32::NAN; numbers];
    rt.wait(ticket, &mut result)?;
    Ok(result)
}

/// Launches a step of these rows; returns how many tokens they have, too.
pub fn launch_step(
    rt: &mut Runtime,
    key: Key,
    rows: &[Row],
) -> longrun_array::Result<(Ticket, usize)> {
    let mut inputs = rt.inputs();
    inputs.begin(key);
    rows.iter().try_for_each(|row| inputs.push(row.input()))?;
    Ok((rt.launch(&inputs)?, rows.iter().map(|row| row.ids.len()).sum()))
}

/// A key for one token of one row with a result.
pub fn one() -> Key {
    Key::fit(1, 1, Outputs::PerRow, Head::Logits).unwrap()
}

/// A row of one token without tables.
pub fn token(id: u32, past: usize) -> Row {
    let tables = std::array::from_fn(|_| Vec::new());
    let ids = vec![id];
    Row { ids, past, logged: 0, drafts: 0, slot: 0, adapter: 0, wanted: Wanted::Last, tables }
}

/// Rows (of a table, of tokens) that scripts draw ids from.
pub const IDS: usize = 97;
/// A row's first token reads a unit of carried numbers below this.
pub const MOST_CARRIED: usize = 40;
/// Records in slot states.
pub const SLOTS: usize = 8;
/// Sequences in a script, at most.
pub const MOST_ROWS: usize = 5;
/// Tokens of one row of a step, at most.
pub const CHUNK: usize = 48;
/// The widest window of a script.
pub const MOST_WINDOW: usize = 70;
/// Entries of a table: of table 0 all blocks of a sequence, of table 1 a ring for [`MOST_WINDOW`].
pub const WIDTHS: [usize; TABLES] = [9, (MOST_WINDOW + CHUNK).div_ceil(BLOCK) + 1, 0, 0];

/// A sequence of a script: its ids and its place in the pools.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub ids: Vec<u32>,
    pub slot: u32,
    pub tables: [Vec<u32>; TABLES],
}

impl Sequence {
    /// The row that reads tokens `from..to`.
    pub fn row(&self, from: usize, to: usize) -> Row {
        let (slot, tables, ids) = (self.slot, self.tables.clone(), self.ids[from..to].to_vec());
        let (past, wanted) = (from, Wanted::All);
        Row { ids, past, logged: 0, drafts: 0, slot, adapter: 0, wanted, tables }
    }
}

/// Random sequences of `1..=most` tokens, with distinct slots and blocks in random order.
pub fn sequences(rng: &mut Rng, count: usize, most: usize) -> Vec<Sequence> {
    let mut slots: Vec<u32> = (0..SLOTS as u32).collect();
    rng.shuffle(&mut slots);
    let pools: Vec<Vec<u32>> = (0..TABLES)
        .map(|table| {
            let mut blocks: Vec<u32> = (0..(MOST_ROWS * WIDTHS[table]) as u32).collect();
            rng.shuffle(&mut blocks);
            blocks
        })
        .collect();
    let sequence = |i: usize| {
        let n = rng.int(1, most);
        let tables = std::array::from_fn(|t| pools[t][i * WIDTHS[t]..(i + 1) * WIDTHS[t]].to_vec());
        let ids = (0..n).map(|_| rng.int(0, IDS - 1) as u32).collect();
        Sequence { ids, slot: slots[i], tables }
    };
    (0..count).map(sequence).collect()
}

/// Cuts sequences into steps at random: some rows rest, some decode, some read up to [`CHUNK`] tokens. Returns rows with
/// the number of their sequence.
pub fn cut(rng: &mut Rng, sequences: &[Sequence]) -> Vec<Vec<(usize, Row)>> {
    let mut done = vec![0; sequences.len()];
    let mut steps = Vec::new();
    while done.iter().zip(sequences).any(|(done, s)| *done < s.ids.len()) {
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        rng.shuffle(&mut order);
        let mut step = Vec::new();
        for i in order {
            let left = sequences[i].ids.len() - done[i];
            let n = [0, 1, 1, rng.int(1, CHUNK), CHUNK][rng.int(0, 4)].min(left);
            if n > 0 {
                step.push((i, sequences[i].row(done[i], done[i] + n)));
                done[i] += n;
            }
        }
        if !step.is_empty() {
            steps.push(step);
        }
    }
    steps
}

/// Every key that a script may need.
pub fn script_keys() -> Vec<Key> {
    let fit = |t, r| Key::fit(t, r, Outputs::PerToken, Head::Logits).unwrap();
    [1, 16, 64, 256].into_iter().flat_map(|t| [fit(t, 1), fit(t, 4), fit(t, 16)]).collect()
}

/// The key that a step of a script takes.
pub fn script_key<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Key {
    let (tokens, rows) = rows.into_iter().fold((0, 0), |(t, r), row| (t + row.ids.len(), r + 1));
    Key::fit(tokens, rows, Outputs::PerToken, Head::Logits).unwrap()
}
