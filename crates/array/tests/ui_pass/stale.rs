//! The twin: the version that the write made is read.
use longrun_array::*;

struct Model {
    table: Weight,
    keys: State,
    values: State,
}

const SPEC: AttentionSpec = AttentionSpec { heads: 1, scale: 1.0, window: None, softcap: None };

impl Record for Model {
    fn record<'s>(&self, step: Step<'s>) {
        let x = step.ids().embed(&self.table, 1.0);
        let old = step.open(&self.keys);
        let keys = old.write(x);
        let values = step.open(&self.values).write(x);
        step.emit(x.attend(&keys, &values, SPEC).take_outputs());
        let _ = keys;
    }
}

fn main() {}
