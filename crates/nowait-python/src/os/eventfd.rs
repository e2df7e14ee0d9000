//! Linux: the loop watches an eventfd.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Descriptor that the loop watches: `add_reader` of asyncio, `wait_readable` of trio.
pub(crate) type Notifier = i32;

/// Wakes a loop; stays rung until it is cleared.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Any thread may call it; it never blocks.
    pub(crate) fn ring(&self) {
        // The write is refused if the counter is full; the eventfd is then already readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    pub(crate) fn notifier(&self) -> Notifier {
        self.0.as_raw_fd()
    }
}
