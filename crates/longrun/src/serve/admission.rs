//! How many requests are under way, and no more.
//!
//! Owns the count. A ticket is held as long as a request has rows or waits for them; when none is left a client is told
//! so at once. A drain takes no new ones and waits for those that are out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::error::{ApiError, ApiResult};

/// The door of the server.
pub(crate) struct Admission {
    most: usize,
    out: AtomicUsize,
    closed: AtomicBool,
    back: Notify,
}

/// A request that is under way.
pub(crate) struct Ticket(Arc<Admission>);

impl Admission {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let (out, closed, back) = (AtomicUsize::new(0), AtomicBool::new(false), Notify::new());
        Arc::new(Self { most, out, closed, back })
    }

    /// Lets a request in.
    pub(crate) fn enter(self: &Arc<Self>) -> ApiResult<Ticket> {
        if self.closed.load(Ordering::Acquire) {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        let entered = self.out.fetch_update(Ordering::AcqRel, Ordering::Acquire, |out| {
            (out < self.most).then_some(out + 1)
        });
        match entered {
            Ok(_) => Ok(Ticket(Arc::clone(self))),
            Err(_) => Err(ApiError::busy(self.most)),
        }
    }

    /// Requests under way.
    pub(crate) fn out(&self) -> usize {
        self.out.load(Ordering::Acquire)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Waits until nobody is inside.
    pub(crate) async fn empty(&self) {
        loop {
            let back = self.back.notified();
            if self.out() == 0 {
                return;
            }
            back.await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.out.fetch_sub(1, Ordering::AcqRel);
        self.0.back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn as_many_as_there_is_room_for_and_none_after_closing() {
        let door = Admission::new(2);
        let (a, b) = (door.enter().ok().unwrap(), door.enter().ok().unwrap());
        assert_eq!(door.enter().err().unwrap().status.as_u16(), 429);
        drop(a);
        let c = door.enter().ok().unwrap();
        door.close();
        drop(b);
        assert_eq!(door.enter().err().unwrap().status.as_u16(), 503);
        let waiting = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.empty().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(c);
        waiting.await.unwrap();
        assert_eq!(door.out(), 0);
    }
}
