//! The array runtime of longrun: steps recorded once and replayed for ever, states written in place, buffers counted.
//!
//! A lazy value cannot outlive its step, and a replay cannot change the number of live buffers.
//!
//! Read in this order: [`ledger`] (what is counted), [`state`], [`weight`] and [`low_rank`] (what is owned), [`step`]
//! (what a model writes), [`op`] (what it can say), [`plan`] (what becomes of it), [`runtime`] (what replays it),
//! [`device`] (what runs it), [`profile`] (what that costs).
//!
//! ```
//! use longrun_array::*;
//!
//! struct Double { table: Weight }
//! impl Record for Double {
//!     fn record<'s>(&self, step: Step<'s>) {
//!         let x = step.ids().embed(&self.table, 1.0); // [T, 2]
//!         step.emit((x + x).take_outputs());
//!     }
//! }
//!
//! let mut rt = Runtime::new(Box::new(NullDevice::new()), Limits::default());
//! let spec = MatrixSpec { format: Format::F32, experts: 1, rows: 8, cols: 2 };
//! let model = Double { table: Weight::matrix(&rt, "table", spec, &[0; 64])? };
//! let key = Key::fit(1, 1, Outputs::PerRow, Head::Logits).unwrap();
//! rt.prepare(&model, &[key], [0; TABLES])?;
//!
//! let (mut inputs, mut result) = (rt.inputs(), [0.0; 2]);
//! let live = rt.usage().live;
//! for past in 0..1000 {
//!     inputs.begin(key);
//!     let (logged, confirmed, wanted, tables) = (0, 1, Wanted::Last, [&[][..]; TABLES]);
//!     let (ids, slot, adapter, stretch, carried) = (&[3], 0, 0, 1.0, 0);
//!     inputs.push(RowInput {
//!         ids, past, logged, confirmed, slot, adapter, wanted, stretch, carried, tables,
//!     })?;
//!     let ticket = rt.launch(&inputs)?;
//!     rt.wait(ticket, &mut result)?;
//! }
//! assert_eq!(rt.usage().live, live);
//! # Ok::<(), Error>(())
//! ```

mod bytes;
pub mod counting;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod dims;
pub mod error;
pub mod format;
pub mod inputs;
pub mod key;
#[cfg(feature = "leak-lab")]
pub mod lab;
pub mod ledger;
pub mod low_rank;
pub mod mapped;
pub mod matmul;
mod memory;
pub mod op;
pub mod panel;
pub mod plan;
pub mod profile;
pub mod quant;
pub mod runtime;
pub mod state;
pub mod step;
pub mod stored;
pub mod weight;

pub use cpu::{CpuDevice, CpuOptions};
pub use cuda::{CudaDevice, CudaDryRun};
pub use device::{BufferId, Device, IN_FLIGHT, MatrixSpec, NullDevice, Ticket};
pub use dims::{Axis, Shape};
pub use error::{Error, Result};
pub use format::{Affine, Format, Fp4, Fp8};
pub use inputs::{BLOCK, InputLayout, Inputs, RowInput, TABLES, Wanted};
pub use key::{Head, Key, Outputs, Rows, Tokens};
pub use ledger::{Count, Growth, Ledger, LimitReached, Tag, Usage};
pub use low_rank::{LowRank, LowRankSpec};
pub use op::{
    DecayCurve, DeltaHeads, Glu, Groups, MOST_STREAMS, Map, Op, RopeHeads, Score, Scoring,
    SsmHeads, Stretch, Values,
};
pub use profile::{Arithmetic, Cost, Kind, LiveRow, Part, Peaks, Profile, StepCost};
pub use runtime::{Limits, Runtime};
pub use state::{Log, State, StateKind};
pub use step::{
    AttentionSpec, Choice, Delta, ExpertsUp, Param, Record, Scan, Seen, SeenValues, Step, Tensor,
    Version,
};
pub use stored::Stored;
pub use weight::{Weight, WeightKind};
