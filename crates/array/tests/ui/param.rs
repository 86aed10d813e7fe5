//! A host integer takes part in tensor arithmetic.
use longrun_array::*;

struct Model {
    table: Weight,
}

impl Record for Model {
    fn record<'s>(&self, step: Step<'s>) {
        let x = step.ids().embed(&self.table, 1.0);
        step.emit((x + step.positions()).take_outputs());
    }
}

fn main() {}
