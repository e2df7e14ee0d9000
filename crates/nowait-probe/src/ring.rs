//! The ring: submits requests by one enter, and returns those that were complete at its return.
//!
//! `unsafe` here: pushing entries whose memory the ring keeps until their completion, and the
//! enter.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::kernel::sleeps;
use super::tracepoints::{Counts, Tracepoints};
use nowait::Buf;

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const GETEVENTS: u32 = 1;
/// A smaller ring is not useful.
const ENTRIES_MIN: u32 = 8;
/// Consecutive enters that take no entry, after which the ring is abandoned.
const IDLE_ENTERS_MAX: u32 = 1000;

/// Request to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Read {
        offset: u64,
        length: usize,
        /// True to force the request on a worker (IOSQE_ASYNC).
        forced: bool,
    },
    Write {
        offset: u64,
        length: usize,
    },
    Sync,
}

impl Ask {
    fn length(self) -> usize {
        match self {
            Ask::Read { length, .. } | Ask::Write { length, .. } => length,
            Ask::Sync => 0,
        }
    }

    fn entry(self, fd: types::Fd, memory: *mut u8) -> squeue::Entry {
        match self {
            Ask::Read { offset, length, forced } => {
                let entry = opcode::Read::new(fd, memory, length as u32).offset(offset).build();
                if forced { entry.flags(squeue::Flags::ASYNC) } else { entry }
            }
            Ask::Write { offset, length } => {
                opcode::Write::new(fd, memory.cast_const(), length as u32).offset(offset).build()
            }
            Ask::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }
}

pub(super) struct Ring {
    ring: IoUring,
    buffer: Buf,
    /// True if requests complete only in this thread's enters.
    pub(super) defers: bool,
}

/// One submission of some requests, until the last of them is complete.
pub(super) struct Ran {
    /// Completions that were available when the submission returned.
    pub(super) present: u32,
    /// Number of times the thread slept inside the submission.
    pub(super) sleeps: u64,
    pub(super) submit_ns: u64,
    pub(super) total_ns: u64,
    /// Counts of the kernel's tracepoints, if available.
    pub(super) traced: Option<TracedRun>,
    /// In the order of completion.
    pub(super) results: Vec<Result<usize, Errno>>,
}

/// Number of times the submitting thread passed each tracepoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracedRun {
    /// Until the submission returned.
    pub(super) completions: u64,
    /// Until the submission returned.
    pub(super) sleeps: u64,
    /// Until the last completion, since some requests are given to a worker only then.
    pub(super) punts: u64,
}

impl Ring {
    /// Sets up a ring in which requests complete only in this thread's enters (SINGLE_ISSUER, 6.0;
    /// DEFER_TASKRUN, 6.1). On an older kernel, or if `defer` is false, it is a plain ring, in
    /// which a completion may be posted at any time. It has `entries`, or fewer if the limit on
    /// locked memory requires it (before 5.12).
    pub(super) fn set_up(entries: u32, defer: bool) -> Result<Ring, Errno> {
        let mut plain = IoUring::builder();
        plain.dontfork().setup_clamp();
        let mut best = plain.clone();
        best.setup_single_issuer().setup_defer_taskrun();
        let build = |entries: u32| -> Result<(IoUring, bool), Errno> {
            let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
            if defer {
                match best.build(entries).map_err(errno) {
                    Err(Errno::INVAL) => {}
                    ring => return ring.map(|ring| (ring, true)),
                }
            }
            plain.build(entries).map_err(errno).map(|ring| (ring, false))
        };
        let mut entries = entries.max(ENTRIES_MIN);
        let (ring, defers) = loop {
            match build(entries) {
                Err(Errno::NOMEM) if entries > ENTRIES_MIN => entries /= 2,
                built => break built?,
            }
        };
        // A filter may allow the set-up of a ring but not its use.
        ring.submitter().submit().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        Ok(Ring { ring, buffer: Buf::zeroed(0), defers })
    }

    /// Maximum number of requests of one submission.
    pub(super) fn entries(&self) -> u32 {
        self.ring.params().sq_entries()
    }

    /// A request that needs no file, on a worker or not.
    pub(super) fn nop(&mut self, forced: bool, tracepoints: Option<&Tracepoints>) -> Result<Ran, Errno> {
        let entry = opcode::Nop::new().build();
        self.run(&[if forced { entry.flags(squeue::Flags::ASYNC) } else { entry }], tracepoints)
    }

    /// Submits requests by one enter and waits for all of them. Each uses separate memory: btrfs
    /// reports damage if several reads share memory. After an error the ring is unusable.
    pub(super) fn ask(
        &mut self,
        file: BorrowedFd<'_>,
        asks: &[Ask],
        tracepoints: Option<&Tracepoints>,
    ) -> Result<Ran, Errno> {
        let bytes = asks.iter().map(|ask| ask.length()).sum();
        if self.buffer.len() < bytes {
            self.buffer = Buf::zeroed(bytes);
            self.buffer.fill(0x5a);
        }
        let fd = types::Fd(file.as_raw_fd());
        let mut memory = self.buffer.as_mut_ptr();
        let entries = asks.iter().map(|ask| {
            let own = memory;
            memory = memory.wrapping_add(ask.length());
            ask.entry(fd, own)
        });
        let entries: Vec<_> = entries.collect();
        let ran = self.run(&entries, tracepoints);
        if ran.is_err() {
            // The kernel may still work on the requests, so their memory is leaked.
            std::mem::forget(std::mem::replace(&mut self.buffer, Buf::zeroed(0)));
        }
        ran
    }

    /// The memory that entries name is that of `self.buffer`.
    fn run(&mut self, entries: &[squeue::Entry], tracepoints: Option<&Tracepoints>) -> Result<Ran, Errno> {
        // SAFETY: the entries' memory is `self.buffer`, which is kept until all entries are
        // complete, and leaked after an error. Their file is open until this returns.
        unsafe { self.ring.submission().push_multiple(entries) }.map_err(|_| Errno::BUSY)?;
        let so_far = || tracepoints.and_then(Tracepoints::so_far);
        let at_first = so_far();
        let slept_before = sleeps();
        let begun = Instant::now();
        // Without GETEVENTS, so that only the submission itself completes requests.
        self.submit()?;
        let submit_ns = begun.elapsed().as_nanos() as u64;
        // Before any other system call: without `defers`, each may post completions.
        let present = self.ring.completion().len();
        let sleeps = sleeps() - slept_before;
        let submitted = so_far();
        let mut results: Vec<_> = self.ring.completion().map(|answer| decode(&answer)).collect();
        let mut total_ns = submit_ns;
        while results.len() < entries.len() {
            self.enter(1, GETEVENTS)?;
            total_ns = begun.elapsed().as_nanos() as u64;
            results.extend(self.ring.completion().map(|answer| decode(&answer)));
        }
        let traced =
            at_first.zip(submitted).zip(so_far()).map(|((before, submitted), after): ((Counts, Counts), _)| {
                TracedRun {
                    completions: submitted.completions - before.completions,
                    sleeps: submitted.sleeps - before.sleeps,
                    punts: after.punts - before.punts,
                }
            });
        Ok(Ran { present: present as u32, sleeps, submit_ns, total_ns, traced, results })
    }

    /// Until the kernel has taken all entries, which is one enter unless memory is short.
    fn submit(&mut self) -> Result<(), Errno> {
        for _ in 0..IDLE_ENTERS_MAX {
            self.enter(0, 0)?;
            if self.ring.submission().is_empty() {
                return Ok(());
            }
        }
        Err(Errno::BUSY)
    }

    fn enter(&mut self, want: u32, flags: u32) -> Result<(), Errno> {
        loop {
            let staged = self.ring.submission().len() as u32;
            // SAFETY: no argument is passed; the staged entries meet the contract of `run`.
            match unsafe { self.ring.submitter().enter::<()>(staged, want, flags, None) } {
                Err(error) if is_lasting(&error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
                // Interrupted, or memory is short: try again.
                Err(_) => {}
                Ok(_) => return Ok(()),
            }
        }
    }
}

/// Returns whether enters of this ring are permanently refused, for example by a later seccomp
/// filter. Other errors are temporary: interruptions, timeouts, shortage of memory or of room for
/// completions.
fn is_lasting(error: &std::io::Error) -> bool {
    !matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY | Errno::NOMEM))
}

/// Converts the kernel's result of an operation: a count, or a negative errno.
fn decode(entry: &cqueue::Entry) -> Result<usize, Errno> {
    match entry.result() {
        n if n >= 0 => Ok(n as usize),
        errno => Err(Errno::from_raw_os_error(-errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As before Linux 6.1, and where memory may not be locked for many entries.
    #[test]
    fn a_ring_is_set_up_without_the_flags_of_newer_kernels() {
        let mut ring = match Ring::set_up(1024, false) {
            Ok(ring) => ring,
            Err(errno) => return eprintln!("skipped: no ring: {errno}"),
        };
        assert!(!ring.defers && ring.entries() >= ENTRIES_MIN);
        let ran = ring.nop(false, None).unwrap();
        assert_eq!((ran.present, &ran.results[..]), (1, &[Ok(0)][..]));
        let ran = ring.nop(true, None).unwrap();
        assert_eq!(ran.results, [Ok(0)]);
    }

    #[test]
    fn requests_of_one_submission_have_memory_of_their_own() {
        use std::io::Write;
        use std::os::fd::AsFd;
        let mut ring = match Ring::set_up(64, true) {
            Ok(ring) => ring,
            Err(errno) => return eprintln!("skipped: no ring: {errno}"),
        };
        let mut file = tempfile::tempfile().unwrap();
        let contents: Vec<u8> = (0..64u32 * 100).map(|at| (at / 100) as u8).collect();
        file.write_all(&contents).unwrap();
        let asks: Vec<_> = (0..64).map(|at| Ask::Read { offset: at * 100, length: 100, forced: at % 2 == 0 }).collect();
        let ran = ring.ask(file.as_fd(), &asks, None).unwrap();
        assert_eq!(ran.results, [Ok(100); 64]);
        assert!(ran.present <= 64 && ran.submit_ns <= ran.total_ns);
        assert_eq!(&ring.buffer[..6400], contents);
    }
}
