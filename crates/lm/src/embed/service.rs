//! The embedder on a thread of its own: lists of texts go in, their vectors come out.
//!
//! Owns the thread. It waits for no reader; a job whose reader has gone is cancelled by it. A panic in the loop ends the
//! jobs that are in it with an error each, and the loop goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};

use super::{Done, Embedder, Pooling, TextId, check};
use crate::engine::{Looker, View};
use crate::error::{Error, Kind, Result};
use crate::worker::Worker;

/// Who is told the vectors of a job, in the order of its texts, on the embedder's thread. It must not wait.
pub type Answer = Box<dyn FnOnce(Result<Vec<Vec<f32>>>) + Send>;

/// Texts that were handed in together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(u64);

enum Command {
    Submit(JobId, Vec<Vec<u32>>, Answer),
    Cancel(JobId),
    Look(Looker),
}

/// A running embedder. Dropping it ends everything in it.
pub struct EmbedService {
    worker: Worker<Command, Embedder>,
    next_id: AtomicU64,
    context: usize,
    vocab: usize,
    width: usize,
    pooling: Pooling,
}

impl EmbedService {
    /// Moves an embedder to a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(embedder: Embedder) -> Result<Self> {
        let (room, vocab) = (embedder.exec.room(), embedder.exec.vocab());
        let (width, pooling) = (embedder.width(), embedder.pooling());
        let work = |inbox| Loop { embedder, inbox, jobs: Vec::new() }.run();
        Ok(Self {
            worker: Worker::start("embedder", work)?,
            next_id: AtomicU64::new(0),
            context: room.context,
            vocab,
            width,
            pooling,
        })
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How hidden states become vectors.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Takes texts; `answer` is told their vectors, or the first error. It is dropped unheard if the job is cancelled.
    ///
    /// # Errors
    /// As [`Embedder::submit`], or the embedder has stopped.
    pub fn submit(&self, texts: Vec<Vec<u32>>, answer: Answer) -> Result<JobId> {
        texts.iter().try_for_each(|ids| check(ids, self.context, self.vocab))?;
        let job = JobId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.worker.send(Command::Submit(job, texts, answer))?;
        Ok(job)
    }

    /// Ends a job. Unknown ones are ignored.
    pub fn cancel(&self, job: JobId) {
        let _ = self.worker.send(Command::Cancel(job));
    }

    /// What the embedder looks like after the step under way, told to `looker`, which is dropped unheard if it stops
    /// before.
    ///
    /// # Errors
    /// The embedder has stopped.
    pub fn look_with(&self, looker: Looker) -> Result<()> {
        self.worker.send(Command::Look(looker))
    }

    /// Ends everything in the embedder and gives it back.
    ///
    /// # Errors
    /// The embedder's thread has died.
    pub fn stop(self) -> Result<Embedder> {
        self.worker.stop()
    }
}

/// Texts whose vectors come one by one.
struct Job {
    id: JobId,
    /// Its texts have the ids from here on.
    first: TextId,
    /// Empty for a text that is not through.
    vectors: Vec<Vec<f32>>,
    missing: usize,
    answer: Answer,
}

impl Job {
    fn texts(&self) -> impl Iterator<Item = TextId> + use<> {
        let TextId(first) = self.first;
        (first..first + self.vectors.len() as u64).map(TextId)
    }

    fn tell(self, vectors: Result<()>) {
        let vectors = vectors.map(|()| self.vectors);
        // A reader that panics is its own affair.
        let _ = catch_unwind(AssertUnwindSafe(|| (self.answer)(vectors)));
    }
}

struct Loop {
    embedder: Embedder,
    inbox: Receiver<Command>,
    jobs: Vec<Job>,
}

impl Loop {
    fn run(mut self) -> Embedder {
        let mut done = Vec::new();
        while self.read_inbox() {
            let embedder = &mut self.embedder;
            let stepped = catch_unwind(AssertUnwindSafe(|| embedder.step(&mut done)));
            if stepped.is_err() {
                let error = Error::new(Kind::Bug, "the embedder's loop panicked");
                self.embedder.fail_all(&error.hint("please report this"), &mut done);
            }
            done.drain(..).for_each(|done| self.deliver(done));
        }
        let jobs: Vec<JobId> = self.jobs.iter().map(|job| job.id).collect();
        jobs.into_iter().for_each(|job| self.cancel(job));
        self.embedder
    }

    /// Takes in all commands, and waits for one if there is nothing to do. False once it is told to stop.
    fn read_inbox(&mut self) -> bool {
        loop {
            let command = if self.embedder.texts() == (0, 0) {
                self.inbox.recv().ok()
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => Some(command),
                    Err(mpsc::TryRecvError::Empty) => return true,
                    Err(mpsc::TryRecvError::Disconnected) => None,
                }
            };
            match command {
                Some(Command::Submit(job, texts, answer)) => self.submit(job, texts, answer),
                Some(Command::Cancel(job)) => self.cancel(job),
                Some(Command::Look(looker)) => {
                    let view = self.look();
                    let _ = catch_unwind(AssertUnwindSafe(|| looker(view)));
                }
                None => return false,
            }
        }
    }

    fn submit(&mut self, id: JobId, texts: Vec<Vec<u32>>, answer: Answer) {
        let (missing, first) = (texts.len(), TextId(self.embedder.next_id));
        let job = Job { id, first, vectors: vec![Vec::new(); missing], missing, answer };
        if missing == 0 {
            return job.tell(Ok(()));
        }
        self.jobs.push(job);
        for ids in texts {
            if let Err(error) = self.embedder.submit(ids) {
                return self.end(self.jobs.len() - 1, Err(error));
            }
        }
    }

    fn cancel(&mut self, id: JobId) {
        let Some(i) = self.jobs.iter().position(|job| job.id == id) else { return };
        let job = self.jobs.remove(i);
        job.texts().for_each(|text| self.embedder.cancel(text));
    }

    fn deliver(&mut self, (text, vector): Done) {
        let Some(i) = self.jobs.iter().position(|job| job.texts().any(|t| t == text)) else {
            return;
        };
        let job = &mut self.jobs[i];
        match vector {
            Ok(vector) => {
                job.vectors[(text.0 - job.first.0) as usize] = vector;
                job.missing -= 1;
                if job.missing == 0 {
                    self.end(i, Ok(()));
                }
            }
            Err(error) => self.end(i, Err(error)),
        }
    }

    /// Tells a job its end. What is left of it is of no use.
    fn end(&mut self, i: usize, vectors: Result<()>) {
        let job = self.jobs.remove(i);
        if vectors.is_err() {
            job.texts().for_each(|text| self.embedder.cancel(text));
        }
        job.tell(vectors);
    }

    fn look(&self) -> View {
        let (running, waiting) = self.embedder.texts();
        let exec = &self.embedder.exec;
        View {
            stats: self.embedder.stats,
            running,
            waiting,
            kept: 0,
            blocks: exec.pools().paged(),
            usage: exec.usage(),
        }
    }
}
