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
//! DEFER_TASKRUN instead of COOP_TASKRUN cost an eighth more processor time at depth 16, and up to
//! a tenth of the speed at 32.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use crate::measure::meter::Round;
use crate::measure::work::{Gather, Gathers, Reads, Writes};
use crate::ways::queue::{Desk, Direction, PacedQueue, Queue};
use crate::ways::{Does, GatherWay, ReadWay, Way, WriteWay, files, mixed, readwrite, write::heartbeat};

pub(crate) struct Ring {
    tuned: bool,
}

pub(crate) static RING_PLAIN: Way = Way::new(
    "ring-plain",
    "io_uring as it is usually driven: no flags, one submission a call",
    &[
        Does::Reads(&Ring { tuned: false }),
        Does::Gathers(&Ring { tuned: false }),
        Does::DirectReads(&Ring { tuned: false }),
        Does::Writes(&Ring { tuned: false }),
    ],
)
.hue(4)
.refused(refused);

pub(crate) static RING: Way = Way::new(
    "ring",
    "io_uring tuned by hand, from one thread, direct with registered buffers; in mixed, a ring for each of tokio's workers",
    &[Does::Reads(&Ring { tuned: true }), Does::Gathers(&Ring { tuned: true }), Does::DirectReads(&Ring { tuned: true }), Does::Scans(&Ring { tuned: true }), Does::LoadReads(&Ring { tuned: true }), Does::LoadGathers(&Ring { tuned: true }), Does::Writes(&Ring { tuned: true }), Does::Stalls(&heartbeat::Ring), Does::ReadsAndWrites(&readwrite::ring::DSYNC), Does::Files(&files::ring::Ring), Does::Mixed(&mixed::ring::Ring)],
)
.hue(5)
.refused(refused);

/// Why this system refuses io_uring, if it does.
pub(in crate::ways) fn refused() -> Option<String> {
    IoUring::new(2).err().map(|error| format!("io_uring_setup: {error}"))
}

/// The most reads of a gather in flight. More only wait for a place in the disk's own queue, inside
/// the submission.
const GATHER_DEPTH: usize = 128;

/// From `linux/io_uring.h`.
const IORING_ENTER_GETEVENTS: u32 = 1;

/// State of io_uring on this system, in words.
pub fn io_uring_state() -> String {
    match IoUring::new(2) {
        Ok(_) => "available".to_owned(),
        Err(error) => format!("refused ({error})"),
    }
}

impl ReadWay for Ring {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let mut ring = Uring::new(job.target.file, job.depth, self.tuned)?;
        if job.target.direct {
            ring = ring.registering(buffer);
        }
        let mut desk = Desk::new(ring);
        if job.pace.is_some() { desk.paced_reads(job, buffer, round) } else { desk.reads(job, buffer, round) }
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let depth = job.records().min(GATHER_DEPTH);
        Desk::new(Uring::new(job.target.file, depth, self.tuned)?.together()).gather(job, output, round)
    }
}

impl GatherWay for Ring {
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let capacity = job.depth * job.records;
        let ring = Uring::new(job.target.file, capacity, self.tuned)?.together();
        Desk::new(ring).paced_gathers(job, buffer, round)
    }
}

impl WriteWay for Ring {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Desk::new(Uring::new(job.file, job.depth, self.tuned)?).writes(job, buffer, round)
    }
}

pub(in crate::ways) struct Uring {
    ring: IoUring,
    capacity: usize,
    file: types::Fd,
    tuned: bool,
    /// All buffers lie in one that is registered.
    registered: bool,
    /// Number of queued transfers, the most in a submission, and the most in the first one after a
    /// wait.
    queued: usize,
    submit_at: usize,
    submit_first_at: usize,
}

impl Uring {
    pub(in crate::ways) fn new(file: &File, capacity: usize, tuned: bool) -> io::Result<Self> {
        let entries = capacity as u32;
        let ring = if tuned { tuned_ring(entries)? } else { IoUring::new(entries)? };
        if tuned {
            ring.submitter().register_files(&[file.as_raw_fd()])?;
        }
        let file = types::Fd(file.as_raw_fd());
        Ok(Self { ring, capacity, file, tuned, registered: false, queued: 0, submit_at: 1, submit_first_at: 1 })
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
        (self.submit_at, self.submit_first_at) = (self.capacity, self.capacity);
        self
    }

    /// Submits what is queued. What a failed call leaves queued goes with the next one.
    fn submit(&mut self) {
        if !self.tuned {
            let _ = self.ring.submit();
            return;
        }
        // SAFETY: no argument is passed, so there is none to be wrong; the queued entries keep
        // `push`'s promise. With GETEVENTS, so that completions which came meanwhile are worked on
        // now and not all at the end.
        let _ = unsafe { self.ring.submitter().enter::<()>(self.queued as u32, 0, IORING_ENTER_GETEVENTS, None) };
        self.submit_at = (self.submit_at * 2 + 1).min(self.capacity);
        self.queued = 0;
    }
}

/// The best set-up that this kernel knows: SINGLE_ISSUER is of 6.0, COOP_TASKRUN of 5.19.
pub(in crate::ways) fn tuned_ring(entries: u32) -> io::Result<IoUring> {
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
        self.capacity
    }

    unsafe fn push(&mut self, tag: u32, direction: Direction, at: *mut u8, len: usize, offset: u64) -> io::Result<()> {
        if self.tuned && self.queued == self.submit_at {
            // Only now that there is one more: the last ones of a turn are left to the call that
            // waits.
            self.submit();
        }
        let len = len as u32;
        let fixed = types::Fixed(0);
        let entry = match (direction, self.tuned, self.registered) {
            (Direction::Read, true, true) => opcode::ReadFixed::new(fixed, at, len, 0).offset(offset).build(),
            (Direction::Read, true, false) => opcode::Read::new(fixed, at, len).offset(offset).build(),
            (Direction::Read, false, _) => opcode::Read::new(self.file, at, len).offset(offset).build(),
            (Direction::Write, true, true) => opcode::WriteFixed::new(fixed, at, len, 0).offset(offset).build(),
            (Direction::Write, true, false) => opcode::Write::new(fixed, at, len).offset(offset).build(),
            (Direction::Write, false, _) => opcode::Write::new(self.file, at, len).offset(offset).build(),
        };
        let entry = entry.user_data(u64::from(tag));
        // SAFETY: the caller keeps the buffer valid and untouched until the completion, and the
        // file stays open: the ring is used within a call that borrows it.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring has an entry for each transfer in flight");
        self.queued += 1;
        if !self.tuned {
            self.submit();
        }
        Ok(())
    }

    fn turn(&mut self, wait: usize) -> io::Result<()> {
        self.queued = 0;
        self.submit_at = self.submit_first_at;
        match self.ring.submit_and_wait(wait) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn next(&mut self) -> Option<(u32, io::Result<usize>)> {
        let entry = self.ring.completion().next()?;
        let result = match entry.result() {
            count if count >= 0 => Ok(count as usize),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        Some((entry.user_data() as u32, result))
    }
}

impl PacedQueue for Uring {
    /// With a time-out of the waiting call itself (IORING_ENTER_EXT_ARG, 5.11).
    fn turn_until(&mut self, due: Instant) -> io::Result<()> {
        self.queued = 0;
        self.submit_at = self.submit_first_at;
        let left = types::Timespec::from(due.saturating_duration_since(Instant::now()));
        match self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&left)) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}
