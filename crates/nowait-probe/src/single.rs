//! One request at a time in a ring of its own, and what became of it.
//!
//! The ring posts nothing between this thread's enters, but for what a submission itself completes.
//! So a completion that is there when the submission returns was made inline. Whether a worker had
//! to run is seen by its thread's count of runs; every now and then one runs that nobody asked to
//! (it wakes when it has been idle for five seconds), so that workers are kept from being idle so
//! long.
//!
//! Before Linux 6.1 a ring cannot keep completions back: what a device completed before the
//! submission returned counts as inline. Before 5.12 workers are the kernel's own threads, of which
//! this process sees nothing: its tracepoint has to tell then.
//!
//! `unsafe` here: pushing entries whose memory stays until their completion.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use super::Evidence;
use super::kernel::{Passes, sleeps};
use super::ring::{self, decode};
use super::workers::{Workers, count_punts};
use nowait::Buf;

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const GETEVENTS: u32 = 1;
/// Requests of each kind whose way is known beforehand.
const CONTROLS: u32 = 8;
/// A worker that has been idle for longer is woken before it wakes by itself
/// (`WORKER_IDLE_TIMEOUT`, io_uring/io-wq.c).
const IDLE_MAX: Duration = Duration::from_secs(3);

/// Request to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Read {
        offset: u64,
        length: usize,
        /// On a worker, whatever else would do (IOSQE_ASYNC).
        forced: bool,
    },
    Write {
        offset: u64,
        length: usize,
    },
    Sync,
}

/// Which way a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// It was complete when its submission returned, and no worker ran.
    Inline,
    /// It was completed later, and no worker ran.
    Async,
    /// A worker ran.
    Worker,
    /// Workers did not come to rest, or one ran that need not have been for this.
    Unclear,
}

/// Observations of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) took: Took,
    /// The thread slept inside the submission.
    pub(super) slept: bool,
    pub(super) submit_ns: u64,
    pub(super) total_ns: u64,
    /// Whether the kernel's tracepoint says that it went to a worker.
    pub(super) traced: Option<bool>,
    pub(super) result: Result<usize, Errno>,
}

pub(super) struct Single {
    ring: IoUring,
    buffer: Buf,
    /// None where workers are no threads of this process.
    pub(super) workers: Option<Workers>,
    punts: Result<Passes, String>,
    /// When a worker was last seen to run.
    ran: Instant,
}

/// Why requests cannot be watched.
#[derive(Debug)]
pub(super) enum Blind {
    /// There is no ring.
    Refused(Errno),
    /// The ring answered so.
    Broken(Errno),
    /// Workers are not seen, and the tracepoint is not counted, for this reason.
    NoWorkers(String),
}

impl Single {
    /// For requests of up to so many bytes.
    pub(super) fn new(bytes: usize) -> Result<Single, Blind> {
        let mut ring = ring::set_up().map_err(Blind::Refused)?;
        let mut buffer = Buf::zeroed(bytes);
        buffer.fill(0x5a);
        let force = || run(&mut ring, &opcode::Nop::new().build().flags(squeue::Flags::ASYNC)).map(drop);
        let workers = Workers::find(CONTROLS, force).map_err(Blind::Broken)?;
        let punts = count_punts(0);
        match (&workers, &punts) {
            (None, Err(why)) => Err(Blind::NoWorkers(why.clone())),
            _ => Ok(Single { ring, buffer, workers, punts, ran: Instant::now() }),
        }
    }

    /// Makes requests that need no file: how many of those that were forced on a worker were seen
    /// there, of those that were not were seen inline, and of both were seen so by the kernel.
    pub(super) fn control(&mut self) -> Result<Control, Errno> {
        let mut control = Control { forced: CONTROLS, plain: CONTROLS, ..Control::default() };
        for _ in 0..CONTROLS {
            let forced = self.watch(&opcode::Nop::new().build().flags(squeue::Flags::ASYNC))?;
            let plain = self.watch(&opcode::Nop::new().build())?;
            control.forced_seen += u32::from(forced.took == Took::Worker);
            control.plain_seen += u32::from(plain.took == Took::Inline);
        }
        Ok(control)
    }

    /// Makes a request. An error: the ring cannot be used any more.
    pub(super) fn ask(&mut self, file: BorrowedFd<'_>, ask: Ask) -> Result<Seen, Errno> {
        let fd = types::Fd(file.as_raw_fd());
        let entry = match ask {
            Ask::Read { offset, length, forced } => {
                let length = length.min(self.buffer.len()) as u32;
                let entry = opcode::Read::new(fd, self.buffer.as_mut_ptr(), length).offset(offset).build();
                if forced { entry.flags(squeue::Flags::ASYNC) } else { entry }
            }
            Ask::Write { offset, length } => {
                let length = length.min(self.buffer.len()) as u32;
                opcode::Write::new(fd, self.buffer.as_ptr(), length).offset(offset).build()
            }
            Ask::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        let seen = self.watch(&entry);
        if seen.is_err() {
            // The kernel may still have the request: its memory stays for good.
            let lost = std::mem::replace(&mut self.buffer, Buf::zeroed(0));
            std::mem::forget(lost);
        }
        seen
    }

    fn watch(&mut self, entry: &squeue::Entry) -> Result<Seen, Errno> {
        if self.ran.elapsed() > IDLE_MAX {
            run(&mut self.ring, &opcode::Nop::new().build().flags(squeue::Flags::ASYNC))?;
            self.ran = Instant::now();
        }
        let at_rest = self.workers.as_ref().and_then(Workers::at_rest);
        let punts = || self.punts.as_ref().ok()?.so_far().ok();
        let punts_before = punts();
        let ran = run(&mut self.ring, entry)?;
        let traced = punts().zip(punts_before).map(|(after, before)| after > before);
        let worker_ran = match &self.workers {
            Some(workers) => at_rest.map(|before| workers.ran_since(&before)),
            None => traced,
        };
        let took = match worker_ran {
            None => Took::Unclear,
            // The tracepoint is passed for this request alone.
            Some(true) if self.workers.is_none() => Took::Worker,
            // One that woke by itself: what is complete when the submission returns is nobody's but
            // its thread's.
            Some(true) if ran.inline => Took::Unclear,
            Some(true) if self.ran.elapsed() > IDLE_MAX => Took::Unclear,
            Some(true) => Took::Worker,
            Some(false) if ran.inline => Took::Inline,
            Some(false) => Took::Async,
        };
        if took == Took::Worker {
            self.ran = Instant::now();
        }
        let Ran { slept, submit_ns, total_ns, result, .. } = ran;
        Ok(Seen { took, slept, submit_ns, total_ns, traced, result })
    }

    /// Whether the kernel's tracepoint is counted beside what the workers' threads show.
    pub(super) fn is_confirmed(&self) -> bool {
        self.workers.is_some() && self.punts.is_ok()
    }

    /// Source that told whether a worker ran, and why no better one did.
    pub(super) fn evidence(&self) -> Evidence {
        match (&self.workers, &self.punts) {
            (None, _) => Evidence::Tracepoint,
            (Some(_), Ok(_)) => Evidence::ThreadsAndTracepoint,
            (Some(_), Err(why)) => Evidence::Threads { untraced: why.clone() },
        }
    }
}

/// Outcome of the controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) forced: u32,
    pub(super) forced_seen: u32,
    pub(super) plain: u32,
    pub(super) plain_seen: u32,
}

struct Ran {
    inline: bool,
    slept: bool,
    submit_ns: u64,
    total_ns: u64,
    result: Result<usize, Errno>,
}

/// Submits one entry and waits for its completion. What it names must stay until then, and for good
/// after an error.
fn run(ring: &mut IoUring, entry: &squeue::Entry) -> Result<Ran, Errno> {
    // SAFETY: the entry's memory is the caller's, who keeps it until this returns, and lets it be
    // after an error.
    unsafe { ring.submission().push(entry) }.map_err(|_| Errno::BUSY)?;
    let slept_before = sleeps();
    let begun = Instant::now();
    // Without GETEVENTS, so that nothing completes but what the submission itself does.
    enter(ring, 0, 0)?;
    let submit_ns = begun.elapsed().as_nanos() as u64;
    let slept = sleeps() > slept_before;
    let mut answer = ring.completion().next();
    let inline = answer.is_some();
    while answer.is_none() {
        enter(ring, 1, GETEVENTS)?;
        answer = ring.completion().next();
    }
    let total_ns = if inline { submit_ns } else { begun.elapsed().as_nanos() as u64 };
    let result = answer.map_or(Err(Errno::IO), |answer| decode(&answer));
    Ok(Ran { inline, slept, submit_ns, total_ns, result })
}

fn enter(ring: &mut IoUring, want: u32, flags: u32) -> Result<(), Errno> {
    loop {
        let staged = ring.submission().len() as u32;
        // SAFETY: no argument is passed, so there is none to be wrong; the staged entry keeps
        // `run`'s promise.
        match unsafe { ring.submitter().enter::<()>(staged, want, flags, None) } {
            Err(error) if ring::is_lasting(&error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            // Interrupted, or memory is short: again.
            Err(_) => {}
            Ok(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As before Linux 5.12, where no worker is seen: the tracepoint alone tells the same.
    #[test]
    fn the_tracepoint_alone_tells_who_made_a_request() {
        let mut single = match Single::new(4096) {
            Ok(single) => single,
            Err(blind) => return eprintln!("skipped: {blind:?}"),
        };
        if let Err(why) = &single.punts {
            return eprintln!("skipped: {why}");
        }
        single.workers = None;
        assert_eq!(single.evidence(), Evidence::Tracepoint);
        let control = single.control().unwrap();
        assert_eq!((control.forced_seen, control.plain_seen), (CONTROLS, CONTROLS));
    }
}
