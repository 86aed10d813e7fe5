//! The engine on a thread of its own: requests and cancellations go in, events come out.
//!
//! Owns the thread. It never waits for a reader: events go into queues that hold no more than a request may generate. A
//! reader that has gone is a cancellation. A panic in the loop ends the requests that are in it, and the loop goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use longrun_array::Usage;

use super::{Engine, Event, Request, RowId, Stats};
use crate::adapter::Adapter;
use crate::error::{Error, Kind, Result};
use crate::worker::Worker;

/// Where the events of one request go. False says that nobody reads them any more. It must not wait.
pub type Sink = Box<dyn FnMut(Event) -> bool + Send>;

enum Command {
    Submit(RowId, Box<Request>, Sink),
    Cancel(RowId),
    Look(Looker),
    SetAdapter(usize, Option<Box<Adapter>>, Sender<Result<()>>),
}

/// Who is told what the engine looks like, on the engine's thread. It must not wait.
pub type Looker = Box<dyn FnOnce(View) + Send>;

/// What the engine looks like between two steps.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Counts so far.
    pub stats: Stats,
    /// Rows in service.
    pub running: usize,
    /// Requests without a place.
    pub waiting: usize,
    /// Snapshots that are kept for later texts.
    pub kept: usize,
    /// Blocks that are free, and all blocks.
    pub blocks: (usize, usize),
    /// Buffers and bytes.
    pub usage: Usage,
}

/// A running engine. Dropping it ends everything in it.
pub struct Service {
    worker: Worker<Command, Engine>,
    next_id: AtomicU64,
    context: usize,
    vocab: usize,
}

/// The events of one request, as they come; ends with its last. Dropping it cancels the request.
pub struct Events {
    row: RowId,
    events: Receiver<Event>,
}

impl Events {
    /// The request's id.
    pub fn row(&self) -> RowId {
        self.row
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.recv().ok()
    }
}

impl Service {
    /// Moves an engine to a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(engine: Engine) -> Result<Self> {
        let (context, vocab) = (engine.exec.room().context, engine.exec.vocab());
        let next_id = AtomicU64::new(engine.next_id);
        let work = |inbox| Loop { engine, inbox, sinks: Vec::new() }.run();
        Ok(Self { worker: Worker::start("engine", work)?, next_id, context, vocab })
    }

    /// Takes a request; its events come as they happen.
    ///
    /// # Errors
    /// As [`Request::validate`], or the engine has stopped.
    pub fn submit(&self, request: Request) -> Result<Events> {
        let (sender, events) = mpsc::channel();
        let row = self.submit_to(request, Box::new(move |event| sender.send(event).is_ok()))?;
        Ok(Events { row, events })
    }

    /// The same, with the events going to `sink`, on the engine's thread.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_to(&self, request: Request, sink: Sink) -> Result<RowId> {
        request.validate(self.context, self.vocab)?;
        let mut row = RowId(0);
        // Ids rise in the order in which the engine sees them.
        self.worker.send_next(|| {
            row = RowId(self.next_id.fetch_add(1, Ordering::Relaxed));
            Command::Submit(row, Box::new(request), sink)
        })?;
        Ok(row)
    }

    /// Ends a request; it has no further events once the step under way is over. Unknown ones are ignored.
    pub fn cancel(&self, row: RowId) {
        let _ = self.worker.send(Command::Cancel(row));
    }

    /// What the engine looks like after the step under way.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn look(&self) -> Result<View> {
        let (sender, answer) = mpsc::channel();
        self.look_with(Box::new(move |view| _ = sender.send(view)))?;
        answer.recv().map_err(|_| self.worker.stopped())
    }

    /// The same, told to `looker`, which is dropped unheard if the engine stops before.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn look_with(&self, looker: Looker) -> Result<()> {
        self.worker.send(Command::Look(looker))
    }

    /// Puts an adapter into a slot, or leaves it empty, after the step under way; see [`Engine::set_adapter`].
    ///
    /// # Errors
    /// As [`Engine::set_adapter`], or the engine has stopped.
    pub fn set_adapter(&self, slot: usize, adapter: Option<Adapter>) -> Result<()> {
        let (sender, answer) = mpsc::channel();
        self.worker.send(Command::SetAdapter(slot, adapter.map(Box::new), sender))?;
        answer.recv().map_err(|_| self.worker.stopped())?
    }

    /// Ends everything in the engine and gives it back.
    ///
    /// # Errors
    /// The engine's thread has died.
    pub fn stop(self) -> Result<Engine> {
        self.worker.stop()
    }
}

struct Loop {
    engine: Engine,
    inbox: Receiver<Command>,
    /// Where events go, in rising order of ids.
    sinks: Vec<(RowId, Sink)>,
}

impl Loop {
    fn run(mut self) -> Engine {
        let mut events = Vec::new();
        while self.read_inbox() {
            let engine = &mut self.engine;
            let stepped = catch_unwind(AssertUnwindSafe(|| engine.step(&mut events)));
            if stepped.is_err() {
                let error = Error::new(Kind::Bug, "the engine's loop panicked");
                self.engine.fail_all(&error.hint("please report this"), &mut events);
            }
            events.drain(..).for_each(|event| self.deliver(event));
        }
        let rows: Vec<RowId> = self.sinks.drain(..).map(|(row, _)| row).collect();
        rows.into_iter().for_each(|row| self.engine.cancel(row));
        self.engine
    }

    /// Takes in all commands, and waits for one if there is nothing to do. False once it is told to stop.
    fn read_inbox(&mut self) -> bool {
        loop {
            let command = if self.engine.rows() == 0 {
                self.inbox.recv().ok()
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => Some(command),
                    Err(mpsc::TryRecvError::Empty) => return true,
                    Err(mpsc::TryRecvError::Disconnected) => None,
                }
            };
            match command {
                Some(Command::Submit(row, request, sink)) => self.submit(row, *request, sink),
                Some(Command::Cancel(row)) => self.cancel(row),
                Some(Command::Look(looker)) => {
                    let view = self.look();
                    // A looker that panics is its own affair.
                    let _ = catch_unwind(AssertUnwindSafe(|| looker(view)));
                }
                Some(Command::SetAdapter(slot, adapter, answer)) => {
                    _ = answer.send(self.engine.set_adapter(slot, adapter.as_deref()));
                }
                None => return false,
            }
        }
    }

    fn submit(&mut self, row: RowId, request: Request, mut sink: Sink) {
        match self.engine.submit_as(row, request) {
            Ok(()) => self.sinks.push((row, sink)),
            Err(error) => _ = sink(Event::Failed { row, error }),
        }
    }

    fn cancel(&mut self, row: RowId) {
        self.engine.cancel(row);
        self.sinks.retain(|(id, _)| *id != row);
    }

    fn deliver(&mut self, event: Event) {
        let row = event.row();
        let Ok(i) = self.sinks.binary_search_by_key(&row, |(id, _)| *id) else { return };
        let last = event.is_last();
        // A sink that panics is a reader that has gone.
        let sink = &mut self.sinks[i].1;
        let read = catch_unwind(AssertUnwindSafe(|| sink(event))).unwrap_or(false);
        if last {
            drop(self.sinks.remove(i));
        } else if !read {
            self.cancel(row);
        }
    }

    fn look(&self) -> View {
        let engine = &self.engine;
        View {
            stats: engine.stats(),
            running: engine.rows.len(),
            waiting: engine.waiting.len(),
            kept: engine.prefixes.len(),
            blocks: engine.exec.pools().paged(),
            usage: engine.exec.usage(),
        }
    }
}
