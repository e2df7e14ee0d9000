//! Wakes a thread that sleeps in its ring or is parked. The ring polls the thread's bell, an
//! eventfd.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, fence};
use std::task::{Wake, Waker};
use std::thread::Thread;

use crate::sys::{WakeEvent, WriteOnce};

const AWAKE: u8 = 0;
pub(super) const IN_QUEUE: u8 = 1;
pub(super) const PARKED: u8 = 2;

/// Wakes a thread wherever it sleeps. One per thread.
pub(super) struct Bell {
    sleep: AtomicU8,
    /// Made for the thread's first queue: one that only reads cached pages has none.
    event: WriteOnce<WakeEvent>,
    thread: Thread,
}

impl Bell {
    pub(super) fn new() -> Arc<Bell> {
        Arc::new(Bell { sleep: AtomicU8::new(AWAKE), event: WriteOnce::new(), thread: std::thread::current() })
    }

    /// None while descriptors are short.
    pub(super) fn event(&self) -> Option<&WakeEvent> {
        if self.event.get().is_none() {
            let _ = self.event.set(WakeEvent::new().ok()?);
        }
        self.event.get()
    }

    fn ring(&self) {
        match self.sleep.load(SeqCst) {
            IN_QUEUE => self.write(),
            PARKED => self.thread.unpark(),
            _ => {}
        }
    }

    pub(super) fn write(&self) {
        let _ = self.event().map(WakeEvent::ring);
    }

    /// Notes that its thread is awake.
    pub(super) fn awake(&self) {
        self.sleep.store(AWAKE, SeqCst);
    }

    pub(super) fn clear(&self) {
        let _ = self.event().map(WakeEvent::clear);
    }
}

/// The waker of one `drive`.
pub(super) struct DriveWaker {
    notified: AtomicBool,
    pub(super) bell: Arc<Bell>,
}

impl DriveWaker {
    fn new(bell: Arc<Bell>) -> Arc<DriveWaker> {
        Arc::new(DriveWaker { notified: AtomicBool::new(false), bell })
    }

    /// Clears the flag. A swap, which also reads it: the next poll sees what the waker wrote
    /// before.
    pub(super) fn forget(&self) {
        self.notified.swap(false, SeqCst);
    }

    /// Announces the sleep, then reads the flag; a waker sets the flag, then looks for a sleeper.
    /// One of them sees the other. False if the flag was set: the thread stays awake.
    pub(super) fn falls_asleep(&self, how: u8) -> bool {
        self.bell.sleep.store(how, SeqCst);
        let sleeps = !self.notified.load(SeqCst);
        if !sleeps {
            self.bell.awake();
        }
        sleeps
    }
}

/// A notice and its waker, kept by a thread from one `drive` to the next.
pub(super) struct KeptWaker {
    pub(super) notice: Arc<DriveWaker>,
    pub(super) waker: Waker,
}

impl KeptWaker {
    pub(super) fn new(bell: Arc<Bell>) -> KeptWaker {
        let notice = DriveWaker::new(bell);
        KeptWaker { waker: Waker::from(notice.clone()), notice }
    }

    /// As new, for another future, unless a clone of the waker is still about: that would wake the
    /// wrong one.
    pub(super) fn renew(self) -> Option<KeptWaker> {
        if Arc::strong_count(&self.notice) > 2 {
            return None;
        }
        // After the last call of the clones that are gone.
        fence(Acquire);
        self.notice.forget();
        Some(self)
    }
}

impl Wake for DriveWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.notified.swap(true, SeqCst) {
            self.bell.ring();
        }
    }
}
