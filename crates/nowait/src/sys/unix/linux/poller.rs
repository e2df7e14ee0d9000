//! Sleep until a descriptor is readable, or another thread rings.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Bell that a queue to the kernel can poll (`eventfd(2)`).
pub(crate) struct WakeEvent(OwnedFd);

impl WakeEvent {
    pub(crate) fn new() -> Result<WakeEvent, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(WakeEvent)
    }

    pub(crate) fn ring(&self) {
        // The write cannot block: the counter is far from full.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Descriptors that one thread watches, and its bell (`epoll(7)`).
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: WakeEvent,
}

/// Number of the bell; no descriptor has it.
const BELL: u64 = 0;

impl Poller {
    pub(crate) fn new() -> Result<Poller, Errno> {
        let poller = Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, bell: WakeEvent::new()? };
        epoll::add(&poller.epoll, &poller.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(poller)
    }

    /// Watches a descriptor, edge-triggered. `number` is not zero. Refused beyond
    /// `fs.epoll.max_user_watches`.
    pub(crate) fn add(&self, descriptor: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(number), events)
    }

    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Wakes the thread.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Sleeps until an event or the bell, or for `timeout`. Sets `ready` to the numbers of the
    /// descriptors that became readable. If the bell was rung, clears it and returns true.
    pub(crate) fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<u64>) -> bool {
        ready.clear();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::<epoll::Event>::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // No such error is documented for a valid descriptor. The sleep bounds the rate if it
            // persists.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        ready.extend(events.iter().map(|event| event.data.u64()).filter(|number| *number != BELL));
        let is_called = ready.len() < events.len();
        if is_called {
            self.bell.clear();
        }
        is_called
    }
}
