//! A thread that owns something and does what it is told: what services are made of.
//!
//! Owns the end of the queue into which commands go, and the thread's end. The thread stops when the queue has no such
//! end any more; what it owned comes back.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Kind, Result};

/// A thread that takes commands `C` and gives back a `T` at its end. Dropping it waits for that.
pub(crate) struct Worker<C, T> {
    name: &'static str,
    commands: Option<Mutex<Sender<C>>>,
    thread: Option<JoinHandle<T>>,
}

impl<C: Send + 'static, T: Send + 'static> Worker<C, T> {
    /// Starts `work` on a thread called `name`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        name: &'static str,
        work: impl FnOnce(Receiver<C>) -> T + Send + 'static,
    ) -> Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(inbox));
        let failed = |e| Error::new(Kind::Device, format!("no thread for the {name}: {e}"));
        let (thread, commands) = (Some(thread.map_err(failed)?), Some(Mutex::new(commands)));
        Ok(Self { name, commands, thread })
    }

    /// # Errors
    /// The thread has died.
    pub(crate) fn send(&self, command: C) -> Result<()> {
        self.send_next(|| command)
    }

    /// Makes a command and sends it before any other is made: numbers in them rise in the order in which they arrive.
    ///
    /// # Errors
    /// The thread has died.
    pub(crate) fn send_next(&self, make: impl FnOnce() -> C) -> Result<()> {
        let commands = self.commands.as_ref().ok_or_else(|| self.stopped())?;
        let commands = commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.send(make()).map_err(|_| self.stopped())
    }

    /// Lets it end, and gives what it owned.
    ///
    /// # Errors
    /// The thread has died.
    pub(crate) fn stop(mut self) -> Result<T> {
        drop(self.commands.take());
        let stopped = self.stopped();
        self.thread.take().and_then(|thread| thread.join().ok()).ok_or(stopped)
    }

    /// What is said once the thread has died.
    pub(crate) fn stopped(&self) -> Error {
        let what = format!("the {} has stopped", self.name);
        Error::new(Kind::Bug, what).hint("restart the program, and report this")
    }
}

impl<C, T> Drop for Worker<C, T> {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_back_what_it_owns_and_says_when_it_has_died() {
        let sum = |inbox: Receiver<u32>| inbox.iter().sum::<u32>();
        let worker = Worker::start("adder", sum).unwrap();
        (1..=4).for_each(|n| worker.send(n).unwrap());
        assert_eq!(worker.stop().unwrap(), 10);
        let dead = Worker::start("quitter", |inbox: Receiver<u32>| drop(inbox)).unwrap();
        while dead.send(1).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(dead.send(1).unwrap_err().kind(), Kind::Bug);
    }
}
