//! What can go wrong in this crate. Recording errors carry the model's source line; nothing carries a lifetime.

use std::panic::Location;

use crate::key::Key;
use crate::ledger::LimitReached;

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the array runtime.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The number of objects would pass its limit.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The device has no memory left for one buffer.
    #[error(
        "{device} could not allocate {bytes} bytes for a {tag} buffer beside {live} that it has{left}"
    )]
    Memory {
        /// Which device.
        device: String,
        /// What was asked for.
        bytes: usize,
        /// For what.
        tag: &'static str,
        /// Bytes that this program has there.
        live: usize,
        /// What is free there, as the end of the sentence; empty where the device does not tell.
        left: String,
    },
    /// A step was written that can't be run; found when it was recorded.
    #[error("{at}: {op}: {what}")]
    Record {
        /// The operation.
        op: &'static str,
        /// Where in the model it was written.
        at: &'static Location<'static>,
        /// What is wrong with it.
        what: String,
    },
    /// The inputs of a step contradict its key, a pool, or each other.
    #[error("step inputs: {0}")]
    Inputs(String),
    /// No plan was prepared for this key.
    #[error("no plan was prepared for {0:?}: prepare it before the first step")]
    NotPrepared(Key),
    /// The set of plans would be too large.
    #[error("{asked} plans were asked for, the most is {most}")]
    TooManyPlans {
        /// Keys to prepare.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// A replay changed the number of live buffers, which it must not.
    #[error(
        "a replay changed the number of live buffers from {before} to {after}: something leaks"
    )]
    LiveCount {
        /// Before the step.
        before: usize,
        /// After it.
        after: usize,
    },
    /// What was asked for must not happen under a step in flight.
    #[error("{steps} steps are in flight: wait for them first")]
    InFlight {
        /// Launched and not yet waited for.
        steps: u64,
    },
    /// More steps were launched than may be in flight, or a ticket was asked for twice.
    #[error("ticket {ticket} is not in flight")]
    Ticket {
        /// The number of the step.
        ticket: u64,
    },
    /// A plan names a buffer that was freed.
    #[error(
        "a plan uses a buffer that was freed: states and weights must outlive the plans that name them"
    )]
    Freed,
    /// A kernel failed.
    #[error("{0}")]
    Device(String),
    /// The bytes of a weight do not fit its shape.
    #[error("weight {name}: {what}")]
    Weight {
        /// The name it was loaded under.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}
