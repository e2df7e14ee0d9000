//! Sees what becomes of requests: of one at a time, and of some that are submitted together.
//!
//! The ring posts nothing between this thread's enters, but for what a submission itself completes.
//! So a completion that is there when the submission returns was made inline. Whether a worker had
//! to run is seen by its thread's count of runs; every now and then one runs that nobody asked to
//! (it wakes when it has been idle for five seconds), so that workers are kept from being idle so
//! long. The kernel's tracepoints are counted beside it, where they can be.
//!
//! How many of several requests went to workers, only the tracepoint says: a worker that finds the
//! next one waiting takes it without sleeping, in one run. Without it those that were not inline
//! are unclear where a worker ran.
//!
//! Before Linux 6.1 a ring cannot keep completions back: what a device completed before the
//! submission returned counts as inline. Before 5.12 workers are the kernel's own threads, of which
//! this process sees nothing: its tracepoint has to tell then.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Evidence;
use super::ring::{Ask, Ring};
use super::tracepoints::Tracepoints;
use super::workers::{Runs, Workers};

/// Requests of each kind whose way is known beforehand.
const CONTROLS: u32 = 8;
/// A worker that was idle for longer is woken before its own timeout wakes it.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// A little less than the time after which an idle worker wakes (`WORKER_IDLE_TIMEOUT`, 5 s,
/// io_uring/io-wq.c).
const WAKES_AFTER: Duration = Duration::from_millis(4500);

/// Which way a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// It was complete when its submission returned, and no worker ran.
    Inline,
    /// It was completed later, and no worker ran.
    Async,
    /// A worker ran.
    Worker,
    /// Workers did not become idle, or one ran that may have served another request.
    Unclear,
}

/// Observations of a submission, and how many of its requests took which way.
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

/// Whether the kernel's tracepoints say the same as was seen without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    /// Also true if workers are not visible: then only the tracepoint shows them.
    pub(super) worker: bool,
    /// True also where the ring does not keep completions back: then it is not compared.
    pub(super) inline: bool,
    pub(super) slept: bool,
}

pub(super) struct Observer {
    ring: Ring,
    /// None where workers are no threads of this process.
    pub(super) workers: Option<Workers>,
    tracepoints: Result<Tracepoints, String>,
    /// When a worker was last seen to run.
    ran: Instant,
    idle: Idle,
}

/// How long each worker may have been idle.
struct Idle {
    /// By its thread number: how often it has run, and a time after which it last did.
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

impl Observer {
    /// For up to `depth` requests together, on a ring that keeps completions back if it may
    /// `defer` and the kernel can.
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

    /// The most requests that can be submitted together.
    pub(super) fn depth_max(&self) -> u32 {
        self.ring.entries()
    }

    /// Whether completions are kept back until they are asked for.
    pub(super) fn defers(&self) -> bool {
        self.ring.defers
    }

    /// Makes requests that need no file: how many of those that were forced on a worker were seen
    /// there, of those that were not were seen inline.
    pub(super) fn control(&mut self) -> Result<Control, Errno> {
        let mut control = Control { forced: CONTROLS, plain: CONTROLS, ..Control::default() };
        for _ in 0..CONTROLS {
            control.forced_seen += self.watch(1, |ring, tracepoints| ring.nop(true, tracepoints))?.worker;
            control.plain_seen += self.watch(1, |ring, tracepoints| ring.nop(false, tracepoints))?.inline;
        }
        Ok(control)
    }

    /// Submits requests together. An error: the ring cannot be used any more.
    pub(super) fn ask(&mut self, file: BorrowedFd<'_>, asks: &[Ask]) -> Result<Seen, Errno> {
        self.watch(asks.len() as u32, |ring, tracepoints| ring.ask(file, asks, tracepoints))
    }

    fn watch(
        &mut self,
        requests: u32,
        run: impl FnOnce(&mut Ring, Option<&Tracepoints>) -> Result<super::ring::Ran, Errno>,
    ) -> Result<Seen, Errno> {
        if self.ran.elapsed() > IDLE_MAX {
            // So that the one that runs now is known to have run after this.
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

    /// How often each worker has run, now that none does.
    fn rest(&mut self) -> Option<Runs> {
        let runs = self.workers.as_ref()?.at_rest()?;
        self.idle.note(&runs, Instant::now());
        Some(runs)
    }

    /// Source that showed whether a worker ran, and why a better one was not available.
    pub(super) fn evidence(&self) -> Evidence {
        match (&self.workers, &self.tracepoints) {
            (None, _) => Evidence::Tracepoint,
            (Some(_), Ok(_)) => Evidence::ThreadsAndTracepoint,
            (Some(_), Err(why)) => Evidence::Threads { untraced: why.clone() },
        }
    }
}

/// Observations of a submission, from which the way of its requests follows.
struct Facts {
    requests: u32,
    /// Completions that were there when it returned.
    present: u32,
    /// None: workers are not seen, or did not come to rest before.
    worker_ran: Option<bool>,
    /// Requests that were given to workers, by the tracepoint.
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
            // The tracepoint is passed for this request alone.
            Some(true) if !self.workers_are_seen => Took::Worker,
            // The worker woke without a request: if the ring keeps completions back, only the
            // submitting thread can have completed it by now. (Otherwise a worker may have been quick.)
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
        // A worker's completion may be among those that are there, if they are not kept back.
        seen.inline = self.present.min(self.requests - seen.worker);
        let rest = self.requests - seen.worker - seen.inline;
        match (self.punts, self.worker_ran) {
            (Some(_), _) | (None, Some(false)) => seen.asynchronous = rest,
            // Requests go to the worker that ran last.
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

    /// As before Linux 5.12, where no worker is seen: the tracepoint alone tells the same.
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

    /// As before Linux 6.1: a worker that was done before the submission returned is seen.
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
        // Where completions are not kept back, a worker may be done before the submission returns.
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
        // Workers that were done early have put completions there, too.
        assert_eq!(ways(facts(32, 30, Some(true), Some(10))), [22, 0, 10, 0]);
        assert_eq!(ways(facts(32, 0, None, Some(40))), [0, 0, 32, 0]);
        // Without it a worker's runs do not say how many were its.
        assert_eq!(ways(facts(32, 2, Some(true), None)), [2, 0, 0, 30]);
        assert_eq!(ways(facts(32, 2, Some(false), None)), [2, 30, 0, 0]);
        assert_eq!(ways(facts(32, 2, None, None)), [2, 0, 0, 30]);
        assert_eq!(ways(Facts { by_themselves: true, ..facts(32, 2, Some(true), None) }), [2, 30, 0, 0]);
    }

    /// Symptom: a request that the device completed was told to be a worker's, while another of two
    /// workers had been idle for five seconds, and ended.
    #[test]
    fn each_worker_has_an_idle_time_of_its_own() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut idle = Idle { since: BTreeMap::new(), looked: begun };
        idle.note(&[(1, 5), (2, 5)].into(), at(1));
        idle.note(&[(1, 6), (2, 5)].into(), at(4));
        // The first ran after the first look; the second before it.
        assert!(!idle.may_have_woken(1, at(5)) && idle.may_have_woken(2, at(5)));
        assert!(idle.may_have_woken(1, at(6)));
        // One that was not there before has just been made.
        assert!(!idle.may_have_woken(3, at(9)));
        idle.note(&[(1, 6)].into(), at(5));
        assert!(!idle.may_have_woken(2, at(9)) && idle.may_have_woken(1, at(6)));
    }
}
