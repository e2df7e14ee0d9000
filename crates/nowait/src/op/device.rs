//! The device of a file. A device that hangs or is busy affects all its files, and no file of
//! another device.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{AtFlags, FileType, StatxFlags, major, makedev, minor};

use super::request::Handle;
use crate::buf::lock;
use crate::sys::PerProcess;

/// Queue length of most devices, in requests; assumed for a file system without a block device.
const HELD_REQUESTS: u32 = 128;

/// A device, or a file system without one; shared by all instances of the process.
pub(crate) struct Device {
    /// Identifies the device within the process.
    pub(crate) number: u64,
    /// Operations on its files that have begun in the kernel or on a thread.
    under_way: AtomicU32,
    /// Limit of operations under way, up to which a thread that must not sleep submits another.
    places: u32,
}

impl Device {
    /// Returns the device of an open file. Makes no request to a file server.
    pub(super) fn of(handle: &Handle) -> Arc<Device> {
        static KNOWN: PerProcess<Mutex<HashMap<u64, Weak<Device>>>> = PerProcess::new();
        let number = handle.descriptor().ok().and_then(number_of).unwrap_or(0);
        let known = KNOWN.get(Mutex::default);
        if let Some(device) = lock(known).get(&number).and_then(Weak::upgrade) {
            return device;
        }
        // With nothing locked: this reads files of /sys.
        let places = held_requests(number).unwrap_or(HELD_REQUESTS);
        let new = Arc::new(Device { number, under_way: AtomicU32::new(0), places: (places - places / 4).max(1) });
        let mut known = lock(known);
        known.retain(|_, device| device.strong_count() > 0);
        match known.get(&number).and_then(Weak::upgrade) {
            Some(device) => device,
            None => {
                known.insert(number, Arc::downgrade(&new));
                new
            }
        }
    }

    /// Returns whether a further request could sleep for a place in the device's queue. Its
    /// submission would hold the ring's lock meanwhile (`blk_mq_get_tag`, block/blk-mq-tag.c).
    pub(crate) fn is_full(&self) -> bool {
        self.under_way.load(Relaxed) >= self.places
    }

    pub(super) fn begins(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    pub(super) fn ends(&self) {
        self.under_way.fetch_sub(1, Relaxed);
    }
}

/// Returns the number of a block device, or of the device that a file lies on; none if `statx(2)`
/// is refused.
fn number_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, "", flags, StatxFlags::TYPE).ok()?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::BlockDevice => Some(makedev(stat.stx_rdev_major, stat.stx_rdev_minor)),
        _ => Some(makedev(stat.stx_dev_major, stat.stx_dev_minor)),
    }
}

/// Returns how many requests a block device queues before a submission sleeps. For a device made of
/// others, this is the shortest of their queues. None for a file system without a block device.
fn held_requests(number: u64) -> Option<u32> {
    let device = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let parts = std::fs::read_dir(format!("{device}/slaves")).into_iter().flatten().flatten();
    let held = |device: &str| {
        // A partition has no queue; that of its disk applies.
        ["queue", "../queue"].iter().find_map(|queue| {
            let text = std::fs::read_to_string(format!("{device}/{queue}/nr_requests")).ok()?;
            text.trim().parse().ok()
        })
    };
    let shortest = parts.filter_map(|part| held(part.path().to_str()?)).min();
    shortest.or_else(|| held(&device))
}
