//! Observes how the kernel handles single requests and batches.
//!
//! The ring posts completions only in this thread's enters. So a completion that is available when
//! the submission returns was made inline. A worker's use shows in its thread's count of runs. An
//! idle worker also runs without a request when its timeout of five seconds ends, so this thread
//! gives work to workers before that. If possible, the kernel's tracepoints are counted, too.
//!
//! For a batch, only the tracepoint counts the requests that went to workers: a worker takes the
//! next waiting request without sleeping, in the same run. Without the tracepoint, the requests of
//! a batch that were not inline are unclear if a worker ran.
//!
//! Before Linux 6.1 a ring cannot defer completions: requests that the device completes before the
//! submission returns count as inline. Before 5.12 workers are kernel threads that this process
//! does not see, so only the tracepoint counts them.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Evidence;
use super::ring::{Ask, Ring};
use super::tracepoints::Tracepoints;
use super::workers::{Runs, Workers};

/// Number of control requests of each kind.
const CONTROLS: u32 = 8;
/// Idle time after which a worker gets work, before its timeout wakes it.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// Slightly less than the timeout of an idle worker (`WORKER_IDLE_TIMEOUT`, 5 s, io_uring/io-wq.c).
const WAKES_AFTER: Duration = Duration::from_millis(4500);

/// Handling of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// The request was complete when its submission returned, and no worker ran.
    Inline,
    /// The request completed later, and no worker ran.
    Async,
    /// A worker ran.
    Worker,
    /// Workers did not become idle, or one ran that may have served another request.
    Unclear,
}

/// Observations of a submission, with counts of its requests by handling.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) inline: u32,
    pub(super) asynchronous: u32,
    pub(super) worker: u32,
    pub(super) unclear: u32,
    /// The thread slept inside the submission.
    pub(super) slept: bool,
    pub(super) submit_ns: u64,
    pub(super) total_ns: u64,
    /// Comparison with the kernel's tracepoints; `None` if they are not counted.
    pub(super) compared: Option<Compared>,
    pub(super) failed: u32,
    /// Errno of the first failed request.
    pub(super) errno: Option<Errno>,
}

/// Agreement of the kernel's tracepoints with the other observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    /// Also true if workers are not visible: then only the tracepoint shows them.
    pub(super) worker: bool,
    /// Also true if the ring does not defer completions, since inline completions are then not
    /// compared.
    pub(super) inline: bool,
    pub(super) slept: bool,
}

pub(super) struct Observer {
    ring: Ring,
    /// `None` if workers are not threads of this process.
    pub(super) workers: Option<Workers>,
    tracepoints: Result<Tracepoints, String>,
    /// Time when a worker was last observed to run.
    ran: Instant,
    idle: Idle,
}

/// Maximum idle time of each worker.
struct Idle {
    /// For each worker's thread number: its number of runs, and a time after which its last run
    /// began.
    since: BTreeMap<i32, (u64, Instant)>,
    looked: Instant,
}

impl Idle {
    fn note(&mut self, runs: &Runs, now: Instant) {
        let Idle { since, looked } = self;
        since.retain(|number, _| runs.contains_key(number));
        for (number, runs) in runs {
            if since.get(number).is_none_or(|(before, _)| before != runs) {
                since.insert(*number, (*runs, *looked));
            }
        }
        *looked = now;
    }

    /// True if a worker may have run because its idle time ended, five seconds after its last
    /// request.
    fn may_have_woken(&self, number: i32, now: Instant) -> bool {
        self.since.get(&number).is_some_and(|(_, since)| now.duration_since(*since) > WAKES_AFTER)
    }
}

/// Reason why requests cannot be observed.
#[derive(Debug)]
pub(super) enum Blind {
    /// There is no ring.
    Refused(Errno),
    /// The ring returned this error.
    Broken(Errno),
    /// Workers are not visible, and the tracepoint cannot be counted, for this reason.
    NoWorkers(String),
}

impl Observer {
    /// Makes an observer for up to `depth` requests per submission. Its ring defers completions if
    /// `defer` is set and the kernel supports that.
    pub(super) fn new(depth: u32, defer: bool) -> Result<Observer, Blind> {
        let mut ring = Ring::set_up(depth, defer).map_err(Blind::Refused)?;
        let workers = Workers::find(CONTROLS, || ring.nop(true, None).map(drop)).map_err(Blind::Broken)?;
        let tracepoints = Tracepoints::count(0);
        match (&workers, &tracepoints) {
            (None, Err(why)) => Err(Blind::NoWorkers(why.clone())),
            _ => {
                let now = Instant::now();
                let idle = Idle { since: BTreeMap::new(), looked: now };
                Ok(Observer { ring, workers, tracepoints, ran: now, idle })
            }
        }
    }

    /// Maximum number of requests of one submission.
    pub(super) fn depth_max(&self) -> u32 {
        self.ring.entries()
    }

    /// True if completions are deferred until they are requested.
    pub(super) fn defers(&self) -> bool {
        self.ring.defers
    }

    /// Makes requests without a file, half of them forced onto a worker. Counts the forced ones
    /// observed on a worker, and the others observed inline.
    pub(super) fn control(&mut self) -> Result<Control, Errno> {
        let mut control = Control { forced: CONTROLS, plain: CONTROLS, ..Control::default() };
        for _ in 0..CONTROLS {
            control.forced_seen += self.watch(1, |ring, tracepoints| ring.nop(true, tracepoints))?.worker;
            control.plain_seen += self.watch(1, |ring, tracepoints| ring.nop(false, tracepoints))?.inline;
        }
        Ok(control)
    }

    /// Submits a batch of requests. After an error the ring is unusable.
    pub(super) fn ask(&mut self, file: BorrowedFd<'_>, asks: &[Ask]) -> Result<Seen, Errno> {
        self.watch(asks.len() as u32, |ring, tracepoints| ring.ask(file, asks, tracepoints))
    }

    fn watch(
        &mut self,
        requests: u32,
        run: impl FnOnce(&mut Ring, Option<&Tracepoints>) -> Result<super::ring::Ran, Errno>,
    ) -> Result<Seen, Errno> {
        if self.ran.elapsed() > IDLE_MAX {
            // Records the runs before, so that the worker's next run is known to begin after this.
            self.rest();
            self.ring.nop(true, None)?;
            self.ran = Instant::now();
        }
        let at_rest = self.rest();
        let ran = run(&mut self.ring, self.tracepoints.as_ref().ok())?;
        let ran_since = self.workers.as_ref().and_then(|workers| Some(workers.ran_since(at_rest.as_ref()?)));
        let now = Instant::now();
        let worker_ran = ran_since.as_ref().map(|numbers| !numbers.is_empty());
        let by_themselves =
            ran_since.is_some_and(|numbers| numbers.iter().all(|number| self.idle.may_have_woken(*number, now)));
        let facts = Facts {
            requests,
            present: ran.present,
            worker_ran,
            punts: ran.traced.map(|traced| traced.punts),
            workers_are_seen: self.workers.is_some(),
            defers: self.ring.defers,
            by_themselves,
        };
        let mut seen = facts.ways();
        seen.slept = ran.sleeps > 0;
        (seen.submit_ns, seen.total_ns) = (ran.submit_ns, ran.total_ns);
        // Unclear requests cannot be compared.
        let is_told = match &self.workers {
            Some(_) => worker_ran.is_some() && (requests > 1 || seen.unclear == 0),
            None => true,
        };
        seen.compared = ran.traced.filter(|_| is_told).map(|traced| Compared {
            worker: match (&self.workers, requests) {
                (None, _) => true,
                (Some(_), 1) => (traced.punts > 0) == (seen.worker > 0),
                // A worker may have woken without a request, but none may have slept through one.
                (Some(_), _) => traced.punts == 0 || worker_ran == Some(true),
            },
            inline: !self.ring.defers || traced.completions == u64::from(ran.present),
            slept: (traced.sleeps > 0) == seen.slept,
        });
        let failures = ran.results.iter().filter_map(|result| result.err());
        (seen.failed, seen.errno) = (failures.clone().count() as u32, failures.clone().next());
        if seen.worker > 0 {
            self.ran = Instant::now();
        }
        Ok(seen)
    }

    /// Waits until no worker runs; returns the number of runs of each.
    fn rest(&mut self) -> Option<Runs> {
        let runs = self.workers.as_ref()?.at_rest()?;
        self.idle.note(&runs, Instant::now());
        Some(runs)
    }

    /// Returns the source of the observations, and why a better one was not available.
    pub(super) fn evidence(&self) -> Evidence {
        match (&self.workers, &self.tracepoints) {
            (None, _) => Evidence::Tracepoint,
            (Some(_), Ok(_)) => Evidence::ThreadsAndTracepoint,
            (Some(_), Err(why)) => Evidence::Threads { untraced: why.clone() },
        }
    }
}

/// Observations of a submission, which determine the handling of its requests.
struct Facts {
    requests: u32,
    /// Completions available when the submission returned.
    present: u32,
    /// `None` if workers are not visible, or did not become idle before.
    worker_ran: Option<bool>,
    /// Requests given to workers, counted by the tracepoint.
    punts: Option<u64>,
    workers_are_seen: bool,
    defers: bool,
    /// True if the workers that ran may have woken without a request.
    by_themselves: bool,
}

impl Facts {
    fn ways(&self) -> Seen {
        if self.requests != 1 {
            return self.together();
        }
        let mut seen = Seen::default();
        *match self.alone() {
            Took::Inline => &mut seen.inline,
            Took::Async => &mut seen.asynchronous,
            Took::Worker => &mut seen.worker,
            Took::Unclear => &mut seen.unclear,
        } = 1;
        seen
    }

    /// Judges one request by the workers' threads, so that the tracepoint is independent evidence.
    fn alone(&self) -> Took {
        let inline = self.present > 0;
        let worker_ran = if self.workers_are_seen { self.worker_ran } else { self.punts.map(|punts| punts > 0) };
        match worker_ran {
            None => Took::Unclear,
            // Only this request can have passed the tracepoint.
            Some(true) if !self.workers_are_seen => Took::Worker,
            // The worker woke without a request: if the ring defers completions, only the
            // submitting thread can have completed it by now. (Otherwise a fast worker may have.)
            Some(true) if inline && self.defers => Took::Unclear,
            Some(true) if self.by_themselves => Took::Unclear,
            Some(true) => Took::Worker,
            Some(false) if inline => Took::Inline,
            Some(false) => Took::Async,
        }
    }

    /// Judges several requests by the tracepoint if it is counted, since a worker runs less often
    /// than once per request.
    fn together(&self) -> Seen {
        let mut seen = Seen::default();
        if let Some(punts) = self.punts {
            seen.worker = self.requests.min(u32::try_from(punts).unwrap_or(u32::MAX));
        }
        // Without deferral, the available completions may include those of workers.
        seen.inline = self.present.min(self.requests - seen.worker);
        let rest = self.requests - seen.worker - seen.inline;
        match (self.punts, self.worker_ran) {
            (Some(_), _) | (None, Some(false)) => seen.asynchronous = rest,
            // These workers had been idle longest, but a request goes to the worker that ran last.
            (None, Some(true)) if self.by_themselves => seen.asynchronous = rest,
            (None, _) => seen.unclear = rest,
        }
        seen
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

#[cfg(test)]
mod tests {
    use super::*;

    fn observer(defer: bool) -> Option<Observer> {
        Observer::new(64, defer).map_err(|blind| eprintln!("skipped: {blind:?}")).ok()
    }

    /// Before Linux 5.12 no worker is visible: the tracepoint alone must show the same.
    #[test]
    fn the_tracepoint_alone_tells_who_made_a_request() {
        let Some(mut observer) = observer(true) else { return };
        if let Err(why) = &observer.tracepoints {
            return eprintln!("skipped: {why}");
        }
        observer.workers = None;
        assert_eq!(observer.evidence(), Evidence::Tracepoint);
        let control = observer.control().unwrap();
        assert_eq!((control.forced_seen, control.plain_seen), (CONTROLS, CONTROLS));
    }

    /// Before Linux 6.1, a worker may complete a request before the submission returns: it must
    /// still be observed.
    #[test]
    fn a_ring_that_keeps_nothing_back_tells_who_made_a_request() {
        let Some(mut observer) = observer(false) else { return };
        assert!(!observer.defers());
        let control = observer.control().unwrap();
        assert!(control.forced_seen * 8 >= control.forced * 7, "{control:?}");
        assert!(control.plain_seen * 8 >= control.plain * 7, "{control:?}");
    }

    fn facts(requests: u32, present: u32, worker_ran: Option<bool>, punts: Option<u64>) -> Facts {
        Facts { requests, present, worker_ran, punts, workers_are_seen: true, defers: true, by_themselves: false }
    }

    #[test]
    fn one_request_is_told_by_the_workers_threads() {
        let cases = [
            (1, Some(false), Took::Inline),
            (0, Some(false), Took::Async),
            (0, Some(true), Took::Worker),
            (1, Some(true), Took::Unclear),
            (0, None, Took::Unclear),
        ];
        for (present, ran, took) in cases {
            assert_eq!(facts(1, present, ran, None).alone(), took, "{present} {ran:?}");
            // The tracepoint makes no difference.
            assert_eq!(facts(1, present, ran, Some(1)).alone(), took, "{present} {ran:?}");
        }
        // Without deferral, a worker may complete before the submission returns.
        assert_eq!(Facts { defers: false, ..facts(1, 1, Some(true), None) }.alone(), Took::Worker);
        assert_eq!(Facts { by_themselves: true, ..facts(1, 0, Some(true), None) }.alone(), Took::Unclear);
        let traced = |punts| Facts { workers_are_seen: false, ..facts(1, 0, None, punts) }.alone();
        assert_eq!([traced(Some(1)), traced(Some(0)), traced(None)], [Took::Worker, Took::Async, Took::Unclear]);
    }

    #[test]
    fn of_several_requests_the_tracepoint_tells_how_many() {
        let ways = |facts: Facts| {
            let seen = facts.together();
            [seen.inline, seen.asynchronous, seen.worker, seen.unclear]
        };
        assert_eq!(ways(facts(32, 2, Some(true), Some(10))), [2, 20, 10, 0]);
        assert_eq!(ways(facts(32, 0, Some(false), Some(0))), [0, 32, 0, 0]);
        // Fast workers have also posted completions.
        assert_eq!(ways(facts(32, 30, Some(true), Some(10))), [22, 0, 10, 0]);
        assert_eq!(ways(facts(32, 0, None, Some(40))), [0, 0, 32, 0]);
        // Without the tracepoint, a worker's runs do not show its number of requests.
        assert_eq!(ways(facts(32, 2, Some(true), None)), [2, 0, 0, 30]);
        assert_eq!(ways(facts(32, 2, Some(false), None)), [2, 30, 0, 0]);
        assert_eq!(ways(facts(32, 2, None, None)), [2, 0, 0, 30]);
        assert_eq!(ways(Facts { by_themselves: true, ..facts(32, 2, Some(true), None) }), [2, 30, 0, 0]);
    }

    /// Symptom: a request that the device completed was attributed to a worker, because one of two
    /// workers ended after five idle seconds.
    #[test]
    fn each_worker_has_an_idle_time_of_its_own() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut idle = Idle { since: BTreeMap::new(), looked: begun };
        idle.note(&[(1, 5), (2, 5)].into(), at(1));
        idle.note(&[(1, 6), (2, 5)].into(), at(4));
        // The first worker ran after the first check, the second before it.
        assert!(!idle.may_have_woken(1, at(5)) && idle.may_have_woken(2, at(5)));
        assert!(idle.may_have_woken(1, at(6)));
        // A worker that did not exist before is new.
        assert!(!idle.may_have_woken(3, at(9)));
        idle.note(&[(1, 6)].into(), at(5));
        assert!(!idle.may_have_woken(2, at(9)) && idle.may_have_woken(1, at(6)));
    }
}
