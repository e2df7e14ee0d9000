//! io_uring, twice: as the usual library drives it, and tuned by hand.
//!
//! `ring-plain`: no set-up flags, one system call per submission. `ring`: owned by one thread,
//! completions run at its next system call (COOP_TASKRUN: no interruption of the thread), the last
//! submission and the wait are one system call, and the file is registered. The buffers of what
//! goes past the page cache are registered, too: the kernel need not look up and hold their pages
//! for each request. Through the page cache that has no use.
//!
//! The best number of reads or writes in one submission depends on where the data is. Cached reads
//! complete inside the submission, and the more of them share a system call the better (8 % on a
//! gather of 64). Cold ones should not wait for each other: from three on, the kernel holds them
//! back ("plugs" the queue) until the last is prepared, and meanwhile the disk is idle. So after
//! each wait the first read leaves alone, and each submission that follows carries twice as many
//! and one more. (Also tried: pairs, and as many more as complete at once; level with this at
//! best.)
//!
//! Gathers are the exception: a batch goes together, in the call that waits for it.
//!
//! A durable write is one request (`RWF_DSYNC`), or a write and an `fdatasync` that is linked to it
//! (`ring-fdatasync`). A small file is one chain (open into the ring's table, read, close) and one
//! completion to wait for. Chains are submitted as single requests are.
//!
//! DEFER_TASKRUN instead of COOP_TASKRUN cost an eighth more processor time at depth 16, and up to
//! a tenth of the speed at 32.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::drive::{Drive, Job, Kind, Open, Operation};
use super::queue::{Desk, Queue, Request};
use super::{Does, Way, mixed, stall};
use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Gather, Gathers};

pub(crate) struct Ring {
    tuned: bool,
    /// Durable writes are two linked requests.
    linked: bool,
}

const PLAIN: Ring = Ring { tuned: false, linked: false };
const TUNED: Ring = Ring { tuned: true, linked: false };
const LINKED: Ring = Ring { tuned: true, linked: true };

pub(crate) static RING_PLAIN: Way = Way::new(
    "ring-plain",
    "io_uring as it is usually driven: no flags, one submission a call",
    &[Does::Reads(&PLAIN), Does::Gathers(&PLAIN), Does::DirectReads(&PLAIN), Does::Writes(&PLAIN)],
)
.hue(4)
.refused(refused);

pub(crate) static RING: Way = Way::new(
    "ring",
    "io_uring tuned by hand, from one thread, direct with registered buffers; in mixed, a ring for each of tokio's workers",
    &[
        Does::Reads(&TUNED),
        Does::Gathers(&TUNED),
        Does::DirectReads(&TUNED),
        Does::Scans(&TUNED),
        Does::LoadReads(&TUNED),
        Does::LoadGathers(&TUNED),
        Does::Writes(&TUNED),
        Does::Stalls(&stall::Ring),
        Does::Files(&TUNED),
        Does::Mixed(&mixed::ring::Ring),
    ],
)
.hue(5)
.refused(refused);

/// Why this system refuses io_uring, if it does.
pub(super) fn refused() -> Option<String> {
    IoUring::new(2).err().map(|error| format!("io_uring_setup: {error}"))
}

/// The most reads of a gather in flight. More only wait for a place in the disk's own queue, inside
/// the submission.
const GATHER_DEPTH: usize = 128;

/// From `linux/io_uring.h`.
const IORING_ENTER_GETEVENTS: u32 = 1;

/// The longest chain: open, read, close.
const CHAIN: usize = 3;
const STEP_BITS: u32 = 2;

/// State of io_uring on this system, in words.
pub fn io_uring_state() -> String {
    refused().map_or("available".to_owned(), |why| format!("refused ({why})"))
}

impl Drive for Ring {
    /// Files opened into a ring are of Linux 5.15, and used in the same chain of 5.19.
    fn refuses_files(&self) -> Option<String> {
        // A file of any length, read in part, will do.
        let (path, mut block) = ([c"/proc/self/status".to_owned()], Buffer::new(64 << 10));
        let read = Uring::new(&[-1], 1, &TUNED)
            .and_then(|ring| Desk::new(ring).one(Operation::whole(0), &path, block.bytes()));
        read.err().map(|error| format!("io_uring: open, read and close in one chain: {error}"))
    }

    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let paths = job.paths()?;
        if !paths.is_empty() {
            let ring = Uring::new(&vec![-1; job.depth], job.depth, self)?;
            let mut memory = Buffer::new(job.depth * (job.len_max() + 1));
            return Desk::new(ring).drive(job, &paths, memory.bytes(), round);
        }
        let files: Vec<RawFd> = job.files.iter().map(|file| file.as_raw_fd()).collect();
        let mut ring = Uring::new(&files, job.depth, self)?;
        if let (true, Open::ByName { writes: false, .. }) = (job.direct, job.open()) {
            ring = ring.registering(buffer);
        }
        Desk::new(ring).drive(job, &[], buffer, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let depth = job.records().min(GATHER_DEPTH);
        Desk::new(Uring::new(&[job.target.file.as_raw_fd()], depth, self)?.together()).gather(job, output, round)
    }

    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let ring = Uring::new(&[job.target.file.as_raw_fd()], job.depth * job.records, self)?;
        Desk::new(ring.together()).paced_gathers(job, buffer, round)
    }
}

/// A tuned ring of one thread over one file, with room for so many operations.
pub(super) fn desk(file: &impl AsRawFd, capacity: usize, linked: bool) -> io::Result<Desk<Uring>> {
    Ok(Desk::new(Uring::new(&[file.as_raw_fd()], capacity, if linked { &LINKED } else { &TUNED })?))
}

pub(super) struct Uring {
    ring: IoUring,
    /// The requests of each tag.
    chains: Vec<Chain>,
    /// For the untuned ring, which registers no file.
    file: types::Fd,
    tuned: bool,
    linked: bool,
    /// All buffers lie in one that is registered.
    registered: bool,
    /// Queued chains, the most in a submission, and the most in the first one after a wait.
    queued: usize,
    submit_at: usize,
    submit_first_at: usize,
}

/// Requests of an operation that are not complete, and the results of the others.
#[derive(Clone, Copy, Default)]
struct Chain {
    steps: usize,
    left: usize,
    results: [i32; CHAIN],
}

impl Uring {
    /// Over these files, which outlive it, or places for files that are opened by name (-1).
    fn new(files: &[RawFd], capacity: usize, way: &Ring) -> io::Result<Self> {
        let Ring { tuned, linked } = *way;
        let steps = if files.first() == Some(&-1) { CHAIN } else { 1 + usize::from(linked) };
        let entries = (capacity * steps) as u32;
        let ring = if tuned { tuned_ring(entries)? } else { IoUring::new(entries)? };
        if tuned {
            ring.submitter().register_files(files)?;
        }
        Ok(Self {
            ring,
            chains: vec![Chain::default(); capacity],
            file: types::Fd(files.first().copied().unwrap_or(-1)),
            tuned,
            linked,
            registered: false,
            queued: 0,
            submit_at: 1,
            submit_first_at: 1,
        })
    }

    /// All transfers will be parts of `buffer`, whose pages the kernel then need not look up for
    /// each direct one; where it may not lock as much memory, it does. The untuned ring does, too.
    fn registering(mut self, buffer: &mut [u8]) -> Self {
        if !self.tuned {
            return self;
        }
        let whole = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: registering takes a reference to the pages and writes nothing. Only what `push`
        // submits does, and keeps its promise.
        self.registered = unsafe { self.ring.submitter().register_buffers(&[whole]) }.is_ok();
        self
    }

    /// Transfers are submitted by the call that waits, and by none before.
    fn together(mut self) -> Self {
        (self.submit_at, self.submit_first_at) = (self.chains.len(), self.chains.len());
        self
    }

    /// Submits what is queued. What a failed call leaves queued goes with the next one.
    fn submit(&mut self) {
        if !self.tuned {
            let _ = self.ring.submit();
            return;
        }
        let entries = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed, so there is none to be wrong; the queued entries keep
        // `push`'s promise. With GETEVENTS, so that completions which came meanwhile are worked on
        // now and not all at the end.
        let _ = unsafe { self.ring.submitter().enter::<()>(entries, 0, IORING_ENTER_GETEVENTS, None) };
        self.submit_at = (self.submit_at * 2 + 1).min(self.chains.len());
        self.queued = 0;
    }

    fn waits(&mut self) {
        self.queued = 0;
        self.submit_at = self.submit_first_at;
    }

    /// Queues the requests of an operation, of which one that fails cancels the next.
    ///
    /// # Safety
    ///
    /// As for [`Queue::push`].
    unsafe fn start<const N: usize>(&mut self, tag: u32, chain: [Entry; N]) {
        let mut step = 0..;
        let chain = chain.map(|entry| entry.user_data(u64::from(tag) << STEP_BITS | step.next().unwrap_or(0)));
        self.chains[tag as usize] = Chain { steps: N, left: N, results: [0; CHAIN] };
        // SAFETY: the caller's promise, and the files stay open: the ring is used within a call that
        // borrows them.
        let pushed = unsafe { self.ring.submission().push_multiple(&chain) };
        pushed.expect("the ring has an entry for each request in flight");
        self.queued += 1;
    }
}

/// The best set-up that this kernel knows: SINGLE_ISSUER is of 6.0, COOP_TASKRUN of 5.19.
pub(super) fn tuned_ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_clamp()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|_| IoUring::builder().setup_clamp().build(entries))
}

impl Queue for Uring {
    fn capacity(&self) -> usize {
        self.chains.len()
    }

    unsafe fn push(&mut self, tag: u32, request: Request<'_>) -> io::Result<()> {
        if self.tuned && self.queued == self.submit_at {
            // Only now that there is one more: the last ones of a turn are left to the call that
            // waits.
            self.submit();
        }
        let Request { kind, file, at, len, offset, path } = request;
        let (fixed, len) = (types::Fixed(file as u32), len as u32);
        let (plain, tuned, linked, registered) = (self.file, self.tuned, self.linked, self.registered);
        // SAFETY: this function's caller promises the same.
        let mut start = |entry: Entry| unsafe { self.start(tag, [entry]) };
        match (kind, path) {
            (Kind::Read, _) if registered => {
                start(opcode::ReadFixed::new(fixed, at, len, 0).offset(offset).build());
            }
            (Kind::Read, _) if tuned => start(opcode::Read::new(fixed, at, len).offset(offset).build()),
            (Kind::Read, _) => start(opcode::Read::new(plain, at, len).offset(offset).build()),
            (Kind::Write, _) if tuned => start(opcode::Write::new(fixed, at, len).offset(offset).build()),
            (Kind::Write, _) => start(opcode::Write::new(plain, at, len).offset(offset).build()),
            (Kind::DurableWrite, _) if linked => {
                let write = opcode::Write::new(fixed, at, len).offset(offset).build();
                let sync = opcode::Fsync::new(fixed).flags(types::FsyncFlags::DATASYNC).build();
                // SAFETY: as above.
                unsafe { self.start(tag, [write.flags(Flags::IO_LINK), sync]) };
            }
            (Kind::DurableWrite, _) => {
                let write = opcode::Write::new(fixed, at, len).offset(offset);
                start(write.rw_flags(libc::RWF_DSYNC).build());
            }
            (Kind::Whole, None) | (Kind::Gather, _) => return Err(io::ErrorKind::InvalidInput.into()),
            (Kind::Whole, Some(path)) => {
                // Each tag has a place for one file in the ring's table.
                let place = types::DestinationSlot::try_from_slot_target(tag);
                let place = place.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
                let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).flags(libc::O_RDONLY);
                let open = open.file_index(Some(place)).build().flags(Flags::IO_LINK);
                // It is shorter than its buffer, which breaks a soft link.
                let read = opcode::Read::new(types::Fixed(tag), at, len).offset(0).build().flags(Flags::IO_HARDLINK);
                // SAFETY: as above; the path lives as long as the ring.
                unsafe { self.start(tag, [open, read, opcode::Close::new(types::Fixed(tag)).build()]) };
            }
        }
        if !self.tuned {
            self.submit();
        }
        Ok(())
    }

    fn turn(&mut self, wait: usize) -> io::Result<()> {
        self.waits();
        match self.ring.submit_and_wait(wait) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// With a time-out of the waiting call itself (IORING_ENTER_EXT_ARG, 5.11).
    fn turn_until(&mut self, due: Instant) -> io::Result<()> {
        self.waits();
        let left = types::Timespec::from(due.saturating_duration_since(Instant::now()));
        match self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&left)) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn next(&mut self) -> Option<(u32, io::Result<usize>)> {
        loop {
            let entry = self.ring.completion().next()?;
            let (tag, step) = (entry.user_data() >> STEP_BITS, entry.user_data() & ((1 << STEP_BITS) - 1));
            let chain = &mut self.chains[tag as usize];
            chain.results[step as usize] = entry.result();
            chain.left -= 1;
            if chain.left > 0 {
                continue;
            }
            // The first that failed: those behind it were cancelled. Of a whole file the read counts.
            let moved = chain.results[usize::from(chain.steps == CHAIN)] as usize;
            let failed = chain.results.iter().find(|result| **result < 0);
            let result = failed.map_or(Ok(moved), |error| Err(io::Error::from_raw_os_error(-error)));
            return Some((tag as u32, result));
        }
    }
}
