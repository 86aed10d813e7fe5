//! Measures the matrix kernels on one thread: streaming decode and a prompt of 512 tokens.
//!
//! `cargo run --release -p longrun-array --example matmul_bench [FORMAT]`

use std::time::Instant;

use longrun_array::format::Format;
use longrun_array::matmul::{
    Isa, Output, QuantizedRows, Rows, matmul_f32, matmul_q8, quantize_activations,
    quantized_row_bytes,
};
use longrun_array::panel::PanelLayout;

const K: usize = 4096;

/// Bytes of which every `f16` is a tame number.
fn weights(layout: &PanelLayout) -> Vec<u8> {
    (0..layout.bytes()).map(|at| (at * 7 % 31 + 16) as u8).collect()
}

/// Seconds that this thread has run, where Linux tells them: a busy machine does not count.
fn clock(start: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = stat.split(' ').next().and_then(|ran| ran.parse().ok());
    ran.map_or_else(|| start.elapsed().as_secs_f64(), |ran: f64| ran * 1e-9)
}

/// Seconds of the best of the runs that fit in half a second.
fn seconds(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let (first, mut best) = (clock(start), f64::INFINITY);
    let mut before = first;
    while before - first < 0.5 {
        work();
        let after = clock(start);
        best = best.min(after - before);
        before = after;
    }
    best
}

struct Bench {
    layout: PanelLayout,
    w: Vec<u8>,
    x: Vec<f32>,
    xq: Vec<u8>,
    y: Vec<f32>,
}

impl Bench {
    fn new(format: Format, rows: usize, n: usize) -> Self {
        let layout = PanelLayout::new(format, n, K).expect("whole blocks");
        let x: Vec<f32> = (0..rows * K).map(|k| (k * 37 % 255) as f32 / 127.0 - 1.0).collect();
        let bytes = quantized_row_bytes(K);
        let mut xq = vec![0; rows * bytes];
        for (x, xq) in x.chunks_exact(K).zip(xq.chunks_exact_mut(bytes)) {
            quantize_activations(Isa::detect(), x, xq);
        }
        Self { w: weights(&layout), layout, x, xq, y: vec![0.0; rows * n] }
    }

    fn run(&mut self, isa: Isa, exact: bool, rows: usize) {
        let Self { layout, w, .. } = self;
        // SAFETY: one thread, and rows of `layout.rows()` numbers.
        let y = unsafe { Output::new(self.y.as_mut_ptr(), rows, layout.rows()) };
        let panels = 0..layout.panels();
        if exact {
            let x = Rows::new(&self.x[..rows * K], rows, K, K);
            matmul_f32(isa, layout, w, x, None, y, panels);
        } else {
            let xq = &self.xq[..rows * quantized_row_bytes(K)];
            let x = QuantizedRows::new(xq, rows, K);
            matmul_q8(isa, layout, w, x, None, y, panels);
        }
    }
}

fn main() {
    let wanted = std::env::args().nth(1);
    let isas = Isa::available().filter(|&isa| isa != Isa::SCALAR).collect::<Vec<_>>();
    println!("format isa     mode  | GB/s of weights at M = 1, 4, 8, 16 | Gop/s at M = 512");
    for format in Format::ALL {
        if wanted.as_ref().is_some_and(|name| name != format.name()) {
            continue;
        }
        // 64 Ki rows of 4096: more than the caches of most machines.
        let mut large = Bench::new(format, 16, 1 << 16);
        let mut prompt = Bench::new(format, 512, 1024);
        for &isa in &isas {
            for exact in [false, true] {
                if !exact && format.is_float() {
                    continue;
                }
                let mode = if exact { "exact" } else { "q8" };
                print!("{:6} {:7} {mode:5} |", format.name(), isa.name());
                for rows in [1, 4, 8, 16] {
                    let time = seconds(|| large.run(isa, exact, rows));
                    print!(" {:6.1}", large.layout.bytes() as f64 / time * 1e-9);
                }
                let time = seconds(|| prompt.run(isa, exact, 512));
                println!(" | {:6.1}", 2.0 * 512.0 * 1024.0 * K as f64 / time * 1e-9);
            }
        }
    }
}
