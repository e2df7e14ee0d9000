//! Linux's older asynchronous interface, called directly. Buffered reads and writes are accepted,
//! and served one by one inside the submission: that is what a table of ways should show.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use super::drive::{Drive, Job, Kind};
use super::queue::{Desk, Queue, Request};
use super::{Does, Way};
use crate::measure::meter::Round;
use crate::measure::work::Gather;

pub(crate) struct Libaio;

/// The most reads of a gather in flight.
const GATHER_DEPTH: usize = 128;

pub(crate) static LIBAIO: Way = Way::new(
    "libaio",
    "io_submit; through the page cache all work happens inside the submission",
    &[Does::Reads(&Libaio), Does::Gathers(&Libaio), Does::DirectReads(&Libaio), Does::Writes(&Libaio)],
)
.hue(3)
.refused(|| Context::new(1).err().map(|error| format!("io_setup: {error}")));

impl Drive for Libaio {
    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Desk::new(Aio::new(&job.files[0], job.depth)?).drive(job, &[], buffer, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let depth = job.records().min(GATHER_DEPTH);
        Desk::new(Aio::new(job.target.file, depth)?).gather(job, output, round)
    }
}

/// The kernel's `struct iocb` on a little-endian machine (`linux/aio_abi.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(mem::size_of::<Iocb>() == 64 && mem::size_of::<Event>() == 32);

const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// An `aio_context_t`.
struct Context(libc::c_ulong);

impl Context {
    fn new(capacity: usize) -> io::Result<Self> {
        let mut context = 0;
        // SAFETY: io_setup writes a context to the variable, which must be 0 before and is.
        let status = unsafe { libc::syscall(libc::SYS_io_setup, capacity as libc::c_uint, &raw mut context) };
        checked(status).map(|_| Self(context))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is ours and not used again. The kernel waits for what is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn checked(status: libc::c_long) -> io::Result<usize> {
    usize::try_from(status).map_err(|_| io::Error::last_os_error())
}

struct Aio {
    context: Context,
    file: u32,
    /// One for each transfer that can be in flight, by tag.
    iocbs: Vec<Iocb>,
    /// Tags that are to be submitted.
    queued: Vec<u32>,
    /// Room for the pointers that a submission passes.
    pointers: Vec<*const Iocb>,
    events: Vec<Event>,
    /// Tags that the kernel would not take, with its error number.
    refused: Vec<(u32, i32)>,
    /// Number of harvested events, and of those that were handed out.
    harvested: usize,
    taken: usize,
}

impl Aio {
    fn new(file: &File, capacity: usize) -> io::Result<Self> {
        Ok(Self {
            context: Context::new(capacity)?,
            file: file.as_raw_fd() as u32,
            iocbs: vec![Iocb::default(); capacity],
            queued: Vec::with_capacity(capacity),
            pointers: Vec::with_capacity(capacity),
            events: vec![Event::default(); capacity],
            refused: Vec::new(),
            harvested: 0,
            taken: 0,
        })
    }

    /// Submits what is queued, or as much of it as the kernel takes before it refuses one.
    fn submit(&mut self) {
        self.pointers.clear();
        self.pointers.extend(self.queued.iter().map(|&tag| &raw const self.iocbs[tag as usize]));
        let count = self.pointers.len() as libc::c_long;
        // SAFETY: `pointers` has `count` pointers to iocbs that live during the call; the kernel
        // copies them. The buffers that they name are valid until their completion, which `push`'s
        // caller has promised.
        let status = unsafe { libc::syscall(libc::SYS_io_submit, self.context.0, count, self.pointers.as_mut_ptr()) };
        match checked(status) {
            Ok(count) => drop(self.queued.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let tag = self.queued.remove(0);
                self.refused.push((tag, error.raw_os_error().unwrap_or(libc::EIO)));
            }
        }
    }

    fn harvest(&mut self, wait: usize) -> io::Result<()> {
        let room = self.events.len() as libc::c_long;
        let (events, forever) = (self.events.as_mut_ptr(), ptr::null::<libc::timespec>());
        // SAFETY: the kernel writes at most `room` events, for which the vector has place; no time
        // limit is given.
        let status = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context.0, wait as libc::c_long, room, events, forever)
        };
        (self.harvested, self.taken) = (checked(status)?, 0);
        Ok(())
    }
}

impl Queue for Aio {
    fn capacity(&self) -> usize {
        self.iocbs.len()
    }

    unsafe fn push(&mut self, tag: u32, request: Request<'_>) -> io::Result<()> {
        let opcode = if request.kind == Kind::Read { PREAD } else { PWRITE };
        self.iocbs[tag as usize] = Iocb {
            data: u64::from(tag),
            opcode,
            file: self.file,
            buffer: request.at as u64,
            bytes: request.len as u64,
            offset: request.offset as i64,
            ..Iocb::default()
        };
        self.queued.push(tag);
        Ok(())
    }

    /// All earlier events have been taken: so says the order of calls in [`crate::ways::queue`].
    fn turn(&mut self, wait: usize) -> io::Result<()> {
        while !self.queued.is_empty() {
            self.submit();
        }
        if !self.refused.is_empty() {
            return Ok(());
        }
        match self.harvest(wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    fn next(&mut self) -> Option<(u32, io::Result<usize>)> {
        if let Some((tag, error)) = self.refused.pop() {
            return Some((tag, Err(io::Error::from_raw_os_error(error))));
        }
        let event = self.events[..self.harvested].get(self.taken)?;
        self.taken += 1;
        let result =
            usize::try_from(event.result).map_err(|_| io::Error::from_raw_os_error(event.result.unsigned_abs() as i32));
        Some((event.data as u32, result))
    }
}
