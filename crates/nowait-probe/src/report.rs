//! The report: for each kind of request, the results through the ring and through the library.

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

/// Result of a probe.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Report {
    /// Examined path.
    pub path: PathBuf,
    /// Type of the path: file, directory or block device.
    pub subject: Subject,
    /// Availability of io_uring.
    pub reach: Reach,
    /// File system and device of the file.
    pub place: Place,
    /// Abilities, determined by trial.
    pub abilities: Abilities,
    /// Source of the observations; `None` if nothing could be observed.
    pub evidence: Option<Evidence>,
    /// Outcome of the controls; `None` if nothing could be observed.
    pub controls: Option<Controls>,
    /// Results for scratch files in the same directory.
    pub scratch: Vec<Row>,
    /// Error that prevented some or all scratch files.
    pub scratch_error: Option<Error>,
    /// Results for reads of the file or device itself.
    pub file: Vec<Row>,
    /// Error of the reads of the file or device itself.
    pub file_error: Option<Error>,
    /// Reason why some or all other depths and sizes ([`Row::steps`]) are missing.
    pub steps_missing: Option<String>,
}

impl Report {
    /// Returns the row of a case, for scratch files, or, if that is missing, for the file itself.
    pub fn row(&self, case: Case) -> Option<&Row> {
        self.scratch.iter().chain(&self.file).find(|row| row.case == case)
    }

    /// Returns the sum of the comparisons with the kernel's tracepoints, over all requests; `None`
    /// if they were not counted.
    pub fn traced(&self) -> Option<Traced> {
        let rows = self.scratch.iter().chain(&self.file);
        let outcomes = rows.flat_map(|row| [&row.ring].into_iter().chain(row.steps.iter().map(|step| &step.ring)));
        let all = outcomes.filter_map(|outcome| match outcome {
            Outcome::Seen(rates) => rates.traced,
            _ => None,
        });
        all.reduce(Traced::and)
    }

    /// Returns why the verdicts are not confirmed, and the next step. Returns `None` if the
    /// kernel's tracepoints agree on every request.
    pub fn unconfirmed(&self) -> Option<String> {
        match (&self.evidence, self.traced()) {
            (None, _) => Some("nothing could be observed".to_owned()),
            _ if self.scratch.is_empty() && self.file.is_empty() => Some("no request could be made".to_owned()),
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

    /// Withdraws uncertain verdicts, and adds the reasons.
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

/// Source of the observations of how a request was handled.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The completion queue, the workers' threads, the thread's count of sleeps, and the kernel's
    /// tracepoints: see [`Report::traced`].
    ThreadsAndTracepoint,
    /// The same without the tracepoints, so that verdicts are not confirmed.
    Threads {
        /// Reason why the tracepoints could not be counted, and the next step. For example, tracefs
        /// is not mounted.
        untraced: String,
    },
    /// For workers, only the tracepoint: before Linux 5.12 workers are not threads of the process.
    Tracepoint,
}

/// Type of the examined path.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A directory; only scratch files in it are examined.
    Directory,
    /// A file; scratch files beside it are examined, too.
    File,
    /// A block device; nothing is written to it.
    Device,
}

/// Result for one kind of request.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Row {
    /// Kind of request.
    pub case: Case,
    /// Result through io_uring.
    pub ring: Outcome,
    /// Result through this library; `None` for the control, or if it could not be measured.
    pub nowait: Option<Served>,
    /// Reason why io_uring does not serve it inline, if known.
    pub reason: Option<Reason>,
    /// Results through io_uring at other depths and sizes, sorted by size and depth: see
    /// [`Row::verdicts`].
    pub steps: Vec<Step>,
}

impl Row {
    pub(crate) fn refused(case: Case, error: &std::io::Error) -> Row {
        let ring = Outcome::Refused(errno_of(error).raw_os_error());
        Row { case, ring, nowait: None, reason: None, steps: Vec::new() }
    }
}

/// Result for batches of requests, at one depth and size.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Step {
    /// Number of requests per submission.
    pub depth: u32,
    /// Size of a request, in bytes.
    pub bytes: u32,
    /// Result through io_uring.
    pub ring: Outcome,
}

/// Outcome of requests to io_uring.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The requests were observed.
    Seen(Rates),
    /// The kernel refused the request with this errno.
    Refused(i32),
    /// The required state could not be reached: pages stayed in memory, or all were cached before.
    NotInState,
    /// The result is unknown, for this reason.
    CannotTell(String),
}

/// Counts of requests by their handling in io_uring. Each request is counted once, as inline,
/// asynchronous, worker or unclear.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests made.
    pub requests: u32,
    /// Number of submissions of these requests; equals the number of requests if they were
    /// submitted one at a time.
    pub submissions: u32,
    /// Requests that were complete when the submission returned. If the ring cannot defer
    /// completions ([`Reach::defers`]), this includes requests that the device completed before
    /// that.
    pub inline: u32,
    /// Requests that completed later, without a worker.
    pub asynchronous: u32,
    /// Requests that were given to a kernel worker.
    pub worker: u32,
    /// Requests for which the use of a worker is unknown. Either a worker ran, perhaps for other
    /// work; or workers ran for a batch, and the tracepoint could not be counted.
    pub unclear: u32,
    /// Submissions in which the thread slept.
    pub slept: u32,
    /// Requests that failed; also counted above.
    pub failed: u32,
    /// Duration of a submission with all of its requests, in nanoseconds.
    pub submit_ns: Spread,
    /// Time from a submission to its last completion, in nanoseconds. Between submissions the probe
    /// examines the workers, which cools the processor's caches. So compare this time with other
    /// cases, but not with [`Served`].
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

    /// Returns true if more than half of the requests were given to a kernel worker, or slept in
    /// their submission. Some file systems do so for the first write after each clock tick, so the
    /// share grows if requests are slow.
    pub fn is_waited_for(&self) -> bool {
        let [requests, submissions, worker, slept] =
            [self.requests, self.submissions, self.worker, self.slept].map(u64::from);
        (worker * submissions + slept * requests) * 2 > requests * submissions
    }

    /// Returns whether the kernel's tracepoints agree on every request; `None` if they were not
    /// counted, or nothing could be compared.
    pub fn is_confirmed(&self) -> Option<bool> {
        let traced = self.traced.filter(|traced| traced.requests > 0)?;
        Some(traced.agreed == traced.requests)
    }
}

/// Comparison of observed requests with the kernel's tracepoints. It covers three properties:
///
/// * inline: the completion was posted when the submission returned, against `io_uring_complete` in
///   the submission; not compared if the ring cannot defer completions ([`Reach::defers`]);
/// * worker: a worker's thread ran, against `io_uring_queue_async_work`; not compared if workers
///   are not threads of the process ([`Evidence::Tracepoint`]);
/// * sleep: the thread slept in the submission (`ru_nvcsw`), against `sched_switch` in any state
///   but runnable.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// Requests compared.
    pub requests: u32,
    /// Requests on which both sides agree. A batch is compared as a whole.
    pub agreed: u32,
    /// Requests on which they disagree about workers.
    pub worker_differs: u32,
    /// Requests on which they disagree about inline completion.
    pub inline_differs: u32,
    /// Requests on which they disagree about sleep in the submission.
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

/// Median and maximum of times.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Median.
    pub median: u64,
    /// Maximum.
    pub max: u64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<u64>) -> Spread {
        values.sort_unstable();
        Spread { median: values.get(values.len() / 2).copied().unwrap_or(0), max: values.last().copied().unwrap_or(0) }
    }
}

/// Routes by which this library served single requests, as futures under
/// [`block_on`](nowait::block_on), by its own counters.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Requests made.
    pub requests: u32,
    /// Requests served on the caller's thread.
    pub inline: u32,
    /// Requests served by a ring.
    pub ring: u32,
    /// Requests served by libaio.
    pub aio: u32,
    /// Requests served by a pool thread of the library.
    pub pool: u32,
    /// Requests that a ring gave to a kernel worker; also counted above.
    pub worker: u32,
    /// Requests that failed.
    pub failed: u32,
    /// Duration of a request, in nanoseconds.
    pub total_ns: Spread,
}

/// Requests whose handling is known beforehand.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// Requests forced onto a kernel worker.
    pub forced: u32,
    /// Number of `forced` requests observed on a worker.
    pub forced_seen: u32,
    /// Requests that need no worker.
    pub plain: u32,
    /// Number of `plain` requests observed as complete at once.
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

    /// Returns true if the controls were observed as expected; one in eight may be unclear, for a
    /// busy machine.
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
