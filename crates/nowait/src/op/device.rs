//! The device of a file. A device that hangs or is busy affects all its files, and no file of
//! another device.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::request::Handle;
use crate::buf::Direction;
use crate::sync::lock;
use crate::sys::{self, PerProcess, QueueLimits, fork_generation};

/// Queue length of most devices, in requests; assumed for a file system without a block device.
const HELD_REQUESTS: u32 = 128;
/// A common length of the longest request, in bytes; assumed for a file system without a block device.
const REQUEST_BYTES: u32 = 512 << 10;
/// Longest request of the devices with the shortest ones; assumed until a block device was measured.
const REQUEST_BYTES_MIN: u32 = 64 << 10;
/// Number of requests under way from which a block device's queue is measured: half of the shortest
/// queue of common devices (SATA without a scheduler).
const MEASURED_FROM: u32 = 16;
/// Devices that are remembered while no file of theirs is open.
const REMEMBERED_MAX: usize = 64;
/// Number of the device of simulated files.
const SIMULATED: u64 = u64::MAX;
/// Number of the device of pipes, sockets, terminals and the like: they share no queue that fills.
const STREAMS: u64 = u64::MAX - 1;
/// A plain call that took no longer than this, and a nanosecond for each byte, shows that its device
/// answers.
const ANSWER_NS_MAX: u64 = 100_000;

/// A device, or a file system without one; shared by all instances of the process.
pub(crate) struct Device {
    /// Identifies the device within the process.
    pub(crate) number: u64,
    /// The mount of the file by which it became known.
    mount: u64,
    /// Whether a plain read, and a plain write, of one of its files returned soon. Without that, a
    /// plain call goes to a thread that may wait: the device may be a server that hangs, or a file
    /// system that is frozen.
    answers: [AtomicBool; 2],
    /// Requests of operations that have begun in the kernel or on a thread, in the lower half. The
    /// upper half is the process that has begun them: a child of a fork counts anew.
    under_way: AtomicU64,
    /// Limit of requests under way, up to which a thread that must not sleep submits another.
    places: AtomicU32,
    /// Longest request. The kernel splits a longer direct transfer.
    request_bytes: AtomicU32,
    /// Whether `places` and `request_bytes` were measured, or a thread is about to measure them.
    is_measured: AtomicBool,
}

impl Device {
    /// Returns the device of an open file. Makes no request to a file server.
    pub(super) fn of(handle: &Handle) -> Arc<Device> {
        static KNOWN: PerProcess<Mutex<HashMap<u64, Arc<Device>>>> = PerProcess::new();
        let (number, mount) = match handle.descriptor() {
            Ok(fd) => sys::device_of(fd).map_or((0, 0), |(number, mount)| (number.unwrap_or(STREAMS), mount)),
            Err(_) => (SIMULATED, 0),
        };
        // While no file of it is open, another file system may get its number.
        let is_same = |device: &&Arc<Device>| device.mount == mount || Arc::strong_count(device) > 1;
        let mut known = lock(KNOWN.get(Mutex::default));
        if let Some(device) = known.get(&number).filter(is_same) {
            return device.clone();
        }
        let held = if number == STREAMS { u32::MAX } else { HELD_REQUESTS };
        // File systems without a block device have no queue.
        let has_queue = !matches!(number, STREAMS | SIMULATED) && sys::has_queue(number);
        let new = Arc::new(Device {
            number,
            mount,
            answers: [(); 2].map(|()| AtomicBool::new(number == SIMULATED)),
            under_way: AtomicU64::new(0),
            places: AtomicU32::new(places_of(held)),
            request_bytes: AtomicU32::new(if has_queue { REQUEST_BYTES_MIN } else { REQUEST_BYTES }),
            is_measured: AtomicBool::new(!has_queue),
        });
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, device| Arc::strong_count(device) > 1);
        }
        known.insert(number, new.clone());
        new
    }

    /// Whether plain calls of its files have returned soon, so that the next may be made by a thread
    /// that must not wait.
    #[inline]
    pub(crate) fn answers(&self, direction: Direction) -> bool {
        self.answers[direction as usize].load(Relaxed)
    }

    /// Records a plain call of `bytes` by a thread that may wait.
    pub(crate) fn answered(&self, direction: Direction, bytes: usize, elapsed_ns: u64) {
        if elapsed_ns <= ANSWER_NS_MAX.saturating_add(bytes as u64) {
            self.answers[direction as usize].store(true, Relaxed);
        }
    }

    /// Records a plain call that took longer than a thread that must not wait allows.
    pub(crate) fn stalled(&self, direction: Direction) {
        if self.number != SIMULATED {
            self.answers[direction as usize].store(false, Relaxed);
        }
    }

    /// Returns whether a further request could sleep for a place in the device's queue. Its
    /// submission would hold the ring's lock meanwhile (`blk_mq_get_tag`, block/blk-mq-tag.c).
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        let under_way = self.under_way.load(Relaxed);
        under_way as u32 >= self.places.load(Relaxed) && is_of_here(under_way)
    }

    /// Returns a value whose drop measures the device's queue; drop it on a thread that may wait.
    /// Only one call returns it, early enough for the measurement to end before the queue is full.
    #[inline]
    pub(super) fn measurement(self: &Arc<Device>) -> Option<Measurement> {
        let is_due = !self.is_measured.load(Relaxed)
            && self.under_way.load(Relaxed) as u32 >= MEASURED_FROM
            && !self.is_measured.swap(true, Relaxed);
        is_due.then(|| Measurement(self.clone()))
    }

    /// Counts the requests of an operation until the value is dropped. `direct_bytes` is the length
    /// of a direct transfer; any other operation counts as one request.
    pub(super) fn begins(self: &Arc<Device>, direct_bytes: usize) -> OnDevice {
        /// Keeps the count within its half.
        const REQUESTS_MAX: usize = 1 << 12;
        let requests = direct_bytes.div_ceil(self.request_bytes.load(Relaxed) as usize).clamp(1, REQUESTS_MAX) as u32;
        let more = |before| {
            let before = if is_of_here(before) { before } else { fork_generation() << 32 };
            Some(before + u64::from(requests))
        };
        let _ = self.under_way.fetch_update(Relaxed, Relaxed, more);
        OnDevice { device: self.clone(), process: fork_generation() as u32, requests }
    }
}

/// Returns the limit of requests in flight to a device that holds `held`.
fn places_of(held: u32) -> u32 {
    (held - held / 4).max(1)
}

/// Measures a device's queue when it is dropped. A read of a queue's attribute may wait for all
/// requests of that queue: kernels up to 6.14 hold one lock while they read an attribute, and while
/// they change one (`queue_attr_show`, `queue_attr_store`, block/blk-sysfs.c).
pub(super) struct Measurement(Arc<Device>);

impl Drop for Measurement {
    fn drop(&mut self) {
        let Measurement(device) = self;
        match sys::queue_limits(device.number) {
            Ok(QueueLimits { held_requests, request_bytes }) => {
                device.places.store(places_of(held_requests.unwrap_or(HELD_REQUESTS)), Relaxed);
                device.request_bytes.store(request_bytes.unwrap_or(REQUEST_BYTES), Relaxed);
            }
            // Descriptors or memory are short: a later operation measures again.
            Err(_) => device.is_measured.store(false, Relaxed),
        }
    }
}

/// Whether a count is of this process, and not of its parent.
fn is_of_here(under_way: u64) -> bool {
    (under_way >> 32) as u32 == fork_generation() as u32
}

/// An operation whose requests its device counts as under way.
pub(super) struct OnDevice {
    device: Arc<Device>,
    process: u32,
    requests: u32,
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // Not of a parent: its count is gone.
        let requests = u64::from(self.requests);
        let fewer = |before: u64| ((before >> 32) as u32 == self.process).then(|| before - requests);
        let _ = self.device.under_way.fetch_update(Relaxed, Relaxed, fewer);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Symptom: the first read of a file slept behind a change of its device's scheduler, which waits
    /// for all requests of a device that hangs (kernels up to 6.14).
    #[test]
    fn a_queue_is_measured_once_before_it_is_full() {
        let device = Arc::new(Device {
            number: rustix::fs::makedev(u32::MAX >> 20, 1),
            mount: 0,
            answers: Default::default(),
            under_way: AtomicU64::new(0),
            places: AtomicU32::new(20),
            request_bytes: AtomicU32::new(REQUEST_BYTES_MIN),
            is_measured: AtomicBool::new(false),
        });
        let mut under_way: Vec<_> = (1..MEASURED_FROM).map(|_| device.begins(0)).collect();
        assert!(device.measurement().is_none());
        under_way.push(device.begins(0));
        let measurement = device.measurement().unwrap();
        assert!(!device.is_full() && device.measurement().is_none());
        assert_eq!(device.places.load(Relaxed), 20);
        // There is no such device: the default length is assumed.
        drop(measurement);
        assert!(device.measurement().is_none());
        assert_eq!(device.places.load(Relaxed), 96);
        assert_eq!(device.request_bytes.load(Relaxed), REQUEST_BYTES);
        drop(under_way);
        let transfer = device.begins(4 * REQUEST_BYTES as usize + 1);
        assert_eq!(device.under_way.load(Relaxed) as u32, 5, "the kernel splits it");
        drop(transfer);
        assert_eq!(device.under_way.load(Relaxed) as u32, 0);
    }

    /// Symptom: with a hundred reads of pipes that hung, the reads of all other pipes left the rings.
    #[test]
    fn streams_fill_no_device() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let device = Device::of(&Handle::Descriptor(reader));
        let all: Vec<_> = (0..10 * HELD_REQUESTS).map(|_| device.begins(0)).collect();
        assert!(!device.is_full());
        drop(all);
        assert_eq!(device.under_way.load(Relaxed) as u32, 0);
    }
}
