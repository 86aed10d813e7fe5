//! A tensor of one step is used in a step that is recorded inside of it, in the most sheltered way there is.
use longrun_array::*;

use std::cell::RefCell;

struct Outer {
    table: Weight,
    runtime: RefCell<Runtime>,
}

/// A step that is recorded while another one is.
struct Inner<'w, 'a> {
    table: &'w Weight,
    outer: Tensor<'a>,
}

impl<'a> Record for Inner<'_, 'a> {
    fn record<'s>(&self, step: Step<'s>) {
        let x = step.ids().embed(self.table, 1.0);
        step.emit((x + self.outer).take_outputs());
    }
}

impl Record for Outer {
    fn record<'s>(&self, step: Step<'s>) {
        let outer = step.ids().embed(&self.table, 1.0);
        let inner = Inner { table: &self.table, outer };
        let _ = self.runtime.borrow_mut().prepare(&inner, &[step.key()], [0; TABLES]);
        step.emit(outer.take_outputs());
    }
}

fn main() {}
