//! io_uring tuned by hand:
//!
//! * One thread owns the ring. Completions run at its next system call (COOP_TASKRUN), without an
//!   interrupt of the thread.
//! * The last submission and the wait are one system call.
//! * The file is registered. For direct I/O the buffers are registered, too, so that the kernel
//!   need not look up and pin their pages for each request. Through the page cache this has no
//!   effect.
//!
//! The best number of requests in one submission depends on where the data is. Cached reads
//! complete inside the submission: the more of them share a system call, the better (8 % on a
//! gather of 64). Cold reads should not wait for each other: from three on, the kernel plugs the
//! queue until the last is prepared, and meanwhile the disk is idle. So after each wait the first
//! read is submitted alone, and each further submission has twice as many reads plus one. (Pairs,
//! and growth by the number of immediate completions, were at best equally fast.)
//!
//! The requests of a gather in `gather` are all submitted by the call that waits for them.
//!
//! A small file is one chain: open into the ring's table, read, close. In `load`, a gather is a
//! request for each record. Both count as one operation, and are submitted like single requests.
//!
//! DEFER_TASKRUN instead of COOP_TASKRUN took an eighth more processor time at depth 16, and was up
//! to a tenth slower at 32.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::drive::{Drive, FileOpening, Job, Kind, Operation};
use super::queue::Desk;
use super::{Does, Way, mixed, stall};
use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Gather};

pub(crate) struct Ring;

pub(crate) static RING: Way = Way::new(
    "ring",
    "io_uring tuned by hand, from one thread; registered buffers for direct I/O; in mixed, a ring for each tokio worker",
    &[
        Does::Reads(&Ring),
        Does::Gathers(&Ring),
        Does::DirectReads(&Ring),
        Does::Scans(&Ring),
        Does::LoadReads(&Ring),
        Does::LoadGathers(&Ring),
        Does::Writes(&Ring),
        Does::Stalls(&stall::ChainedWrites),
        Does::Files(&Ring),
        Does::Mixed(&mixed::Tasks::Ring),
    ],
)
.hue(5)
.refused(refused);

/// Returns why this system refuses io_uring, if it does.
pub(super) fn refused() -> Option<String> {
    IoUring::new(2).err().map(|error| format!("io_uring_setup: {error}"))
}

/// Maximum number of reads of a gather in flight. More would wait for a place in the disk's queue,
/// inside the submission.
const GATHER_DEPTH: usize = 128;

/// `IORING_ENTER_GETEVENTS` of `linux/io_uring.h`.
const IORING_ENTER_GETEVENTS: u32 = 1;

/// Number of requests that open, read and close a file.
const CHAIN: usize = 3;

/// Describes the state of io_uring on this system.
pub fn io_uring_state() -> String {
    refused().map_or("available".to_owned(), |why| format!("refused ({why})"))
}

impl Drive for Ring {
    /// Opening files into a ring's table requires Linux 5.15, and their use in the same chain 5.19.
    fn refuses_files(&self) -> Option<String> {
        // Tries the chain on a file of any length, which may be read in part.
        let (path, mut block) = ([c"/proc/self/status".to_owned()], Buffer::new(64 << 10));
        let read =
            Uring::new(&[-1], 1, CHAIN).and_then(|ring| Desk::new(ring).one(Operation::whole(0), &path, block.bytes()));
        read.err().map(|error| format!("io_uring: open, read and close in one chain: {error}"))
    }

    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let paths = job.paths()?;
        if !paths.is_empty() {
            let ring = Uring::new(&vec![-1; job.depth], job.depth, CHAIN)?;
            let mut memory = Buffer::new(job.depth * (job.len_max() + 1));
            return Desk::new(ring).drive(job, &paths, memory.bytes(), round);
        }
        let files: Vec<RawFd> = job.files.iter().map(|file| file.as_raw_fd()).collect();
        let mut ring = Uring::new(&files, job.depth, job.records().max(1))?;
        if job.records() > 0 {
            ring = ring.together();
        } else if let (true, FileOpening::ByName { writes: false, .. }) = (job.direct, job.open()) {
            ring = ring.registering(buffer);
        }
        Desk::new(ring).drive(job, &[], buffer, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let depth = job.records().min(GATHER_DEPTH);
        Desk::new(Uring::new(&[job.target.file.as_raw_fd()], depth, 1)?.together()).gather(job, output, round)
    }
}

/// Makes a tuned ring of one thread over one file, with room for `capacity` operations.
pub(super) fn desk(file: &impl AsRawFd, capacity: usize) -> io::Result<Desk> {
    Ok(Desk::new(Uring::new(&[file.as_raw_fd()], capacity, 1)?))
}

pub(super) struct Uring {
    ring: IoUring,
    /// The requests of each tag.
    chains: Vec<Chain>,
    /// True if all buffers are part of a registered one.
    registered: bool,
    /// Number of queued operations; maximum in a submission, and in the first one after a wait.
    queued: usize,
    submit_at: usize,
    submit_first_at: usize,
}

/// The requests of an operation.
#[derive(Clone, Copy, Default)]
struct Chain {
    /// Incomplete requests.
    left: usize,
    /// Bytes moved by the complete requests.
    moved: usize,
    failed: Option<i32>,
}

/// Request to a ring.
#[derive(Clone, Copy)]
pub(super) struct Request<'p> {
    pub kind: Kind,
    pub file: usize,
    pub at: *mut u8,
    pub len: usize,
    pub offset: u64,
    /// Path of a whole file, which outlives the ring.
    pub path: Option<&'p CStr>,
    /// Records of a gather.
    pub extents: &'p [(u64, usize)],
}

impl Uring {
    /// Makes a ring for `capacity` operations of up to `requests` requests each. `files` outlive
    /// the ring; -1 is a place for a file that is opened by name.
    fn new(files: &[RawFd], capacity: usize, requests: usize) -> io::Result<Self> {
        let ring = tuned_ring((capacity * requests) as u32)?;
        ring.submitter().register_files(files)?;
        let chains = vec![Chain::default(); capacity];
        Ok(Self { ring, chains, registered: false, queued: 0, submit_at: 1, submit_first_at: 1 })
    }

    /// Registers `buffer`, of which all transfers are parts, so that the kernel need not look up
    /// pages for each direct request. Has no effect beyond the limit on locked memory.
    fn registering(mut self, buffer: &mut [u8]) -> Self {
        let whole = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: registering takes references to the pages, and writes nothing. Only requests from
        // `push` write, under its contract.
        self.registered = unsafe { self.ring.submitter().register_buffers(&[whole]) }.is_ok();
        self
    }

    /// Submits transfers only by the call that waits.
    fn together(mut self) -> Self {
        (self.submit_at, self.submit_first_at) = (self.chains.len(), self.chains.len());
        self
    }

    /// Submits queued requests. The next call submits those that a failed call leaves.
    fn submit(&mut self) {
        let entries = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed, and the queued entries meet the contract of `push`.
        // GETEVENTS makes the kernel process completions now, and not all at the end.
        let _ = unsafe { self.ring.submitter().enter::<()>(entries, 0, IORING_ENTER_GETEVENTS, None) };
        self.submit_at = (self.submit_at * 2 + 1).min(self.chains.len());
        self.queued = 0;
    }

    fn waits(&mut self) {
        self.queued = 0;
        self.submit_at = self.submit_first_at;
    }

    /// Queues the requests of an operation. If a request fails, the kernel cancels those linked
    /// after it.
    ///
    /// # Safety
    ///
    /// As for [`Uring::push`].
    unsafe fn start(&mut self, tag: u32, chain: &mut [Entry]) {
        chain.iter_mut().for_each(|entry| entry.set_user_data(u64::from(tag)));
        self.chains[tag as usize] = Chain { left: chain.len(), ..Chain::default() };
        // SAFETY: the caller's promise. The files stay open, since the ring is used within a call
        // that borrows them.
        let pushed = unsafe { self.ring.submission().push_multiple(chain) };
        pushed.expect("the ring has an entry for each request in flight");
        self.queued += 1;
    }

    /// Returns the maximum number of operations in flight.
    pub(super) fn capacity(&self) -> usize {
        self.chains.len()
    }

    /// Queues an operation, which may be submitted at once or by the next [`Uring::turn`]. The
    /// caller keeps at most [`Uring::capacity`] operations in flight. After an error, the kernel
    /// never gets the operation.
    ///
    /// # Safety
    ///
    /// Until [`Uring::next`] has returned `tag`, the `len` bytes at `at` are valid for reads and
    /// writes, and no other code accesses them; the same holds for `path`.
    pub(super) unsafe fn push(&mut self, tag: u32, request: Request<'_>) -> io::Result<()> {
        if self.queued == self.submit_at {
            // Submitted only when another operation follows: the waiting call submits the last ones
            // of a turn.
            self.submit();
        }
        let Request { kind, file, at, len, offset, path, extents } = request;
        let (file, len) = (types::Fixed(if kind == Kind::Gather { 0 } else { file as u32 }), len as u32);
        let read = |at, len, offset| opcode::Read::new(file, at, len).offset(offset).build();
        let write = opcode::Write::new(file, at, len).offset(offset);
        let mut many;
        let chain: &mut [Entry] = match (kind, path) {
            (Kind::Read, _) if self.registered => {
                &mut [opcode::ReadFixed::new(file, at, len, 0).offset(offset).build()]
            }
            (Kind::Read, _) => &mut [read(at, len, offset)],
            (Kind::Write, _) => &mut [write.build()],
            (Kind::DurableWrite, _) => &mut [write.rw_flags(libc::RWF_DSYNC).build()],
            (Kind::Gather, _) => {
                let mut records = Vec::with_capacity(extents.len());
                let mut at = at;
                for &(offset, len) in extents {
                    records.push(read(at, len as u32, offset));
                    at = at.wrapping_add(len);
                }
                many = records;
                &mut many
            }
            (Kind::Whole, None) => return Err(io::ErrorKind::InvalidInput.into()),
            (Kind::Whole, Some(path)) => {
                // Each tag has one file slot in the ring's table.
                let place = types::DestinationSlot::try_from_slot_target(tag);
                let place = place.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
                let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).flags(libc::O_RDONLY);
                let open = open.file_index(Some(place)).build().flags(Flags::IO_LINK);
                // A hard link, since the read is shorter than its buffer, which would break a soft
                // link.
                let read = opcode::Read::new(types::Fixed(tag), at, len).offset(0).build().flags(Flags::IO_HARDLINK);
                &mut [open, read, opcode::Close::new(types::Fixed(tag)).build()]
            }
        };
        // SAFETY: the contract of this function is the same; the path outlives the ring.
        unsafe { self.start(tag, chain) };
        Ok(())
    }

    /// Submits queued requests and waits for at least `wait` completions. A signal may end the wait
    /// early.
    pub(super) fn turn(&mut self, wait: usize) -> io::Result<()> {
        self.waits();
        match self.ring.submit_and_wait(wait) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Submits queued requests and waits for a completion until `due`, by the timeout of the
    /// waiting call (IORING_ENTER_EXT_ARG, 5.11). A signal may end the wait early.
    pub(super) fn turn_until(&mut self, due: Instant) -> io::Result<()> {
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

    /// Returns the next complete operation: its tag and the number of bytes.
    pub(super) fn next(&mut self) -> Option<(u32, io::Result<usize>)> {
        loop {
            let entry = self.ring.completion().next()?;
            let chain = &mut self.chains[entry.user_data() as usize];
            match usize::try_from(entry.result()) {
                Ok(count) => chain.moved += count,
                // Keeps the first error instead of the cancellations that it caused.
                Err(_) if chain.failed.is_some_and(|error| error != libc::ECANCELED) => {}
                Err(_) => chain.failed = Some(-entry.result()),
            }
            chain.left -= 1;
            if chain.left == 0 {
                let result = chain.failed.map_or(Ok(chain.moved), |error| Err(io::Error::from_raw_os_error(error)));
                return Some((entry.user_data() as u32, result));
            }
        }
    }
}

/// Sets up a ring with the best flags of this kernel: SINGLE_ISSUER (6.0), COOP_TASKRUN (5.19).
pub(super) fn tuned_ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_clamp()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|_| IoUring::builder().setup_clamp().build(entries))
}
