//! A cache keeps a lazy field from step to step and rebuilds it from itself: how memory grew elsewhere.
use longrun_array::*;

use std::cell::Cell;

struct Cache<'a> {
    left_padding: Cell<Option<Tensor<'a>>>,
}

struct Model<'a> {
    table: Weight,
    cache: Cache<'a>,
}

impl<'a> Record for Model<'a> {
    fn record<'s>(&self, step: Step<'s>) {
        let x = step.ids().embed(&self.table, 1.0);
        self.cache.left_padding.set(Some(x));
        step.emit(x.take_outputs());
    }
}

fn main() {}
