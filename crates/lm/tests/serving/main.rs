//! Many requests at once, with kept beginnings, drafts, too little memory and cancellations: each answered as if alone.
//!
//! `LONGRUN_OPERATIONS` is the number of random operations a family (300 unless set; `cargo xtask prove` sets 10,000).

mod alone;
mod answers;
mod budget;
mod chat;
mod embed;
#[path = "../families/mod.rs"]
mod families;
mod faults;
mod faulty;
mod heads;
mod queue;
mod scores;
mod speculation;
