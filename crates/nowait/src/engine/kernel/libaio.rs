//! The kernel's older queue (`io_setup(2)` and its family), for direct I/O where io_uring is
//! refused: contexts, set up by trying; encoding requests; decoding results.
//!
//! It serves only direct I/O: `io_submit` completes any other transfer before it returns. A direct
//! transfer may also sleep in `io_submit`: while the file system reads metadata blocks or extends
//! the file, or the device's queue is full. The caller cannot detect this beforehand.
//!
//! Destroying a context waits for two grace periods of RCU (30 ms on 6.18), and for everything in
//! flight. So no caller destroys one: a few are kept for reuse, and the rest is left to a thread.
//!
//! `unsafe` here: the system calls.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::{Kernel, Untaken};
use crate::engine::QueueRefusal;
use crate::op::{Owner, Request, Slot};
use crate::stats::Count;
use crate::sync::lock;
use crate::sys::{Errno, PerProcess, SEGMENTS_MAX, fork_generation, last_errno, retry, spawn};

/// Limit of operations in flight of a context; further ones wait in line. All contexts of the
/// system share `fs.aio-max-nr`, 65536 by default.
const DEPTH: u32 = 128;

/// Longest transfer in bytes. A longer one would be split into more requests than a device takes at
/// once, and would sleep for places inside `io_submit`.
const TRANSFER_MAX: usize = 1 << 20;

/// Limit of contexts that are kept for reuse.
const SPARES_MAX: usize = 8;

/// Limit of events that one call collects.
const EVENTS: usize = 32;

/// A context, and the entries that it has not yet submitted.
pub(in crate::engine) struct Libaio {
    context: Context,
    /// The kernel adds to it with each completion.
    eventfd: OwnedFd,
    staged: Mutex<VecDeque<Iocb>>,
    /// User data of entries that the kernel has refused.
    refused: Mutex<Vec<u64>>,
    /// Entries that the kernel has.
    taken: AtomicUsize,
}

/// An `aio_context_t`. Without a destructor: a context that is not retired lives as long as the
/// process, and so does what it has in flight.
#[derive(Clone, Copy)]
struct Context {
    id: libc::c_ulong,
    generation: u64,
}

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    user_data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: u32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    /// The memory, or the segments.
    buffer: u64,
    /// Length of the memory, or number of segments.
    length: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    user_data: u64,
    entry: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);

/// `IOCB_CMD_*`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;

/// `IOCB_FLAG_RESFD`.
const TELLS_EVENTFD: u32 = 1;

/// Contexts with nothing in flight.
fn spares() -> &'static Mutex<Vec<Context>> {
    static SPARES: PerProcess<Mutex<Vec<Context>>> = PerProcess::new();
    SPARES.get(Mutex::default)
}

impl Libaio {
    pub(in crate::engine) fn set_up() -> Result<Libaio, QueueRefusal> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let eventfd = eventfd.map_err(|errno| QueueRefusal { errno, entries: DEPTH })?;
        let context = Context::set_up()?;
        Ok(Libaio { context, eventfd, staged: Mutex::default(), refused: Mutex::default(), taken: AtomicUsize::new(0) })
    }
}

impl Kernel for Libaio {
    fn depth(&self) -> u32 {
        DEPTH
    }

    /// A child has none of its parent's contexts (`io_setup(2)`).
    fn is_ours(&self) -> bool {
        self.context.generation == fork_generation()
    }

    fn count(&self) -> Count {
        Count::Aio
    }

    fn looks_freely(&self) -> bool {
        false
    }

    unsafe fn stage(&self, slot: &Arc<Slot>, _: &mut Untaken) -> bool {
        let Some(entry) = Iocb::of(slot) else { return false };
        let (user_data, eventfd) = (Arc::as_ptr(slot) as u64, self.eventfd.as_raw_fd() as u32);
        lock(&self.staged).push_back(Iocb { user_data, flags: TELLS_EVENTFD, eventfd, ..entry });
        true
    }

    /// Does not wait, since no thread owns the context. Submits one entry at a time: while one
    /// submission sleeps, other threads submit their entries.
    fn enter(&self, _want: usize, _patience: Option<Duration>) -> std::io::Result<usize> {
        let mut count = 0;
        loop {
            // A separate statement, so that the lock is released at its end.
            let next = lock(&self.staged).pop_front();
            let Some(mut entry) = next else { return Ok(count) };
            count += 1;
            // SAFETY: memory and descriptor of the entry belong to its slot, which lives until its user
            // data is collected, as the caller of `stage` has promised. The eventfd outlives the
            // context's last event.
            if unsafe { self.context.submit(Some(&mut entry)) }.is_ok() {
                self.taken.fetch_add(1, Relaxed);
                continue;
            }
            // The kernel refuses the entry, or memory is short.
            lock(&self.refused).push(entry.user_data);
            // The write cannot block: the counter is far from full.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Refused entries end as if they were cancelled. A plain call then transfers the data, or
    /// returns the errno of the file.
    unsafe fn collect(&self, max: usize, each: &mut dyn FnMut(u64, Result<usize, Errno>)) -> usize {
        let mut refused = lock(&self.refused);
        let some = refused.len().min(max);
        let some: Vec<u64> = refused.drain(..some).collect();
        drop(refused);
        some.iter().for_each(|user_data| each(*user_data, Err(Errno::CANCELED)));
        let mut events = [Event::default(); EVENTS];
        // Only a filter that was installed later causes an error. Operations in the kernel are lost
        // then.
        let n = self.context.collect(&mut events[..EVENTS.min(max - some.len())]).unwrap_or(0);
        self.taken.fetch_sub(n, Relaxed);
        events[..n].iter().for_each(|event| each(event.user_data, event.result()));
        some.len() + n
    }
}

impl Drop for Libaio {
    /// Keeps the context for reuse, unless events of its entries were lost.
    fn drop(&mut self) {
        if !self.is_ours() || *self.taken.get_mut() > 0 {
            return;
        }
        let mut spares = lock(spares());
        if spares.len() < SPARES_MAX {
            return spares.push(self.context);
        }
        drop(spares);
        self.context.destroy();
    }
}

impl AsFd for Libaio {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Context {
    fn set_up() -> Result<Context, QueueRefusal> {
        if let Some(spare) = lock(spares()).pop() {
            return Ok(spare);
        }
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup writes the context to the variable, which must be 0 before, and is.
        match unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &raw mut id) } {
            0 => {}
            _ => return Err(QueueRefusal { errno: last_errno(), entries: DEPTH }),
        }
        let context = Context { id, generation: fork_generation() };
        // A filter may allow the set-up of a context and forbid its use.
        // SAFETY: there is no entry.
        if let Err(errno) = unsafe { context.submit(None) } {
            context.destroy();
            return Err(QueueRefusal { errno, entries: DEPTH });
        }
        Ok(context)
    }

    /// Destroys the context on a thread. If no thread can be started, the context stays.
    fn destroy(self) {
        let _ = spawn("nowait-destroy", move || {
            // SAFETY: the context is not used again, nothing is in flight, and no memory is passed.
            unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
        });
    }

    /// Submits an entry. Without an entry, checks whether submissions are refused.
    ///
    /// # Safety
    /// The entry's memory and descriptor stay valid until its event has been read.
    unsafe fn submit(&self, entry: Option<&mut Iocb>) -> Result<(), Errno> {
        let count = libc::c_long::from(entry.is_some());
        let mut pointer = entry.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        retry(|| {
            // SAFETY: a pointer to an entry that is borrowed for the call, in which the kernel copies
            // it (and sets its key); the caller vouches for what it names.
            match unsafe { libc::syscall(libc::SYS_io_submit, self.id, count, &raw mut pointer) } {
                taken if taken == count => Ok(()),
                _ => Err(last_errno()),
            }
        })
    }

    /// Moves available events to `events`. Returns their number.
    fn collect(&self, events: &mut [Event]) -> Result<usize, Errno> {
        let (room, start) = (events.len() as libc::c_long, events.as_mut_ptr());
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most `room` events, which consist of plain numbers, and reads
        // the limit.
        let count = unsafe { libc::syscall(libc::SYS_io_getevents, self.id, 0, room, start, &raw mut now) };
        usize::try_from(count).map_err(|_| last_errno())
    }
}

impl Iocb {
    /// Encodes a slot's request; the caller adds the user data. Returns `None` if the request would
    /// run inside the submission: a pool thread should serve it.
    fn of(slot: &Arc<Slot>) -> Option<Iocb> {
        slot.begin(|request, owner| {
            let Owner::File(file) = owner else { return None };
            let (transfer, one, many, flags) = match request {
                Request::Read(transfer) => (transfer, PREAD, PREADV, 0),
                Request::Write(transfer, flags) => (transfer, PWRITE, PWRITEV, flags.bits()),
                _ => return None,
            };
            if !file.is_direct() || transfer.left() > TRANSFER_MAX {
                return None;
            }
            let (opcode, buffer, length) = match transfer.segments() {
                [segment] => (one, segment.iov_base as u64, segment.iov_len),
                segments => (many, segments.as_ptr() as u64, segments.len().min(SEGMENTS_MAX)),
            };
            Some(Iocb {
                opcode,
                rw_flags: flags,
                descriptor: file.handle.descriptor().ok()?.as_raw_fd() as u32,
                buffer,
                length: length as u64,
                offset: transfer.position(),
                ..Iocb::default()
            })
        })
    }
}

impl Event {
    /// Returns a number of bytes, or an errno.
    fn result(&self) -> Result<usize, Errno> {
        usize::try_from(self.result).map_err(|_| Errno::from_raw_os_error(self.result.unsigned_abs() as i32))
    }
}
