//! The kernel's older queue (`io_setup(2)` and its family), for direct I/O where io_uring is
//! refused: contexts, set up by trying; encoding requests; decoding results.
//!
//! Only for direct I/O: `io_submit` makes any other transfer completely before it returns. Direct
//! I/O sleeps there, too, while the file system reads metadata blocks, extends the file, or waits
//! for a place in the device's queue. The caller cannot know this beforehand.
//!
//! Destroying a context waits for two grace periods of RCU (30 ms on 6.18), and for everything in
//! flight. So no caller destroys one: a few are kept for reuse, and the rest is left to a thread.
//!
//! `unsafe` here: the system calls.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use crate::engine::Refusal;
use crate::op::{Owner, Request, Slot};
use crate::sync::lock;
use crate::sys::{PerProcess, SEGMENTS_MAX, fork_generation, last_errno, retry, spawn};

/// Operations in flight that one context takes; more wait in line. All contexts of the system share
/// `fs.aio-max-nr`, 65536 by default.
pub(crate) const DEPTH: u32 = 128;

/// A longer transfer would be split into more requests than a device takes at once, and sleep for
/// places inside `io_submit`.
const TRANSFER_MAX: usize = 1 << 20;

/// Contexts that are kept for later.
const SPARES_MAX: usize = 8;

/// An `aio_context_t`. Without a destructor: a context that is not retired lives as long as the
/// process, and so does what it has in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    id: libc::c_ulong,
    generation: u64,
}

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
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
    /// The length of that.
    length: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Event {
    user_data: u64,
    entry: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Event>() == 32);

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

impl Context {
    pub(crate) fn set_up() -> Result<Context, Refusal> {
        if let Some(spare) = lock(spares()).pop() {
            return Ok(spare);
        }
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup writes the context to the variable, which must be 0 before, and is.
        match unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &raw mut id) } {
            0 => {}
            _ => return Err(Refusal { errno: last_errno(), entries: DEPTH }),
        }
        let context = Context { id, generation: fork_generation() };
        // A filter may let a context be made and not be used.
        // SAFETY: there is no entry.
        if let Err(errno) = unsafe { context.submit(&mut []) } {
            context.destroy();
            return Err(Refusal { errno, entries: DEPTH });
        }
        Ok(context)
    }

    /// Whether this process made it. A child has none of its parent's contexts (`io_setup(2)`).
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Gives up a context that has nothing in flight and is not used afterwards. Does not block.
    pub(crate) fn retire(self) {
        if !self.is_ours() {
            return;
        }
        let mut spares = lock(spares());
        if spares.len() < SPARES_MAX {
            return spares.push(self);
        }
        drop(spares);
        self.destroy();
    }

    /// Destroys it on a thread; if none can be started, it stays.
    fn destroy(self) {
        let _ = spawn("nowait-destroy", move || {
            // SAFETY: the context is not used again, nothing is in flight, and no memory is passed.
            unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
        });
    }

    /// Submits entries until the kernel refuses one: all, as a rule. An error is that of the first.
    ///
    /// # Safety
    /// Each entry's memory and descriptor stay valid until its event has been read.
    pub(crate) unsafe fn submit(&self, entries: &mut [Entry]) -> Result<usize, Errno> {
        let mut pointers = [std::ptr::null_mut::<Entry>(); DEPTH as usize];
        let count = entries.len().min(pointers.len());
        for (pointer, entry) in pointers.iter_mut().zip(entries) {
            *pointer = entry;
        }
        retry(|| {
            // SAFETY: `count` pointers to entries that are borrowed for the call, in which the
            // kernel copies them (and sets their keys); the caller vouches for what they name.
            let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.id, count, pointers.as_mut_ptr()) };
            usize::try_from(taken).map_err(|_| last_errno())
        })
    }

    /// Adds the available events to `events`, as many as it has room for.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> Result<(), Errno> {
        let room = events.spare_capacity_mut();
        let (room, start) = (room.len() as libc::c_long, room.as_mut_ptr());
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most `room` events to the vector's spare room, and reads the
        // limit.
        let count = unsafe { libc::syscall(libc::SYS_io_getevents, self.id, 0, room, start, &raw mut now) };
        let count = usize::try_from(count).map_err(|_| last_errno())?;
        // SAFETY: the kernel has written this number of events, which consist of plain numbers.
        unsafe { events.set_len(events.len() + count) };
        Ok(())
    }
}

impl Entry {
    /// Encodes a slot's request; the caller adds the user data. None if it would run inside the
    /// submission: a thread of ours is the better choice.
    pub(crate) fn of(slot: &Arc<Slot>) -> Option<Entry> {
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
            Some(Entry {
                opcode,
                rw_flags: flags,
                descriptor: file.handle.descriptor().ok()?.as_raw_fd() as u32,
                buffer,
                length: length as u64,
                offset: transfer.position(),
                ..Entry::default()
            })
        })
    }

    pub(crate) fn with(self, user_data: u64) -> Entry {
        Entry { user_data, ..self }
    }

    /// Adds one to an eventfd when it completes.
    pub(crate) fn telling(self, eventfd: impl AsFd) -> Entry {
        Entry { flags: TELLS_EVENTFD, eventfd: eventfd.as_fd().as_raw_fd() as u32, ..self }
    }
}

impl Event {
    pub(crate) fn user_data(&self) -> u64 {
        self.user_data
    }

    /// A count, or an errno.
    pub(crate) fn result(&self) -> Result<usize, Errno> {
        usize::try_from(self.result).map_err(|_| Errno::from_raw_os_error(self.result.unsigned_abs() as i32))
    }
}
