//! The report: a row for each kind of request, what the ring and the library did with it.

use std::fmt;
use std::path::PathBuf;

use nowait::Error;
use rustix::io::Errno;

use crate::abilities::Abilities;
use crate::case::Case;
use crate::observer::{Observer, Seen};
use crate::place::Place;
use crate::reach::Reach;
use crate::reason::Reason;
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
    /// Why other depths and sizes ([`Row::steps`]) are missing, or some of them.
    pub steps_missing: Option<String>,
}

impl Report {
    /// The row of a case: of scratch files, or, where there is none, of the file itself.
    pub fn row(&self, case: Case) -> Option<&Row> {
        self.scratch.iter().chain(&self.file).find(|row| row.case == case)
    }

    /// Sum of the comparisons with the kernel's tracepoints, over all requests; `None` where they
    /// were not counted.
    pub fn traced(&self) -> Option<Traced> {
        let rows = self.scratch.iter().chain(&self.file);
        let outcomes = rows.flat_map(|row| [&row.ring].into_iter().chain(row.steps.iter().map(|step| &step.ring)));
        let all = outcomes.filter_map(|outcome| match outcome {
            Outcome::Seen(rates) => rates.traced,
            _ => None,
        });
        all.reduce(Traced::and)
    }

    /// Why the verdicts are not confirmed, and the next step to take; `None` where the kernel's
    /// tracepoints say the same of every request.
    pub fn unconfirmed(&self) -> Option<String> {
        match (&self.evidence, self.traced()) {
            (None, _) => Some("nothing could be observed".to_owned()),
            (Some(Evidence::Threads { untraced }), _) => Some(untraced.clone()),
            (_, Some(traced)) if traced.requests > 0 && traced.agreed == traced.requests => None,
            (_, Some(traced)) if traced.requests > 0 => Some(format!(
                "the kernel's tracepoints say otherwise of {} of {} requests (worker {}, inline {}, slept {}): probe again, \
                 on an idle machine",
                traced.requests - traced.agreed,
                traced.requests,
                traced.worker_differs,
                traced.inline_differs,
                traced.slept_differs
            )),
            _ => Some("no request could be compared with the kernel's tracepoints: probe again".to_owned()),
        }
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
            if failed.is_some() || forced_fails {
                row.steps.clear();
            }
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

/// Source that tells which way a request took.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The completion queue, the workers' threads and the thread's count of sleeps; and beside
    /// them the kernel's tracepoints: see [`Report::traced`].
    ThreadsAndTracepoint,
    /// The same without the tracepoints: verdicts are not confirmed.
    Threads {
        /// Why the tracepoints could not be counted, and the next step: tracefs is not mounted,
        /// say.
        untraced: String,
    },
    /// Of workers, the tracepoint alone. Before Linux 5.12 they are no threads of the process.
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
    /// By io_uring, at other depths and sizes, in order of size and depth: see [`Row::verdicts`].
    pub steps: Vec<Step>,
}

impl Row {
    pub(crate) fn refused(case: Case, error: &std::io::Error) -> Row {
        let ring = Outcome::Refused(errno_of(error).raw_os_error());
        Row { case, ring, nowait: None, reason: None, steps: Vec::new() }
    }
}

/// How requests of one size are served, of which some are submitted together.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Step {
    /// Requests of one submission.
    pub depth: u32,
    /// Bytes of a request.
    pub bytes: u32,
    /// By io_uring.
    pub ring: Outcome,
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
    /// Submissions that they were made in: as many, where they came one at a time.
    pub submissions: u32,
    /// Complete when the submission returned. Where the kernel does not keep completions back
    /// ([`Reach::defers`]), also what the device completed before.
    pub inline: u32,
    /// Completed later, without a worker.
    pub asynchronous: u32,
    /// Given to a kernel worker.
    pub worker: u32,
    /// A worker ran that need not have been for this one; or some ran for requests that were
    /// submitted together, and the tracepoint was not there to say for how many.
    pub unclear: u32,
    /// Submissions that slept.
    pub slept: u32,
    /// Ended in an error. Also counted as one of the above.
    pub failed: u32,
    /// How long submissions took, each with all of its requests.
    pub submit_ns: Spread,
    /// How long they took, from submission to the last completion. Submissions come one at a time,
    /// with a look at the workers between them, during which caches go cold: a figure to compare
    /// with those of other cases, and with none of [`Served`].
    pub total_ns: Spread,
    /// Comparison with the kernel's tracepoints.
    pub traced: Option<Traced>,
}

impl Rates {
    pub(crate) fn add(&mut self, requests: u32, seen: &Seen) {
        self.requests += requests;
        self.submissions += 1;
        self.slept += u32::from(seen.slept);
        self.failed += seen.failed;
        self.inline += seen.inline;
        self.asynchronous += seen.asynchronous;
        self.worker += seen.worker;
        self.unclear += seen.unclear;
        if let (Some(traced), Some(compared)) = (&mut self.traced, seen.compared) {
            let differs = |agrees: bool| if agrees { 0 } else { requests };
            *traced = traced.and(Traced {
                requests,
                agreed: requests - differs(compared.worker && compared.inline && compared.slept),
                worker_differs: differs(compared.worker),
                inline_differs: differs(compared.inline),
                slept_differs: differs(compared.slept),
            });
        }
    }

    /// Whether more than half of them were given to a kernel worker, or had their submission sleep.
    /// (A few are on some file systems, once a clock tick: the slower they come, the larger their
    /// share.)
    pub fn is_waited_for(&self) -> bool {
        let [requests, submissions, worker, slept] =
            [self.requests, self.submissions, self.worker, self.slept].map(u64::from);
        (worker * submissions + slept * requests) * 2 > requests * submissions
    }

    /// Whether the kernel's tracepoints say the same of every request; `None` where they were not
    /// counted, or nothing could be compared.
    pub fn is_confirmed(&self) -> Option<bool> {
        let traced = self.traced.filter(|traced| traced.requests > 0)?;
        Some(traced.agreed == traced.requests)
    }
}

/// Requests whose way was compared with the kernel's tracepoints. What is seen without privilege is
/// one side: whether a completion was there when the submission returned, whether a worker's thread
/// ran, whether the thread slept in the submission (`ru_nvcsw`). The other is how often the thread
/// passed `io_uring_complete` in the submission, `io_uring_queue_async_work`, and `sched_switch`
/// other than runnable. Where completions are not kept back ([`Reach::defers`]), inline is not
/// compared; where workers are no threads of the process ([`Evidence::Tracepoint`]), workers are
/// not.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// Requests compared.
    pub requests: u32,
    /// Those of which both sides say the same. Requests that are submitted together are compared
    /// together.
    pub agreed: u32,
    /// Those of which they do not say the same about workers,
    pub worker_differs: u32,
    /// about being inline,
    pub inline_differs: u32,
    /// about sleep in the submission.
    pub slept_differs: u32,
}

impl Traced {
    fn and(self, other: Traced) -> Traced {
        Traced {
            requests: self.requests + other.requests,
            agreed: self.agreed + other.agreed,
            worker_differs: self.worker_differs + other.worker_differs,
            inline_differs: self.inline_differs + other.inline_differs,
            slept_differs: self.slept_differs + other.slept_differs,
        }
    }
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
    pub(crate) fn add(&mut self, observer: &mut Observer) -> std::result::Result<(), Errno> {
        let more = observer.control()?;
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
