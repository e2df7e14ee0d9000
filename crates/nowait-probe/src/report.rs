//! The report: a row for each kind of request, what the ring and the library did with it.

use std::fmt;
use std::path::PathBuf;

use nowait::Error;
use rustix::io::Errno;

use crate::abilities::Abilities;
use crate::case::Case;
use crate::place::Place;
use crate::reach::Reach;
use crate::reason::Reason;
use crate::single::{Seen, Single, Took};
use crate::twin::errno_of;

/// Findings about a path.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Report {
    /// Path that was asked about.
    pub path: PathBuf,
    /// Kind of that path.
    pub subject: Subject,
    /// Whether io_uring can be had.
    pub reach: Reach,
    /// Where the file is.
    pub place: Place,
    /// Abilities, found by trying.
    pub abilities: Abilities,
    /// Source that told whether a kernel worker ran; `None` where nothing could be watched.
    pub evidence: Option<Evidence>,
    /// Outcome of the controls; `None` where nothing could be watched.
    pub controls: Option<Controls>,
    /// How scratch files in the same directory are served.
    pub scratch: Vec<Row>,
    /// Why there could be no scratch files, or not all.
    pub scratch_error: Option<Error>,
    /// How reads of the file, or device, itself are served.
    pub file: Vec<Row>,
    /// Why it could not be read.
    pub file_error: Option<Error>,
}

impl Report {
    /// The row of a case: of scratch files, or, where there is none, of the file itself.
    pub fn row(&self, case: Case) -> Option<&Row> {
        self.scratch.iter().chain(&self.file).find(|row| row.case == case)
    }

    /// Sum of the tracepoint's counts over all requests; `None` where the kernel has none, or where
    /// it alone was asked.
    pub fn traced(&self) -> Option<Traced> {
        let rows = self.scratch.iter().chain(&self.file);
        let all = rows.filter_map(|row| match &row.ring {
            Outcome::Seen(rates) => rates.traced,
            _ => None,
        });
        all.reduce(|a, b| Traced { requests: a.requests + b.requests, agreed: a.agreed + b.agreed })
    }

    /// Takes back what cannot be told, and says why things are as they are.
    pub(crate) fn judge(&mut self) {
        let Report { controls, scratch, file, place, abilities, .. } = self;
        let failed = match controls {
            Some(controls) if !controls.hold() => Some(controls.to_string()),
            _ => None,
        };
        for row in scratch.iter_mut().chain(file) {
            let Outcome::Seen(rates) = &row.ring else { continue };
            let forced_fails = row.case == Case::ForcedRead && rates.worker + rates.unclear < rates.requests;
            if let Some(why) = &failed {
                row.ring = Outcome::CannotTell(why.clone());
            } else if forced_fails {
                row.ring =
                    Outcome::CannotTell("reads that were forced on a kernel worker were not seen there".to_owned());
            } else {
                row.reason = Reason::of(row.case, rates, abilities, place);
            }
        }
    }
}

/// Source that tells whether a request was given to a kernel worker.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The workers' threads, and what the kernel's tracepoint says: see [`Report::traced`].
    ThreadsAndTracepoint,
    /// The workers' threads alone.
    Threads {
        /// Why the tracepoint could not be counted: tracefs is not mounted, say.
        untraced: String,
    },
    /// The tracepoint alone. Before Linux 5.12 workers are no threads of the process.
    Tracepoint,
}

/// Kind of file that a path leads to.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A directory: only scratch files in it are looked at.
    Directory,
    /// A file, and scratch files beside it.
    File,
    /// A block device; nothing is written to it.
    Device,
}

/// How one kind of request is served.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Row {
    /// The kind.
    pub case: Case,
    /// By io_uring.
    pub ring: Outcome,
    /// By this library; `None` where it could not be asked, and for the control.
    pub nowait: Option<Served>,
    /// Why io_uring does as it does, where that is known and not as one would wish.
    pub reason: Option<Reason>,
}

impl Row {
    pub(crate) fn refused(case: Case, error: &std::io::Error) -> Row {
        Row { case, ring: Outcome::Refused(errno_of(error).raw_os_error()), nowait: None, reason: None }
    }
}

/// Outcome of requests to io_uring.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// This was seen.
    Seen(Rates),
    /// The kernel answers with this errno: the file cannot do it.
    Refused(i32),
    /// The state that is asked about cannot be had: pages stay in memory, or all of them were
    /// cached already.
    NotInState,
    /// It cannot be told, for this reason.
    CannotTell(String),
}

/// How many requests took which way through io_uring. Each is counted once as inline, asynchronous,
/// worker or unclear.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests made.
    pub requests: u32,
    /// Complete when the submission returned. Where the kernel does not keep completions back
    /// ([`Reach::defers`]), also what the device completed before.
    pub inline: u32,
    /// Completed later, without a worker.
    pub asynchronous: u32,
    /// Given to a kernel worker.
    pub worker: u32,
    /// A worker ran that need not have been for this one.
    pub unclear: u32,
    /// The submission slept. Also counted as one of the above.
    pub slept: u32,
    /// Ended in an error. Also counted as one of the above.
    pub failed: u32,
    /// How long submissions took.
    pub submit_ns: Spread,
    /// How long requests took, from submission to completion. They come one at a time, with a look
    /// at the workers between them, during which caches go cold: a figure to compare with those of
    /// other cases, and with none of [`Served`].
    pub total_ns: Spread,
    /// Count of the kernel's tracepoint.
    pub traced: Option<Traced>,
}

impl Rates {
    pub(crate) fn add(&mut self, seen: &Seen) {
        self.requests += 1;
        self.slept += u32::from(seen.slept);
        *match seen.took {
            Took::Inline => &mut self.inline,
            Took::Async => &mut self.asynchronous,
            Took::Worker => &mut self.worker,
            Took::Unclear => &mut self.unclear,
        } += 1;
        if let (Some(traced), Some(to_worker), true) = (&mut self.traced, seen.traced, seen.took != Took::Unclear) {
            traced.requests += 1;
            traced.agreed += u32::from(to_worker == (seen.took == Took::Worker));
        }
    }

    /// Whether more than half of them were given to a kernel worker, or had their submission sleep.
    /// (A few are on some file systems, once a clock tick: the slower they come, the larger their
    /// share.)
    pub fn is_waited_for(&self) -> bool {
        (self.worker + self.slept) * 2 > self.requests
    }
}

/// Requests of which the kernel's tracepoint (`io_uring_queue_async_work`) was asked whether they
/// went to a worker.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// How many.
    pub requests: u32,
    /// How many of them it said the same of as was seen without it.
    pub agreed: u32,
}

/// A median and the most.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Half of them are no more than this.
    pub median: u64,
    /// The most.
    pub max: u64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<u64>) -> Spread {
        values.sort_unstable();
        Spread { median: values.get(values.len() / 2).copied().unwrap_or(0), max: values.last().copied().unwrap_or(0) }
    }
}

/// Where this library's own counters say that requests went, one at a time, as futures under
/// [`block_on`](nowait::block_on).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Requests made.
    pub requests: u32,
    /// On the caller's thread.
    pub inline: u32,
    /// By a ring.
    pub ring: u32,
    /// By libaio.
    pub aio: u32,
    /// By a thread of the library.
    pub pool: u32,
    /// Given by a ring to a kernel worker. Also counted as one of the above.
    pub worker: u32,
    /// Ended in an error.
    pub failed: u32,
    /// How long they took.
    pub total_ns: Spread,
}

/// Requests whose way is known beforehand.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// Forced on a kernel worker,
    pub forced: u32,
    /// and seen there.
    pub forced_seen: u32,
    /// In no need of one,
    pub plain: u32,
    /// and seen to be complete at once.
    pub plain_seen: u32,
}

impl Controls {
    pub(crate) fn add(&mut self, single: &mut Single) -> std::result::Result<(), Errno> {
        let more = single.control()?;
        self.forced += more.forced;
        self.forced_seen += more.forced_seen;
        self.plain += more.plain;
        self.plain_seen += more.plain_seen;
        Ok(())
    }

    /// Whether all were seen as they are; one in eight may be unclear on a busy machine.
    pub fn hold(&self) -> bool {
        (self.forced_seen * 8 >= self.forced * 7) && (self.plain_seen * 8 >= self.plain * 7)
    }
}

impl fmt::Display for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {} requests forced on a kernel worker {} were seen there, of {} others {} were seen inline",
            self.forced, self.forced_seen, self.plain, self.plain_seen
        )
    }
}
