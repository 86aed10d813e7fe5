//! Live buffers over tokens, as an SVG drawn by hand: one line, two axes.

use std::fmt::Write as _;

use crate::cmd::soak::Sample;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 90.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 34.0;

/// The picture.
pub(crate) fn svg(samples: &[Sample], title: &str) -> String {
    let tokens = samples.last().map_or(1, |s| s.tokens).max(1) as f64;
    let most = samples.iter().map(|s| s.live).max().unwrap_or(1).max(1) as f64 * 1.1;
    let x = |t: usize| LEFT + t as f64 / tokens * (WIDTH - LEFT - 20.0);
    let y = |live: usize| HEIGHT - BOTTOM - live as f64 / most * (HEIGHT - BOTTOM - TOP);
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\">live \
         buffers over tokens: {title}</text>\n<path d=\"M {LEFT} {TOP} V {bottom} H {right}\" fill=\"none\" \
         stroke=\"#888\"/>\n",
        bottom = HEIGHT - BOTTOM,
        right = WIDTH - 20.0,
    );
    for part in 0..=4 {
        let live = (most / 1.1 * f64::from(part) / 4.0) as usize;
        let token = (tokens * f64::from(part) / 4.0) as usize;
        let (row, column) = (y(live), x(token));
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{row}\" text-anchor=\"end\">{live}</text>",
            LEFT - 8.0
        );
        let below = HEIGHT - BOTTOM + 18.0;
        let _ = writeln!(
            svg,
            "<text x=\"{column}\" y=\"{below}\" text-anchor=\"middle\">{token}</text>"
        );
    }
    let points: Vec<_> = samples.iter().map(|s| format!("{},{}", x(s.tokens), y(s.live))).collect();
    let points = points.join(" ");
    let _ = writeln!(
        svg,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"2\"/>\n</svg>"
    );
    svg
}
