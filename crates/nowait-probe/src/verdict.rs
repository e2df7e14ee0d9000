//! Verdicts for a kind of request at each depth and size, and the values at which they change.

use crate::report::{Outcome, Rates, Row};

/// Verdict on how io_uring handles a kind of request, at one depth and size.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Handling of most requests.
    pub way: Way,
    /// True if more than half of the submissions slept.
    pub sleeps: bool,
}

/// Handling of most requests of a kind by io_uring.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Complete when the submission returned.
    Inline,
    /// Completed later, without a worker.
    Async,
    /// Kernel workers served more than a quarter, and at most half, of the requests.
    PartlyWorker,
    /// Kernel workers served more than half of the requests.
    Worker,
    /// Unknown without the tracepoint: for more than a quarter of the requests, the use of a worker
    /// is unclear.
    Unclear,
}

impl Way {
    /// Returns the name, such as `async`.
    pub fn name(self) -> &'static str {
        match self {
            Way::Inline => "inline",
            Way::Async => "async",
            Way::PartlyWorker => "partly worker",
            Way::Worker => "worker",
            Way::Unclear => "unclear",
        }
    }
}

impl Rates {
    /// Returns the verdict for these counts.
    pub fn verdict(&self) -> Verdict {
        let more_than = |count: u32, share: f64| f64::from(count) > f64::from(self.requests) * share;
        let way = if more_than(self.worker, 0.5) {
            Way::Worker
        } else if more_than(self.worker, 0.25) {
            Way::PartlyWorker
        } else if more_than(self.worker + self.unclear, 0.25) {
            Way::Unclear
        } else if self.inline > self.asynchronous {
            Way::Inline
        } else {
            Way::Async
        };
        Verdict { way, sleeps: f64::from(self.slept) > f64::from(self.submissions) * 0.5 }
    }
}

impl Verdict {
    /// Returns true if the verdicts need not differ for a caller. Neither inline nor asynchronous
    /// requests use a thread. If workers cannot be counted, their number may be unchanged.
    pub(crate) fn is_like(self, other: Verdict) -> bool {
        let kind = |way: Way| match way {
            Way::Inline | Way::Async => 0,
            Way::PartlyWorker => 1,
            Way::Worker => 2,
            Way::Unclear => 3,
        };
        let of_workers = [Way::Worker, Way::PartlyWorker];
        let ways = match (self.way, other.way) {
            (Way::Unclear, way) | (way, Way::Unclear) if of_workers.contains(&way) => true,
            (way, other) => kind(way) == kind(other),
        };
        ways && self.sleeps == other.sleeps
    }

    fn words(self) -> &'static str {
        match (self.way, self.sleeps) {
            (Way::Inline, false) => "inline",
            (Way::Async, false) => "async",
            (Way::Inline | Way::Async, true) => "sleeps in submission",
            (Way::PartlyWorker, false) => "partly by workers",
            (Way::PartlyWorker, true) => "partly by workers, and sleeps in submission",
            (Way::Worker, false) => "by workers",
            (Way::Worker, true) => "by workers, and sleeps in submission",
            (Way::Unclear, false) => "perhaps by workers",
            (Way::Unclear, true) => "perhaps by workers, and sleeps in submission",
        }
    }
}

impl Row {
    /// Returns the verdict for each examined depth and size: depth, bytes of a request, verdict.
    pub fn verdicts(&self) -> Vec<(u32, u32, Verdict)> {
        let first = self.case.bytes().map(|bytes| (1, bytes, &self.ring));
        let steps = self.steps.iter().map(|step| (step.depth, step.bytes, &step.ring));
        let verdicts = first.into_iter().chain(steps).filter_map(|(depth, bytes, outcome)| match outcome {
            Outcome::Seen(rates) => Some((depth, bytes, rates.verdict())),
            _ => None,
        });
        verdicts.collect()
    }

    /// Returns descriptions of where the verdict changes, such as "async up to 128 in flight;
    /// sleeps in submission from 256". There is one for the depth, one for the size, and one for
    /// the size at depth 32 if that differs. Empty if the verdict does not change.
    pub fn changes(&self) -> Vec<String> {
        let verdicts = self.verdicts();
        let Some(least) = self.case.bytes() else { return Vec::new() };
        let along = |pick: &dyn Fn(u32, u32) -> Option<u32>| {
            let mut found: Vec<_> =
                verdicts.iter().filter_map(|(depth, bytes, verdict)| Some((pick(*depth, *bytes)?, *verdict))).collect();
            found.sort_by_key(|(at, _)| *at);
            runs(&found)
        };
        let by_depth = along(&|depth, bytes| (bytes == least).then_some(depth));
        let by_size = along(&|depth, bytes| (depth == 1).then_some(bytes));
        let by_size_together = along(&|depth, bytes| (depth == TOGETHER).then_some(bytes));
        let mut sentences = Vec::new();
        if by_depth.len() > 1 {
            sentences.push(sentence(&by_depth, |depth| depth.to_string(), " in flight"));
        }
        if by_size.len() > 1 {
            sentences.push(sentence(&by_size, size, ""));
        }
        // Nothing to report if each size in a batch has the verdict of its single requests.
        let news = by_size_together.len() > 1
            && !verdicts.iter().filter(|(depth, ..)| *depth == TOGETHER).all(|(_, bytes, verdict)| {
                verdicts.iter().any(|(depth, alone, other)| *depth == 1 && alone == bytes && verdict.is_like(*other))
            });
        if news {
            sentences.push(format!("{TOGETHER} in flight: {}", sentence(&by_size_together, size, "")));
        }
        sentences
    }
}

/// Depth at which sizes are examined, besides one at a time.
pub(crate) const TOGETHER: u32 = 32;

/// Returns runs of equal verdicts: first and last value of each run, and its verdict. A run that is
/// both inline and asynchronous has the verdict of its last value.
fn runs(found: &[(u32, Verdict)]) -> Vec<(u32, u32, Verdict)> {
    let mut runs: Vec<(u32, u32, Verdict)> = Vec::new();
    for (at, verdict) in found {
        match runs.last_mut() {
            Some((_, last, before)) if before.is_like(*verdict) => {
                *last = *at;
                // An uncertain verdict keeps the previous one. A run that is partly asynchronous
                // counts as asynchronous.
                if !matches!(verdict.way, Way::Unclear) && !matches!(before.way, Way::Async) {
                    *before = *verdict;
                }
            }
            _ => runs.push((*at, *at, *verdict)),
        }
    }
    runs
}

/// Describes each run, from the smallest value on. `unit` occurs once.
fn sentence(runs: &[(u32, u32, Verdict)], place: impl Fn(u32) -> String, unit: &str) -> String {
    let mut unit = Some(unit);
    let mut of = |at: u32| match (at, unit) {
        (1, _) => None,
        (at, _) => Some(place(at) + unit.take().unwrap_or_default()),
    };
    let parts = runs.iter().enumerate().map(|(number, (first, last, verdict))| {
        let words = verdict.words();
        match (number, of(if number == 0 { *last } else { *first })) {
            (_, None) => format!("{words} one at a time"),
            (0, Some(place)) if first == last => format!("{words} at {place}"),
            (0, Some(place)) => format!("{words} up to {place}"),
            (_, Some(place)) => format!("{words} from {place}"),
        }
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// Formats bytes in the largest unit without a fraction.
fn size(bytes: u32) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::report::Step;

    const KIB: u32 = 1 << 10;
    const MIB: u32 = 1 << 20;

    /// Returns rates of three submissions: counts of inline, async, worker and unclear requests,
    /// and of submissions that slept.
    fn rates(ways: [u32; 4], slept: u32) -> Rates {
        let [inline, asynchronous, worker, unclear] = ways;
        let requests = ways.iter().sum();
        Rates { requests, submissions: 3, inline, asynchronous, worker, unclear, slept, ..Rates::default() }
    }

    fn all(way: Way, sleeps: bool) -> Rates {
        let ways = match way {
            Way::Inline => [96, 0, 0, 0],
            Way::Async => [0, 96, 0, 0],
            Way::PartlyWorker => [0, 60, 36, 0],
            Way::Worker => [0, 0, 96, 0],
            Way::Unclear => [0, 0, 0, 96],
        };
        rates(ways, if sleeps { 3 } else { 0 })
    }

    /// Returns a row with the rates of single requests and of each depth and size.
    fn row(case: Case, alone: Rates, steps: &[(u32, u32, Rates)]) -> Row {
        let steps = steps.iter().map(|(depth, bytes, rates)| Step {
            depth: *depth,
            bytes: *bytes,
            ring: Outcome::Seen(*rates),
        });
        Row { case, ring: Outcome::Seen(alone), nowait: None, reason: None, steps: steps.collect() }
    }

    /// Depth, handling of all requests, and whether all submissions slept.
    type Served = (u32, Way, bool);

    fn by_depth(steps: &[Served]) -> Vec<String> {
        let (first, rest) = steps.split_first().unwrap();
        let rest: Vec<_> = rest.iter().map(|(depth, way, sleeps)| (*depth, 4 * KIB, all(*way, *sleeps))).collect();
        row(Case::DirectRead, all(first.1, first.2), &rest).changes()
    }

    #[test]
    fn a_verdict_is_what_most_did() {
        let cases = [
            ([96, 0, 0, 0], 0, Way::Inline, false),
            ([40, 56, 0, 0], 1, Way::Async, false),
            ([0, 72, 24, 0], 0, Way::Async, false),
            ([0, 71, 25, 0], 2, Way::PartlyWorker, true),
            ([0, 48, 48, 0], 0, Way::PartlyWorker, false),
            ([0, 47, 49, 0], 3, Way::Worker, true),
            ([60, 0, 0, 36], 0, Way::Unclear, false),
            ([0, 94, 0, 2], 0, Way::Async, false),
        ];
        for (ways, slept, way, sleeps) in cases {
            assert_eq!(rates(ways, slept).verdict(), Verdict { way, sleeps }, "{ways:?} {slept}");
        }
    }

    #[test]
    fn changes_with_depth_are_told_in_one_line() {
        use Way::{Async, Inline, PartlyWorker, Unclear, Worker};
        let cases: [(&[Served], Option<&str>); 9] = [
            (&[(1, Async, false), (32, Async, false), (256, Async, false), (1024, Async, false)], None),
            (
                &[(1, Async, false), (32, Async, false), (128, Async, false), (256, Async, true), (1024, Async, true)],
                Some("async up to 128 in flight; sleeps in submission from 256"),
            ),
            (
                &[(1, Inline, false), (32, Async, false), (256, PartlyWorker, false), (1024, Worker, true)],
                Some(
                    "async up to 32 in flight; partly by workers from 256; by workers, and sleeps in submission from 1024",
                ),
            ),
            (&[(1, Async, false), (2, Worker, false)], Some("async one at a time; by workers from 2 in flight")),
            // Device and host are sometimes faster. In both cases no thread waits.
            (&[(1, Inline, false), (32, Async, false), (256, Inline, false)], None),
            // Workers cannot be counted: no change is reported if they served the requests before.
            (&[(1, Worker, false), (32, Unclear, false), (1024, Unclear, false)], None),
            (
                &[(1, Async, false), (32, Async, false), (256, Unclear, false), (1024, Worker, false)],
                Some("async up to 32 in flight; by workers from 256"),
            ),
            (
                &[(1, Async, false), (32, Unclear, false)],
                Some("async one at a time; perhaps by workers from 32 in flight"),
            ),
            // The verdict changes back: each change is reported.
            (
                &[(1, Worker, false), (32, Async, false), (256, Worker, false)],
                Some("by workers one at a time; async from 32 in flight; by workers from 256"),
            ),
        ];
        for (steps, said) in cases {
            assert_eq!(by_depth(steps), Vec::from_iter(said), "{steps:?}");
        }
    }

    #[test]
    fn changes_with_size_are_told_once() {
        let (quick, worker) = (all(Way::Async, false), all(Way::Worker, false));
        let sized = |alone: [Rates; 2], together: [Rates; 3]| {
            let steps = [
                (1, 128 * KIB, alone[0]),
                (1, MIB, alone[1]),
                (32, 4 * KIB, together[0]),
                (32, 128 * KIB, together[1]),
                (32, MIB, together[2]),
            ];
            row(Case::DirectRead, quick, &steps).changes()
        };
        assert!(sized([quick, quick], [quick; 3]).is_empty());
        // Batches have the verdicts of single requests.
        let said = sized([quick, worker], [quick, quick, worker]);
        assert_eq!(said, ["async up to 128 KiB; by workers from 1 MiB"]);
        let said = sized([quick, quick], [quick, worker, worker]);
        assert_eq!(said, ["32 in flight: async at 4 KiB; by workers from 128 KiB"]);
        let said = sized([worker, worker], [worker, quick, worker]);
        let each = [
            "async one at a time; by workers from 32 in flight",
            "async at 4 KiB; by workers from 128 KiB",
            "32 in flight: by workers at 4 KiB; async from 128 KiB; by workers from 1 MiB",
        ];
        assert_eq!(said, each);
    }

    #[test]
    fn what_was_not_seen_changes_nothing() {
        let mut row = row(Case::DirectRead, all(Way::Async, false), &[]);
        assert!(row.changes().is_empty());
        row.steps.push(Step { depth: 32, bytes: 4096, ring: Outcome::CannotTell("no room".to_owned()) });
        row.steps.push(Step { depth: 256, bytes: 4096, ring: Outcome::Refused(22) });
        assert_eq!((row.changes().len(), row.verdicts().len()), (0, 1));
        // A sync has no size.
        assert!(self::row(Case::Sync, all(Way::Worker, false), &[]).changes().is_empty());
    }
}
