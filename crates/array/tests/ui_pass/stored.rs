//! The twin: what advances is a host integer.
use longrun_array::*;

use std::cell::Cell;

struct Cache {
    left_padding: Cell<Option<usize>>,
}

struct Model {
    table: Weight,
    cache: Cache,
}

impl Record for Model {
    fn record<'s>(&self, step: Step<'s>) {
        let x = step.ids().embed(&self.table, 1.0);
        self.cache.left_padding.set(Some(x.cols()));
        step.emit(x.take_outputs());
    }
}

fn main() {}
