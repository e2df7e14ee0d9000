//! A mixed load: tasks that share a runtime read mostly cached pages, beside a heartbeat of that
//! runtime. This file contains the job as plain data, drawn by seed before any way starts, and its
//! figures.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machine::testfile::Marks;
use crate::measure::meter::{Latencies, Tally, latencies};
use crate::measure::work::Target;
use crate::random::Random;
use crate::sys::PAGE;

/// Interval of the heartbeat.
pub const BEAT: Duration = Duration::from_millis(1);
/// Size of the tasks' reads, and of the neighbour's writes.
pub const BLOCK: usize = PAGE as usize;
/// Number of blocks that the neighbour writes in each interval: 32 MB/s.
pub const WRITES_A_BEAT: usize = 8;
/// Number of blocks after which the writer returns to the start of its file.
pub const WRITTEN_BLOCKS: u64 = (64 << 20) / PAGE;
/// Size of the neighbour's log records.
pub const RECORD: usize = 256;

/// Layout of hot and cold pages: the first pages of each stripe are hot. So both kinds are spread
/// over the whole file.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pages: u64,
}

impl Layout {
    /// Number of pages in a stripe, and number of hot ones.
    const STRIPE: u64 = 64;
    const HOT: u64 = 16;

    /// Lays out the whole pages of a file of this size.
    pub fn of(size: u64) -> Self {
        Self { pages: (size / PAGE).min(u64::from(u32::MAX)) }
    }

    pub fn hot_pages(&self) -> u64 {
        self.pages / Self::STRIPE * Self::HOT + (self.pages % Self::STRIPE).min(Self::HOT)
    }

    pub fn cold_pages(&self) -> u64 {
        self.pages - self.hot_pages()
    }

    /// Iterates over the runs of pages of one kind, in order, each with whether it is hot.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, bool)> + Clone + use<> {
        let pages = self.pages;
        let stripes = (0..pages).step_by(Self::STRIPE as usize);
        let runs = stripes.flat_map(move |start| {
            let middle = pages.min(start + Self::HOT);
            [(start..middle, true), (middle..pages.min(start + Self::STRIPE), false)]
        });
        runs.filter(|(run, _)| !run.is_empty())
    }

    fn hot_page(number: u64) -> u64 {
        number / Self::HOT * Self::STRIPE + number % Self::HOT
    }

    fn cold_page(number: u64) -> u64 {
        let cold = Self::STRIPE - Self::HOT;
        number / cold * Self::STRIPE + Self::HOT + number % cold
    }
}

/// A page to read, and whether it was cached when the round began. Eight bytes, so that a plan uses
/// little of the processor's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    page: u32,
    is_hot: bool,
}

impl Planned {
    #[inline]
    pub fn offset(self) -> u64 {
        u64::from(self.page) * PAGE
    }
}

/// The reads of each task, in order. No cold page occurs twice, since its second read would be hot.
#[derive(Debug, Default)]
pub struct Plan {
    pub tasks: Vec<Arc<[Planned]>>,
    pub cold: u64,
}

impl Plan {
    /// Plans about `reads` reads, equally many for each task, of which `hot` per cent are hot.
    /// Plans fewer if the file has too few cold pages. Each task has its share of cold reads, at
    /// random positions.
    pub fn new(layout: Layout, tasks: usize, reads: usize, hot: usize, random: &mut Random) -> Self {
        let cold_share = 100 - hot.min(100) as u64;
        let most = (layout.cold_pages() * 100).checked_div(cold_share).unwrap_or(u64::MAX);
        let of_task = ((reads as u64).min(most) / tasks as u64).max(1);
        let cold = (of_task * tasks as u64 * cold_share).div_ceil(100).min(layout.cold_pages());
        let mut cold_pages = random.permutation(layout.cold_pages()).into_iter().take(cold as usize);
        let mut richer = vec![false; tasks];
        let rest = (cold % tasks as u64) as usize;
        random.permutation(tasks as u64).into_iter().take(rest).for_each(|task| richer[task as usize] = true);
        let page = |page: u64, is_hot| Planned { page: page as u32, is_hot };
        let mut list = |richer: bool| {
            let own = (cold / tasks as u64) as usize + usize::from(richer);
            let mut reads: Vec<Planned> =
                cold_pages.by_ref().take(own).map(|number| page(Layout::cold_page(number), false)).collect();
            let hot = |_| page(Layout::hot_page(random.below(layout.hot_pages().max(1))), true);
            reads.extend((own as u64..of_task).map(hot));
            for i in (1..reads.len()).rev() {
                reads.swap(i, random.below(i as u64 + 1) as usize);
            }
            reads.into()
        };
        Self { tasks: richer.into_iter().map(&mut list).collect(), cold }
    }

    pub fn reads(&self) -> u64 {
        self.tasks.iter().map(|reads| reads.len() as u64).sum()
    }
}

/// Work that shares the runtime with the reads.
#[derive(Clone, Copy, Debug)]
pub enum Neighbour<'a> {
    Nobody,
    /// A task writes through the page cache, [`WRITES_A_BEAT`] blocks in each interval.
    Writer {
        file: &'a Arc<File>,
        path: &'a Path,
    },
    /// A task appends a record, waits until it is durable, and appends the next.
    Log(&'a nowait_log::Log),
}

/// Reads of tasks that share a runtime.
#[derive(Clone, Copy, Debug)]
pub struct Mixed<'a> {
    pub target: Target<'a>,
    pub marks: Marks,
    pub plan: &'a Plan,
    /// Threads of the runtime that run tasks.
    pub workers: usize,
    pub beside: Neighbour<'a>,
}

/// Figures of one round, besides those of all reads.
#[derive(Debug, Clone)]
pub struct Mixture {
    /// Latencies by the planned kind of a read, regardless of how it was served.
    pub hot: Latencies,
    pub cold: Latencies,
    /// Delay of each beat from its scheduled time.
    pub late: Latencies,
    /// Number of writes or records of the neighbour.
    pub beside: u64,
}

impl Mixture {
    /// Adds all reads to the round's tally. `seen` is in the order of the plan's tasks.
    pub fn tell(job: &Mixed<'_>, seen: Vec<Seen>, late: Latencies, beside: u64, tally: &mut Tally<'_>) -> Self {
        let mut told = Self { hot: latencies(), cold: latencies(), late, beside };
        for (reads, seen) in job.plan.tasks.iter().zip(seen) {
            for (read, &latency) in reads.iter().zip(&seen.latencies[..seen.reads]) {
                let of_kind = if read.is_hot { &mut told.hot } else { &mut told.cold };
                of_kind.saturating_record(u64::from(latency));
            }
            for (offset, bytes) in seen.kept.into_iter().flatten() {
                tally.verify(offset, &bytes);
            }
            if let Some(offset) = seen.wrong {
                tally.is_wrong(offset);
            }
        }
        for of_kind in [&told.hot, &told.cold] {
            tally.read_by_tasks(of_kind, BLOCK);
        }
        told
    }
}

/// Reads of one task. While the clock runs, latencies are only appended to a list: a histogram for
/// each of hundreds of tasks would displace the reads' data from the processor's caches.
#[derive(Debug)]
pub struct Seen {
    latencies: Vec<u32>,
    reads: usize,
    marks: Marks,
    wrong: Option<u64>,
    /// The bytes, if they will be compared.
    kept: Option<Vec<(u64, Vec<u8>)>>,
}

impl Seen {
    pub fn new(reads: &[Planned], marks: Marks, tally: &Tally<'_>) -> Self {
        // Not zeros, so that the memory is allocated before the clock runs.
        let latencies = vec![u32::MAX; reads.len()];
        Self { latencies, reads: 0, marks, wrong: None, kept: tally.verifies().then(Vec::new) }
    }

    #[inline]
    pub fn add(&mut self, offset: u64, bytes: &[u8], started: Instant) {
        let latency = started.elapsed().as_nanos();
        if let Some(place) = self.latencies.get_mut(self.reads) {
            *place = latency.min(u128::from(u32::MAX)) as u32;
        }
        self.reads += 1;
        if !self.marks.hold(offset, bytes) {
            self.wrong.get_or_insert(offset);
        }
        if let Some(kept) = &mut self.kept {
            kept.push((offset, bytes.to_vec()));
        }
    }
}

/// Beats at fixed times, regardless of delays of earlier ones.
#[derive(Debug)]
pub struct Heart {
    began: Instant,
    beats: u32,
    late: Latencies,
}

impl Heart {
    pub fn new(began: Instant) -> Self {
        Self { began, beats: 0, late: latencies() }
    }

    fn due(&self) -> Instant {
        self.began + BEAT * (self.beats + 1)
    }

    /// Records a beat now.
    #[inline]
    pub fn beat(&mut self) {
        self.late_until(Instant::now());
    }

    fn late_until(&mut self, moment: Instant) {
        let late = moment.saturating_duration_since(self.due());
        self.late.saturating_record(late.as_nanos() as u64);
        self.beats += 1;
    }

    /// Ends the heartbeat. A beat that was due and did not come is late by at least the time to the
    /// end.
    pub fn end(mut self, ended: Instant) -> Latencies {
        while self.due() <= ended {
            self.late_until(ended);
        }
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SIZE: u64 = 1000 * PAGE + 17;

    #[test]
    fn every_page_is_hot_or_cold_and_both_are_found() {
        for pages in [1, 15, 16, 17, 63, 64, 65, 80, 1000] {
            let layout = Layout::of(pages * PAGE + 5);
            let of_kind = |hot| layout.runs().filter(move |(_, is)| *is == hot).flat_map(|(run, _)| run);
            assert!(of_kind(true).eq((0..layout.hot_pages()).map(Layout::hot_page)), "{pages}");
            assert!(of_kind(false).eq((0..layout.cold_pages()).map(Layout::cold_page)), "{pages}");
            assert!(layout.runs().flat_map(|(run, _)| run).eq(0..pages), "{pages}");
        }
    }

    #[test]
    fn a_plan_has_its_share_of_cold_reads_in_every_task_and_no_page_of_them_twice() {
        let layout = Layout::of(SIZE);
        for (tasks, reads, hot) in [(1, 1000, 90), (16, 800, 50), (64, 6400, 99), (64, 640, 100), (7, 100, 0)] {
            let plan = Plan::new(layout, tasks, reads, hot, &mut Random::new(1));
            let of_task = reads / tasks;
            assert!(plan.tasks.len() == tasks && plan.tasks.iter().all(|reads| reads.len() == of_task));
            let cold = |reads: &[Planned]| reads.iter().filter(|read| !read.is_hot).count();
            let expected = (of_task * tasks * (100 - hot)).div_ceil(100);
            assert_eq!(plan.cold as usize, expected, "{tasks} {hot}");
            assert_eq!(plan.tasks.iter().map(|reads| cold(reads)).sum::<usize>(), expected);
            let (low, high) = (expected / tasks, expected.div_ceil(tasks));
            assert!(plan.tasks.iter().all(|reads| (low..=high).contains(&cold(reads))), "{tasks} {hot}");
            let all = || plan.tasks.iter().flat_map(|reads| reads.iter());
            let pages: BTreeSet<u64> = all().filter(|read| !read.is_hot).map(|read| read.offset()).collect();
            assert_eq!(pages.len(), expected);
            let is_hot = |offset: u64| offset / PAGE % Layout::STRIPE < Layout::HOT;
            assert!(all().all(|read| is_hot(read.offset()) == read.is_hot && read.offset() + PAGE <= SIZE));
        }
    }

    #[test]
    fn a_plan_is_the_same_for_a_seed_and_cold_reads_are_not_all_at_one_end() {
        let plan = |seed| Plan::new(Layout::of(SIZE), 4, 2000, 75, &mut Random::new(seed));
        assert_eq!(plan(3).tasks, plan(3).tasks);
        assert_ne!(plan(3).tasks, plan(4).tasks);
        let plan = plan(3);
        for reads in &plan.tasks {
            let (head, tail) = reads.split_at(reads.len() / 2);
            assert!([head, tail].iter().all(|half| half.iter().any(|read| !read.is_hot)));
        }
    }

    #[test]
    fn a_file_with_too_few_cold_pages_shortens_the_plan_and_keeps_the_share() {
        let layout = Layout::of(SIZE);
        let plan = Plan::new(layout, 10, 1_000_000, 50, &mut Random::new(1));
        assert!(plan.cold <= layout.cold_pages() && plan.cold >= layout.cold_pages() - 10);
        assert_eq!(plan.reads(), plan.cold * 2);
    }

    #[test]
    fn beats_that_never_came_are_late_until_the_end() {
        let began = Instant::now();
        let mut heart = Heart::new(began);
        heart.late_until(began + BEAT);
        heart.late_until(began + BEAT * 5);
        let late = heart.end(began + BEAT * 10);
        assert_eq!(late.len(), 10);
        assert_eq!(late.min(), 0);
        // The third beat was due after 3 ms, and had not come after 10 ms.
        assert!((6_900_000..7_200_000).contains(&late.max()), "{}", late.max());
        assert_eq!(Heart::new(began).end(began + BEAT / 2).len(), 0);
    }
}
