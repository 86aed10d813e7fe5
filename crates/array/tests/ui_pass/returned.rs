//! The twin: the tensor is emitted.
use longrun_array::*;

struct Model {
    table: Weight,
}

impl Model {
    fn hidden<'s>(&self, step: Step<'s>) -> Tensor<'s> {
        step.ids().embed(&self.table, 1.0)
    }
}

impl Record for Model {
    fn record<'s>(&self, step: Step<'s>) {
        step.emit(self.hidden(step).take_outputs());
    }
}

fn main() {}
