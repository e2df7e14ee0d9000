//! io_uring: set-up by trying, encoding a request, decoding a result.
//!
//! `unsafe` here: both of the ring's queues are used through a shared reference, each under a lock
//! of the caller. A ring is dropped in the process that made it, and in no other.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Kernel, Untaken, Usage};
use crate::engine::QueueRefusal;
use crate::op::{Owner, Request, Slot};
use crate::stats::Count;
use crate::sys::{Errno, TRANSFER_MAX, WriteFlags, fork_generation};

/// Operations in flight that one ring takes; more wait in line. Also the size of its submission
/// queue, so that one thread's push never finds it full after a flush, and the completion queue
/// (twice as long) never overflows.
const DEPTH: u32 = 256;
/// The smallest ring that is tried when memory for a larger one is refused (RLIMIT_MEMLOCK counts
/// again since 6.14).
const DEPTH_MIN: u32 = 8;
/// Kernel workers (`IORING_REGISTER_IOWQ_MAX_WORKERS`, 5.15): bounded ones serve files, and by
/// default there may be hundreds of the unbounded kind.
const KERNEL_WORKERS_MAX: u32 = 32;

pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// The entries that were granted.
    depth: u32,
    /// `IORING_OP_READ` exists (5.6); READV always does.
    has_read: bool,
    generation: u64,
}

impl Drop for Ring {
    fn drop(&mut self) {
        // In a child something else may lie at the ring's addresses by now: they are not unmapped.
        if self.is_ours() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

/// Tries set-up flags from the best to none, and smaller rings when memory is short. Kernel
/// versions are not asked for: a filter, a sysctl, a limit or an old kernel all answer in an errno.
pub(super) fn set_up(usage: Usage) -> Result<Ring, QueueRefusal> {
    let mut entries = DEPTH;
    loop {
        match set_up_with(usage, entries) {
            Ok(ring) => return Ok(ring),
            Err(Errno::NOMEM) if entries > DEPTH_MIN => entries /= 2,
            Err(errno) => return Err(QueueRefusal { errno, entries }),
        }
    }
}

fn set_up_with(usage: Usage, entries: u32) -> Result<Ring, Errno> {
    let mut best = IoUring::builder();
    best.dontfork().setup_clamp();
    let plain = best.clone();
    if usage == Usage::Owned {
        // Completions wait for the thread's next system call, of whatever kind, and do not
        // interrupt it. (DEFER_TASKRUN has them wait for an enter of this ring: 12 % more processor
        // time at depth 16, and up to a tenth slower at 32.)
        best.setup_coop_taskrun().setup_taskrun_flag();
    }
    let mut ring: std::io::Result<IoUring> = best.build(entries);
    if usage == Usage::Owned && matches!(&ring, Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()))
    {
        ring = plain.build(entries);
    }
    let ring = ring.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    // A filter may let a ring be made and not be used.
    ring.submit().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    cap_kernel_workers(&ring);
    let mut probe = Probe::new();
    let has_read = ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(opcode::Read::CODE);
    let depth = ring.params().sq_entries();
    Ok(Ring { ring: ManuallyDrop::new(ring), depth, has_read, generation: fork_generation() })
}

/// Workers belong to the thread and all its rings, which may be others' too: only the kind that
/// serves files is capped, and only downwards. Zero asks and changes nothing. A kernel without this
/// has its own limits.
fn cap_kernel_workers(ring: &IoUring) {
    let mut bounded_and_unbounded = [0, 0];
    let asked = ring.submitter().register_iowq_max_workers(&mut bounded_and_unbounded);
    if asked.is_ok() && bounded_and_unbounded[0] > KERNEL_WORKERS_MAX {
        let _ = ring.submitter().register_iowq_max_workers(&mut [KERNEL_WORKERS_MAX, 0]);
    }
}

impl Kernel for Ring {
    fn depth(&self) -> u32 {
        self.depth
    }

    /// Its memory is not mapped in a child (`MADV_DONTFORK`), and the kernel completes into the
    /// parent's.
    fn is_ours(&self) -> bool {
        self.generation == fork_generation()
    }

    fn count(&self) -> Count {
        Count::Ring
    }

    fn looks_freely(&self) -> bool {
        true
    }

    fn begin(&self, slot: &Arc<Slot>) -> bool {
        self.encode(slot).is_some()
    }

    unsafe fn stage(&self, slot: &Arc<Slot>, untaken: &mut Untaken) -> bool {
        // SAFETY: memory and descriptor of the entry belong to the slot; the rest is the caller's
        // promise.
        self.encode(slot).is_some_and(|entry| unsafe { self.push(entry, Arc::as_ptr(slot) as u64, untaken) })
    }

    unsafe fn stage_poll(&self, fd: BorrowedFd<'_>, user_data: u64, untaken: &mut Untaken) -> bool {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: a poll has no memory, and the kernel keeps the descriptor's file open as long as it
        // polls; the rest is the caller's promise.
        unsafe { self.push(entry, user_data, untaken) }
    }

    fn enter(&self, want: usize, patience: Option<Duration>) -> std::io::Result<usize> {
        let submitter = self.ring.submitter();
        match patience.filter(|_| want > 0) {
            None => submitter.submit_and_wait(want),
            Some(patience) if !self.ring.params().is_feature_ext_arg() => {
                let submitted = submitter.submit()?;
                let timeout = Timespec::try_from(patience).ok();
                rustix::event::poll(&mut [PollFd::new(&*self.ring, PollFlags::IN)], timeout.as_ref())?;
                Ok(submitted)
            }
            Some(patience) => {
                let timeout = types::Timespec::from(patience);
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&timeout))
            }
        }
    }

    unsafe fn take_untaken(&self, untaken: &mut Untaken) -> Vec<u64> {
        // SAFETY: the caller's promise.
        untaken.take(unsafe { self.ring.submission_shared() }.len())
    }

    unsafe fn collect(&self, max: usize, each: &mut dyn FnMut(u64, Result<usize, Errno>)) -> usize {
        // SAFETY: the caller's promise.
        let queue = unsafe { self.ring.completion_shared() };
        queue.take(max).map(|entry| each(entry.user_data(), decode(&entry))).count()
    }
}

impl Ring {
    /// # Safety
    /// The caller has the lock of the submission queue. Memory and descriptor of the entry outlast
    /// its completion.
    unsafe fn push(&self, entry: squeue::Entry, user_data: u64, untaken: &mut Untaken) -> bool {
        // SAFETY: the caller's promises.
        let (is_pushed, length) = unsafe {
            let mut queue = self.ring.submission_shared();
            (queue.push(&entry.user_data(user_data)).is_ok(), queue.len())
        };
        if is_pushed {
            untaken.push(user_data, length);
        }
        is_pushed
    }

    /// Encodes the request of a slot, which begins; the caller adds the user data. None if a ring
    /// would use a kernel worker: a thread of ours is the better choice.
    fn encode(&self, slot: &Arc<Slot>) -> Option<squeue::Entry> {
        slot.begin(|request, owner| {
            let is_direct = matches!(owner, Owner::File(file) if file.is_direct());
            let fd = types::Fd(owner.handle()?.descriptor().ok()?.as_raw_fd());
            match request {
                Request::Read(transfer) => {
                    let flags = if transfer.attempt { libc::RWF_NOWAIT } else { 0 };
                    Some(match transfer.segments() {
                        [one] if self.has_read => {
                            opcode::Read::new(fd, one.iov_base.cast(), one.iov_len.min(TRANSFER_MAX) as u32)
                                .offset(transfer.position())
                                .rw_flags(flags)
                                .build()
                        }
                        many => {
                            let count = many.len().min(crate::sys::SEGMENTS_MAX) as u32;
                            let entry = opcode::Readv::new(fd, many.as_ptr(), count);
                            entry.offset(transfer.position()).rw_flags(flags).build()
                        }
                    })
                }
                // A kernel worker would make a buffered write that blocks, and any sync.
                Request::Write(transfer, flags) if is_direct => {
                    let many = transfer.segments();
                    let count = many.len().min(crate::sys::SEGMENTS_MAX) as u32;
                    let entry = opcode::Writev::new(fd, many.as_ptr(), count).offset(transfer.position());
                    let flags = if transfer.attempt { flags.with(WriteFlags::NOWAIT) } else { *flags };
                    Some(entry.rw_flags(flags.bits() as i32).build())
                }
                Request::Write(..)
                | Request::Sync { .. }
                | Request::SyncRange { .. }
                | Request::SetLen(_)
                | Request::Allocate { .. }
                | Request::ReserveAhead { .. }
                | Request::GiveBack
                | Request::Rename { .. }
                | Request::Remove(_)
                | Request::SyncDir(_)
                | Request::CreateDir(_)
                | Request::OpenDir(_)
                | Request::List(_)
                | Request::Call(_)
                | Request::Open { .. }
                | Request::Size
                | Request::Advise { .. }
                | Request::Fault { .. }
                | Request::Close(_) => None,
            }
        })
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Decodes an operation's result: a count, or a negated errno.
fn decode(entry: &cqueue::Entry) -> Result<usize, Errno> {
    match entry.result() {
        n if n >= 0 => Ok(n as usize),
        errno => Err(Errno::from_raw_os_error(-errno)),
    }
}
