//! Runs the matrix kernels an exact number of times on one thread, for `cargo xtask count`, which counts instructions.
//! Owns no clock: what it does is the same on every machine.
//!
//! `cargo run -p longrun-array --example matmul_count FORMAT ROWS TIMES`

use longrun_array::format::Format;
use longrun_array::matmul::{
    Isa, Output, QuantizedRows, Rows, matmul_f32, matmul_q8, quantize_activations,
    quantized_row_bytes,
};
use longrun_array::panel::PanelLayout;

/// The matrix is `[N, K]`.
const N: usize = 256;
const K: usize = 2048;
/// Rows of activations that there are at most.
const MOST: usize = 64;

/// The products of the first `rows` rows, `times` times.
fn products(isa: Isa, layout: &PanelLayout, rows: usize, times: usize) -> f32 {
    // Bytes of which every `f16` is a tame number.
    let w: Vec<u8> = (0..layout.bytes()).map(|at| (at * 7 % 31 + 16) as u8).collect();
    let x: Vec<f32> = (0..MOST * K).map(|k| (k * 37 % 255) as f32 / 127.0 - 1.0).collect();
    let (bytes, mut y) = (quantized_row_bytes(K), vec![0.0; MOST * N]);
    let mut xq = vec![0; MOST * bytes];
    for _ in 0..times {
        // SAFETY: one thread, and rows of `N` numbers.
        let out = unsafe { Output::new(y.as_mut_ptr(), rows, N) };
        if layout.format().quantises_activations() {
            for (x, xq) in x.chunks_exact(K).zip(xq.chunks_exact_mut(bytes)).take(rows) {
                quantize_activations(isa, x, xq);
            }
            let x = QuantizedRows::new(&xq[..rows * bytes], rows, K);
            matmul_q8(isa, layout, &w, x, None, out, 0..layout.panels());
        } else {
            let x = Rows::new(&x[..rows * K], rows, K, K);
            matmul_f32(isa, layout, &w, x, None, out, 0..layout.panels());
        }
    }
    y.iter().sum()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = args.first().map(String::as_str).unwrap_or_default();
    let format = Format::ALL.into_iter().find(|format| format.name() == wanted);
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<usize>().ok());
    let rows = number(1).filter(|rows| (1..=MOST).contains(rows));
    let layout = format.and_then(|format| PanelLayout::new(format, N, K));
    let (Some(layout), Some(rows), Some(times)) = (layout, rows, number(2)) else {
        eprintln!("usage: matmul_count FORMAT ROWS TIMES, with at most {MOST} rows");
        std::process::exit(2);
    };
    let isa = Isa::detect();
    println!("{}: {}", isa.name(), products(isa, &layout, rows, times));
}
