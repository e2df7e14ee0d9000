//! The report in one paragraph: where the library sends requests here, and why.

use nowait::DirectIo;

use crate::case::Case;
use crate::report::{Outcome, Report, Row, Served};
use crate::verdict::Way;

/// Requests with a common name. "Some" precedes it where the library uses several ways for them.
const GROUPS: [(&str, &[Case]); 7] = [
    ("cached reads", &[Case::CachedRead]),
    ("cold reads", &[Case::ColdRead]),
    ("writes", &[Case::CachedOverwrite, Case::Append, Case::AppendAllocated]),
    ("writes to a part of an uncached page", &[Case::ColdPartialWrite]),
    ("direct reads", &[Case::DirectRead]),
    ("direct writes", &[Case::DirectOverwrite, Case::DirectAppend, Case::DirectUnwritten]),
    ("syncs", &[Case::Sync]),
];

/// Where the library sent most requests of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Caller,
    Ring,
    Aio,
    Pool,
}

impl Sent {
    /// The ways of a report, in its order.
    const ALL: [(Sent, &str); 4] = [
        (Sent::Caller, "run on the caller's thread"),
        (Sent::Ring, "use io_uring"),
        (Sent::Aio, "use libaio"),
        (Sent::Pool, "go to a pool thread"),
    ];

    fn of(served: &Served) -> Option<Sent> {
        let counts = [served.inline, served.ring, served.aio, served.pool];
        let most = (0..counts.len()).rev().max_by_key(|at| counts[*at]).filter(|at| counts[*at] > 0)?;
        Some(Sent::ALL[most].0)
    }
}

impl Report {
    /// Returns one or two sentences: where the library sends each kind of request at this path, why, and
    /// whether it needs a kernel worker. For example: "Cached reads and writes run on the caller's
    /// thread; cold reads use io_uring; syncs go to a pool thread. None of these needs a kernel worker."
    pub fn summary(&self) -> String {
        let places: Vec<String> = Sent::ALL.into_iter().filter_map(|(place, verb)| self.sent(place, verb)).collect();
        if places.is_empty() {
            return "No request could be made here.".to_owned();
        }
        let is_refused = self.reach.refusal.is_some();
        let causes = [
            (self.stays_in_memory(), "pages stay in memory"),
            (is_refused, "io_uring is refused"),
            (!is_refused && self.only_workers(), "io_uring would hand each request to a kernel worker"),
        ];
        let causes: Vec<&str> = causes.into_iter().filter(|(holds, _)| *holds).map(|(_, cause)| cause).collect();
        let because = if causes.is_empty() { String::new() } else { format!("here {}, so ", causes.join(", and ")) };
        let mut text = capitalised(&format!("{because}{}", places.join("; ")));
        let served: Vec<&Served> = self.kinds().filter_map(|row| row.nowait.as_ref()).collect();
        let [by_ring, by_worker] = [|served: &Served| served.ring, |served: &Served| served.worker]
            .map(|count| served.iter().map(|served| count(served)).sum::<u32>());
        text += &match self.controls.is_some_and(|controls| controls.hold()) {
            _ if is_refused => ".".to_owned(),
            false => ". Whether io_uring uses kernel workers here cannot be observed.".to_owned(),
            true if by_worker == 0 => ". None of these needs a kernel worker.".to_owned(),
            true => format!(". Of {by_ring} requests on io_uring, {by_worker} needed a kernel worker."),
        };
        text
    }

    /// A row of each kind of request, without the control. Without direct I/O, direct requests are buffered.
    fn kinds(&self) -> impl Iterator<Item = &Row> {
        let is_direct = self.abilities.direct != Some(DirectIo::Refused);
        let kinds =
            Case::ALL.into_iter().filter(move |case| *case != Case::ForcedRead && (is_direct || !case.is_direct()));
        kinds.filter_map(|case| self.row(case))
    }

    /// The names of the requests that the library mostly sent to a place.
    fn sent(&self, place: Sent, verb: &str) -> Option<String> {
        let names = GROUPS.into_iter().filter_map(|(name, cases)| {
            let of_group = self.kinds().filter(|row| cases.contains(&row.case));
            let ways: Vec<Sent> = of_group.filter_map(|row| Sent::of(row.nowait.as_ref()?)).collect();
            let here = ways.iter().filter(|way| **way == place).count();
            match here {
                0 => None,
                all if all == ways.len() => Some(name.to_owned()),
                _ => Some(format!("some {name}")),
            }
        });
        let names: Vec<String> = names.collect();
        let (last, others) = names.split_last()?;
        let names = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
        Some(format!("{names} {verb}"))
    }

    /// No page of a scratch file could be dropped from the page cache, which is its storage.
    fn stays_in_memory(&self) -> bool {
        let served = |case: Case| self.scratch.iter().any(|row| row.case == case && row.nowait.is_some());
        served(Case::CachedRead) && !served(Case::ColdRead)
    }

    /// Kernel workers serve all kinds of requests. (A sync always needs one.)
    fn only_workers(&self) -> bool {
        let mut ways = self.kinds().filter(|row| row.case != Case::Sync).filter_map(|row| match &row.ring {
            Outcome::Seen(rates) => Some(rates.verdict().way),
            _ => None,
        });
        ways.next() == Some(Way::Worker) && ways.all(|way| way == Way::Worker)
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
