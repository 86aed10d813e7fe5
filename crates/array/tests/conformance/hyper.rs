//! Cases of hyper-connections.

use crate::cases::{Model, Rig, model, sum};

pub(crate) fn weights(rig: &mut Rig) -> Model {
    let n = rig.rng.int(1, 8);
    let all = 2 * n + n * n;
    let (table, scales, bases) =
        (rig.table(all), rig.vector(3, -2.0, 2.0), rig.vector(all, -1.0, 1.0));
    let (scale, base) = (rig.vector(1, -2.0, 2.0), rig.vector(n, -1.0, 1.0));
    let iters = rig.rng.int(1, 20);
    model(move |step| {
        let z = step.ids().embed(&table, 2.0);
        let pre = z.columns(1, n).hyper_weights(&scale, &base, n, (1, 1e-6));
        z.hyper_weights(&scales, &bases, n, (iters, 1e-6)).concat(pre, 1)
    })
}

pub(crate) fn mix_in(rig: &mut Rig) -> Model {
    let (n, cols) = (rig.rng.int(1, 8), rig.rng.int(1, 70));
    let table = rig.table(n * cols + n);
    model(move |step| {
        let [streams, weights] = step.ids().embed(&table, 1.0).split([n * cols, n]);
        streams.hyper_in(weights)
    })
}

pub(crate) fn mix_out(rig: &mut Rig) -> Model {
    let (n, cols) = (rig.rng.int(1, 8), rig.rng.int(1, 70));
    let table = rig.table(n * cols + cols + n + n * n);
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        let [streams, y, weights] = x.split([n * cols, cols, n + n * n]);
        sum([streams.hyper_out(y, weights), streams])
    })
}
