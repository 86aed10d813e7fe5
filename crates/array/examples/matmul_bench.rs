//! Measures the matrix kernels on one thread: streaming decode and a prompt of 512 tokens.
//!
//! `cargo run --release -p longrun-array --example matmul_bench [FORMAT]`

use std::ops::Range;
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

/// Seconds for a slice of panels, in the best fifth of slices: short ones, so that on a busy
/// machine some are undisturbed, and a whole matrix between two visits of one.
fn seconds(panels: usize, slice: usize, mut work: impl FnMut(Range<usize>)) -> f64 {
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed().as_secs_f64() < 0.6 {
        for first in (0..panels).step_by(slice) {
            let before = Instant::now();
            work(first..first + slice);
            times.push(before.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 5]
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

    fn run(&mut self, isa: Isa, exact: bool, rows: usize, panels: Range<usize>) {
        let Self { layout, w, .. } = self;
        // SAFETY: one thread, and rows of `layout.rows()` numbers.
        let y = unsafe { Output::new(self.y.as_mut_ptr(), rows, layout.rows()) };
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
    println!("format        isa     mode  | GB/s of weights at M = 1, 4, 8, 16 | Gop/s at M = 512");
    for format in Format::ALL {
        if wanted.as_ref().is_some_and(|name| *name != format.name()) {
            continue;
        }
        // 64 Ki rows of 4096: more than the caches of most machines.
        let mut large = Bench::new(format, 16, 1 << 16);
        let mut prompt = Bench::new(format, 512, 1024);
        for &isa in &isas {
            for exact in [false, true] {
                if !exact && !format.quantises_activations() {
                    continue;
                }
                let mode = if exact { "exact" } else { "q8" };
                print!("{:13} {:7} {mode:5} |", format.name(), isa.name());
                let (panels, slice) = (large.layout.panels(), 16);
                let bytes = (slice * large.layout.panel_bytes()) as f64;
                for rows in [1, 4, 8, 16] {
                    let time = seconds(panels, slice, |p| large.run(isa, exact, rows, p));
                    print!(" {:6.1}", bytes / time * 1e-9);
                }
                let time = seconds(64, 2, |p| prompt.run(isa, exact, 512, p));
                println!(" | {:6.1}", 2.0 * 512.0 * 32.0 * K as f64 / time * 1e-9);
            }
        }
    }
}
