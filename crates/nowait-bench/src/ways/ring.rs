//! io_uring, twice: as the usual library drives it, and as well as we know how to.
//!
//! `ring-plain`: no set-up flags, one system call per submission.
//! `ring`: owned by one thread, completions run at its next system call (COOP_TASKRUN: no interruption of the thread), the
//! last submission and the wait are one system call, and the file is registered.
//!
//! How many reads or writes one submission should carry depends on where the data is. Cached reads complete inside the
//! submission, and the more of them share a system call the better (8 % on a gather of 64). Cold ones should not wait for
//! each other: from three on, the kernel holds them back ("plugs" the queue) until the last is prepared, and meanwhile
//! the disk is idle. So after each wait the first read leaves alone, and each submission that follows carries twice as many and
//! one more. (Also tried: pairs, and as many more as complete at once; level with this at best.)
//!
//! DEFER_TASKRUN instead of COOP_TASKRUN cost an eighth more processor time at depth 16, and up to a tenth of the speed at 32.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::queue::{Desk, Direction, Queue};
use super::{Way, WriteWay};
use crate::meter::Round;
use crate::work::{Gather, Reads, Writes};

pub struct Ring {
    name: &'static str,
    tuned: bool,
}

pub const PLAIN: Ring = Ring { name: "ring-plain", tuned: false };
pub const TUNED: Ring = Ring { name: "ring", tuned: true };

/// The most reads of a gather in flight. More only wait for a place in the disk's own queue, inside the submission.
const GATHER_DEPTH: usize = 128;

/// Of `linux/io_uring.h`.
const IORING_ENTER_GETEVENTS: u32 = 1;

/// Whether this system lets us make a ring, in words.
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

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Desk::new(Uring::new(job.target.file, job.depth, self.tuned, Direction::Read)?).reads(job, buffer, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let depth = job.records().min(GATHER_DEPTH);
        Desk::new(Uring::new(job.target.file, depth, self.tuned, Direction::Read)?).gather(job, output, round)
    }
}

impl WriteWay for Ring {
    fn name(&self) -> &'static str {
        self.name
    }

    fn refused(&self) -> Option<String> {
        Way::refused(self)
    }

    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Desk::new(Uring::new(job.file, job.depth, self.tuned, Direction::Write)?).writes(job, buffer, round)
    }
}

pub(super) struct Uring {
    ring: IoUring,
    capacity: usize,
    file: types::Fd,
    tuned: bool,
    direction: Direction,
    /// How many transfers are queued, and how many a submission may carry.
    queued: usize,
    submit_at: usize,
}

impl Uring {
    pub(super) fn new(file: &File, capacity: usize, tuned: bool, direction: Direction) -> io::Result<Self> {
        let entries = capacity as u32;
        let ring = if tuned { tuned_ring(entries)? } else { IoUring::new(entries)? };
        let file = file.as_raw_fd();
        if tuned {
            ring.submitter().register_files(&[file])?;
        }
        Ok(Self { ring, capacity, file: types::Fd(file), tuned, direction, queued: 0, submit_at: 1 })
    }
}

impl Uring {
    /// Submits what is queued. What a failed call leaves queued goes with the next one.
    fn submit(&mut self) {
        if !self.tuned {
            let _ = self.ring.submit();
            return;
        }
        // SAFETY: no argument is passed, so there is none to be wrong; the queued entries keep `push`'s promise.
        // With GETEVENTS, so that completions which came meanwhile are worked on now and not all at the end.
        let _ = unsafe { self.ring.submitter().enter::<()>(self.queued as u32, 0, IORING_ENTER_GETEVENTS, None) };
        self.submit_at = (self.submit_at * 2 + 1).min(self.capacity);
        self.queued = 0;
    }
}

/// The best set-up that this kernel knows: SINGLE_ISSUER is of 6.0, COOP_TASKRUN of 5.19.
fn tuned_ring(entries: u32) -> io::Result<IoUring> {
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

    fn direction(&self) -> Direction {
        self.direction
    }

    unsafe fn push(&mut self, tag: u32, at: *mut u8, len: usize, offset: u64) -> io::Result<()> {
        if self.tuned && self.queued == self.submit_at {
            // Only now that there is one more: the last ones of a turn are left to the call that waits.
            self.submit();
        }
        let len = len as u32;
        let entry = match (self.direction, self.tuned) {
            (Direction::Read, true) => opcode::Read::new(types::Fixed(0), at, len).offset(offset).build(),
            (Direction::Read, false) => opcode::Read::new(self.file, at, len).offset(offset).build(),
            (Direction::Write, true) => opcode::Write::new(types::Fixed(0), at, len).offset(offset).build(),
            (Direction::Write, false) => opcode::Write::new(self.file, at, len).offset(offset).build(),
        };
        let entry = entry.user_data(u64::from(tag));
        // SAFETY: the caller keeps the buffer valid and untouched until the completion, and the file stays open: the
        // ring is used within a call that borrows it.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring has an entry for each transfer in flight");
        self.queued += 1;
        if !self.tuned {
            self.submit();
        }
        Ok(())
    }

    fn turn(&mut self, wait: usize) -> io::Result<()> {
        self.queued = 0;
        self.submit_at = 1;
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
