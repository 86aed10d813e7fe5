//! A compiled plan: its launches, recorded into a graph, and into one with clocks where it is measured.
//!
//! Owns the graphs and what they must not outlive. Refuses to know operations: it gets their launches.

use std::sync::Arc;
use std::time::Duration;

use super::driver::{Event, Graph, Stream};
use super::kernel::Function;
use super::module::Kernels;
use super::recorder::Launch;
use crate::device::{IN_FLIGHT, Shared};
use crate::plan::Plan;

/// Shared memory that every kernel may have without asking.
const PLAIN_SHARED: u32 = 48 << 10;

/// A graph with an event before its first node, and one behind each.
struct Timed {
    graph: Graph,
    events: Vec<Event>,
}

pub(super) struct Compiled {
    pub(super) plan: Arc<Plan>,
    pub(super) shared: Shared,
    pub(super) graph: Graph,
    launches: Vec<(Function, Launch)>,
    /// One for each place of the ring, since a step's times are read when the next one runs.
    timed: [Option<Timed>; IN_FLIGHT],
}

impl Compiled {
    pub(super) fn new(
        (plan, shared): (Arc<Plan>, Shared),
        launches: Vec<Launch>,
        kernels: &mut Kernels,
        (stream, most_shared): (&Stream, usize),
    ) -> Result<Self, String> {
        let mut found = Vec::with_capacity(launches.len());
        for launch in launches {
            let (family, name) = launch.kernel;
            let function = kernels.get(family, name)?;
            if launch.shared as usize > most_shared {
                let want = launch.shared;
                return Err(format!("{name} wants {want} bytes of shared memory of {most_shared}"));
            }
            if launch.shared > PLAIN_SHARED {
                function.allow_shared(most_shared)?;
            }
            found.push((function, launch));
        }
        let graph = stream.capture(|| found.iter_mut().try_for_each(|l| queue(stream, l)))?;
        Ok(Self { plan, shared, graph, launches: found, timed: [None, None] })
    }

    /// The graph with clocks for a place of the ring, made when it is first asked for.
    pub(super) fn measure(&mut self, stream: &Stream, place: usize) -> Result<&Graph, String> {
        if self.timed[place].is_none() {
            let events = (0..=self.plan.nodes.len()).map(|_| Event::new(true));
            let events = events.collect::<Result<Vec<_>, _>>()?;
            let launches = &mut self.launches;
            let graph = stream.capture(|| {
                events[0].record_in_graph(stream)?;
                let mut left = launches.iter_mut().peekable();
                for (node, event) in events[1..].iter().enumerate() {
                    while let Some(launch) = left.next_if(|(_, l)| l.node == node) {
                        queue(stream, launch)?;
                    }
                    event.record_in_graph(stream)?;
                }
                Ok(())
            })?;
            self.timed[place] = Some(Timed { graph, events });
        }
        let timed = self.timed[place].as_ref();
        timed.map(|timed| &timed.graph).ok_or_else(|| "no graph with clocks".into())
    }

    /// How long each node took in the last measured step of a place, which is done.
    pub(super) fn times(&self, place: usize, times: &mut Vec<Duration>) -> Result<(), String> {
        times.clear();
        let Some(timed) = &self.timed[place] else { return Ok(()) };
        for pair in timed.events.windows(2) {
            times.push(Duration::from_secs_f64(pair[1].since(&pair[0])?.max(0.0)));
        }
        Ok(())
    }
}

fn queue(stream: &Stream, (function, launch): &mut (Function, Launch)) -> Result<(), String> {
    let mut pointers = launch.arguments.pointers();
    let shape = (launch.grid, launch.block, launch.shared);
    // SAFETY: `Launch::check` has compared the arguments with the kernel's source. Addresses are of memory that the
    // recorder has measured, in which the planner keeps what is written apart from what is read.
    unsafe { function.launch(stream, shape, &mut pointers) }
}
