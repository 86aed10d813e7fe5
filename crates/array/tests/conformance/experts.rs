//! Experts of all formats with rows as long as those that a CUDA device reads in wide pieces, against the definition.

use longrun_array::{
    CpuDevice, CudaDryRun, Device, ExpertsUp, Format, Glu, Head, Key, Limits, Map, Outputs,
    Runtime, Scoring, Step, TABLES, Weight,
};

use crate::common::{IDS, Rng, Row, cuda, definition, net, random_matrix, run_step, spec, token};
use crate::distance;

const EXPERTS: usize = 6;
const RANKS: usize = 3;

/// Columns: not as many as all lanes of a warp take in whole turns.
const COLS: usize = 1280;

/// Outputs of an expert: not as many as a block has in whole turns.
const ROWS: usize = 37;

#[derive(Clone, Copy)]
enum Way {
    Gated,
    Lone,
    Down,
}

/// What a device makes of a step of one way: the same weights and tokens on every device.
fn run(format: Format, way: Way, device: Box<dyn Device>) -> longrun_array::Result<Vec<f32>> {
    let (mut rt, mut rng) = (Runtime::new(device, Limits::default()), Rng::new(9));
    let width = if matches!(way, Way::Down) { RANKS * COLS } else { COLS };
    let table = random_matrix(&rt, &mut rng, spec(Format::F32, 1, IDS, width + EXPERTS)).0;
    let [a, b] = [0; 2].map(|_| random_matrix(&rt, &mut rng, spec(format, EXPERTS, ROWS, COLS)).0);
    let biases = rng.floats(EXPERTS * ROWS, -1.0, 1.0);
    let bias = Weight::vector(&rt, "bias", &biases)?;
    let write = |step: Step<'_>| {
        let [x, logits] = step.ids().embed(&table, 0.1).split([width, EXPERTS]);
        let routing = logits.route(RANKS, Scoring::softmax(true));
        let biases = Some([&bias, &bias]);
        step.emit(match way {
            Way::Gated => {
                let f = Glu::Of(Map::Silu);
                x.experts_up(routing, ExpertsUp { gate: Some(&a), up: &b, bias: biases, f })
            }
            Way::Lone => {
                let f = Glu::Of(Map::Relu2);
                x.experts_up(routing, ExpertsUp { gate: None, up: &a, bias: None, f })
            }
            Way::Down => x.experts_down(routing, &a, Some(&bias)),
        });
    };
    let key = Key::fit(8, 3, Outputs::PerRow, Head::Logits).unwrap();
    rt.prepare(&net(write), &[key], [0; TABLES])?;
    let row = |(slot, ids): (u32, &[u32])| Row { ids: ids.into(), slot, ..token(0, 0) };
    let rows = [(0, &[5, 9][..]), (1, &[77]), (2, &[0, 96, 31, 8, 50])].map(row);
    let cols = if matches!(way, Way::Down) { ROWS } else { RANKS * ROWS };
    run_step(&mut rt, key, &rows, 8 * cols)
}

#[test]
fn long_rows_of_experts_fit_their_kernels() {
    for (format, way) in ways() {
        let recorded = run(format, way, Box::new(CudaDryRun::new()));
        recorded.unwrap_or_else(|error| panic!("{}: {error}", format.name()));
    }
}

#[test]
fn long_rows_of_experts_agree_with_the_definition_on_cuda() {
    let Some(_held) = cuda() else { return };
    let mut wrong = Vec::new();
    for (format, way) in ways() {
        let want = run(format, way, Box::new(CpuDevice::new(definition()))).unwrap();
        let got = cuda()
            .ok_or_else(|| "the device is gone".to_owned())
            .and_then(|device| run(format, way, device).map_err(|error| error.to_string()));
        let off = got.and_then(|got| distance(&[got], &[want], 2e-5));
        wrong.extend(off.err().map(|what| format!("{}: {what}", format.name())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn ways() -> impl Iterator<Item = (Format, Way)> {
    let of = |format| [Way::Gated, Way::Lone, Way::Down].map(|way| (format, way));
    Format::ALL.into_iter().flat_map(of)
}
