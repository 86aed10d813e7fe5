//! What steps cost and where their time goes.
//!
//! Owns nothing: the runtime counts and the device measures.

use longrun_array::{LiveRow, Peaks, Profile, StepCost};

use super::Executor;

impl Executor {
    /// What the last step cost; `None` before the first.
    pub fn step_cost(&self) -> Option<StepCost> {
        let rows = LiveRow::of(&self.inputs.ragged());
        self.runtime.cost(self.inputs.key(), &rows).filter(|_| !rows.is_empty())
    }

    /// Profiles steps from now on, or does so no more; what was seen before is forgotten either way.
    pub fn profile(&mut self, on: bool) {
        self.runtime.profile(on);
    }

    /// Where the time of steps went since [`profile`](Self::profile) was switched on; `None` while it is off.
    pub fn profiled(&self) -> Option<&Profile> {
        self.runtime.profiled()
    }

    /// What the machine can do at most, measured now; `None` if the device runs nothing.
    pub fn peaks(&self) -> Option<Peaks> {
        self.runtime.peaks()
    }
}
