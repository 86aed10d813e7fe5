//! A small model with an attention, a convolution and a quantised layer, and its steps.

use longrun_array::{
    AttentionSpec, Format, Inputs, Key, Map, Runtime, State, StateKind, Step, Weight,
};

use super::{Row, net, one, random_matrix, spec, token};

pub const COLS: usize = 256;
pub const BLOCKS: usize = 40;
pub const WIDTHS: [usize; 4] = [BLOCKS, 0, 0, 0];

/// An attention, a convolution and a quantised layer.
pub struct Small {
    table: Weight,
    taps: Weight,
    layer: Weight,
    keys: State,
    values: State,
    window: State,
}

fn small(rt: &Runtime) -> Small {
    let mut rng = super::Rng::new(7);
    let mut matrix = |format, rows| random_matrix(rt, &mut rng, spec(format, 1, rows, COLS)).0;
    let state = |kind, units| State::new(rt, kind, units, 0).unwrap();
    Small {
        table: matrix(Format::F32, 50),
        layer: matrix(Format::Q4_K, COLS),
        taps: Weight::vector(rt, "taps", &[0.25; 4 * COLS]).unwrap(),
        keys: state(StateKind::Keys { heads: 4, dim: 64 }, BLOCKS),
        values: state(StateKind::Values { heads: 4, dim: 64 }, BLOCKS),
        window: state(StateKind::slots(3 * COLS), 4),
    }
}

fn write(m: &Small, step: Step<'_>) {
    let x = step.ids().embed(&m.table, 1.0).linear(&m.layer, None);
    let (keys, values) = (step.open(&m.keys).write(x), step.open(&m.values).write(x));
    let spec = AttentionSpec { heads: 4, scale: 0.1, window: None, softcap: None };
    let x = x + x.attend(&keys, &values, spec);
    let (y, _) = x.conv(&m.taps, None, step.open(&m.window), Map::Silu);
    step.emit(y.take_outputs().linear(&m.layer, None));
}

pub fn prepared(mut rt: Runtime, keys: &[Key]) -> (Runtime, Small) {
    let m = small(&rt);
    rt.prepare(&net(|step| write(&m, step)), keys, WIDTHS).unwrap();
    (rt, m)
}

pub fn blocks() -> Vec<u32> {
    (0..BLOCKS as u32).collect()
}

pub fn at(past: usize) -> Row {
    Row { past, tables: [blocks(), vec![], vec![], vec![]], ..token(past as u32 % 50, past) }
}

/// One replay on inputs and a result that were made before.
pub fn replay(rt: &mut Runtime, inputs: &mut Inputs, row: &Row, result: &mut [f32]) {
    inputs.begin(one());
    inputs.push(row.input()).unwrap();
    let ticket = rt.launch(inputs).unwrap();
    rt.wait(ticket, result).unwrap();
}
