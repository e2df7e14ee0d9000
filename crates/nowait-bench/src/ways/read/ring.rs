//! io_uring, twice: as the usual library drives it, and tuned by hand.
//!
//! `ring-plain`: no set-up flags, one system call per submission. `ring`: owned by one thread,
//! completions run at its next system call (COOP_TASKRUN: no interruption of the thread), the last
//! submission and the wait are one system call, and the files are registered. The buffers of what
//! goes past the page cache (a stream, random reads) are registered, too: the kernel need not look
//! up and hold their pages for each request. Through the page cache that has no use.
//!
//! The best number of reads or writes in one submission depends on where the data is. Cached reads
//! complete inside the submission, and the more of them share a system call the better (8 % on a
//! gather of 64). Cold ones should not wait for each other: from three on, the kernel holds them
//! back ("plugs" the queue) until the last is prepared, and meanwhile the disk is idle. So after
//! each wait the first read leaves alone, and each submission that follows carries twice as many
//! and one more. (Also tried: pairs, and as many more as complete at once; level with this at
//! best.)
//!
//! Gathers and streams are the exceptions. A batch goes together, in the call that waits for it. So
//! do the reads and writes of a stream: alone or together made no difference to reads of 16 KiB to
//! 1 MiB, and copies of 16 KiB at depth 4 took four tenths less processor time. `ring-1m` streams, too, in requests of a size and number of its
//! own: a program that may choose takes large ones, whatever it is asked for at a time.
//!
//! DEFER_TASKRUN instead of COOP_TASKRUN cost an eighth more processor time at depth 16, and up to
//! a tenth of the speed at 32.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Gather, Gathers, Reads, Route, Stream, Writes};
use crate::ways::queue::{Desk, Direction, Files, PacedQueue, Queue};
use crate::ways::stream::ends::Ends;
use crate::ways::{GatherWay, ReadWay, StreamWay, Way, WriteWay};

pub(crate) struct Ring {
    name: &'static str,
    tuned: bool,
}

pub(crate) const PLAIN: Ring = Ring { name: "ring-plain", tuned: false };
pub(crate) const TUNED: Ring = Ring { name: "ring", tuned: true };

/// Streams in requests of 1 MiB, or of as many whole blocks as fit into that. A block that is
/// larger is a request.
pub(crate) struct Large;

const LARGE_REQUEST: usize = 1 << 20;
/// Requests in flight: the device always has one, while others wait or turn from a read to a write.
const LARGE_IN_FLIGHT: usize = 4;

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

impl Way for Ring {
    fn name(&self) -> &'static str {
        self.name
    }

    fn refused(&self) -> Option<String> {
        IoUring::new(2).err().map(|error| format!("io_uring_setup: {error}"))
    }
}

impl ReadWay for Ring {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let mut ring = Uring::new(Files::both(job.target.file), job.depth, self.tuned)?;
        if job.target.direct {
            ring = ring.registering(buffer);
        }
        let mut desk = Desk::new(ring);
        if job.pace.is_some() { desk.paced_reads(job, buffer, round) } else { desk.reads(job, buffer, round) }
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let depth = job.records().min(GATHER_DEPTH);
        Desk::new(Uring::new(Files::both(job.target.file), depth, self.tuned)?.together()).gather(job, output, round)
    }
}

impl GatherWay for Ring {
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let capacity = job.depth * job.records;
        let ring = Uring::new(Files::both(job.target.file), capacity, self.tuned)?.together();
        Desk::new(ring).paced_gathers(job, buffer, round)
    }
}

impl WriteWay for Ring {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Desk::new(Uring::new(Files::both(job.file), job.depth, self.tuned)?).writes(job, buffer, round)
    }
}

impl StreamWay for Ring {
    fn direct(&self) -> bool {
        true
    }

    fn has_depth(&self) -> bool {
        true
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let ends = Ends::open(job, StreamWay::direct(self))?;
        let mut desk = Desk::new(Uring::new(ends.files(), job.depth, self.tuned)?.registering(buffer).together());
        ends.on_the_clock(round, |tally| desk.stream(job, job.block, buffer, tally))
    }
}

impl Way for Large {
    fn name(&self) -> &'static str {
        "ring-1m"
    }

    fn refused(&self) -> Option<String> {
        Way::refused(&TUNED)
    }
}

impl StreamWay for Large {
    fn direct(&self) -> bool {
        true
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn stream(&self, job: &Stream<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let request = (LARGE_REQUEST / job.block).max(1) * job.block;
        let large = Stream { block: request, depth: LARGE_IN_FLIGHT, ..*job };
        let mut memory = Buffer::new(large.depth * large.block);
        if let Route::Write { contents, .. } = job.route {
            contents.prepare(memory.bytes(), job.block);
        }
        let ends = Ends::open(&large, true)?;
        let mut desk = Desk::new(Uring::new(ends.files(), large.depth, true)?.registering(memory.bytes()).together());
        ends.on_the_clock(round, |tally| desk.stream(&large, job.block, memory.bytes(), tally))
    }
}

pub(in crate::ways) struct Uring {
    ring: IoUring,
    capacity: usize,
    from: types::Fd,
    to: types::Fd,
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
    pub(in crate::ways) fn new(files: Files<'_>, capacity: usize, tuned: bool) -> io::Result<Self> {
        let entries = capacity as u32;
        let ring = if tuned { tuned_ring(entries)? } else { IoUring::new(entries)? };
        let (from, to) = (files.from.as_raw_fd(), files.to.as_raw_fd());
        if tuned {
            ring.submitter().register_files(&[from, to])?;
        }
        let (from, to) = (types::Fd(from), types::Fd(to));
        Ok(Self { ring, capacity, from, to, tuned, registered: false, queued: 0, submit_at: 1, submit_first_at: 1 })
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
        let (from, to) = (types::Fixed(0), types::Fixed(1));
        let entry = match (direction, self.tuned, self.registered) {
            (Direction::Read, true, true) => opcode::ReadFixed::new(from, at, len, 0).offset(offset).build(),
            (Direction::Read, true, false) => opcode::Read::new(from, at, len).offset(offset).build(),
            (Direction::Read, false, _) => opcode::Read::new(self.from, at, len).offset(offset).build(),
            (Direction::Write, true, true) => opcode::WriteFixed::new(to, at, len, 0).offset(offset).build(),
            (Direction::Write, true, false) => opcode::Write::new(to, at, len).offset(offset).build(),
            (Direction::Write, false, _) => opcode::Write::new(self.to, at, len).offset(offset).build(),
        };
        let entry = entry.user_data(u64::from(tag));
        // SAFETY: the caller keeps the buffer valid and untouched until the completion, and the
        // files stay open: the ring is used within a call that borrows them.
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
