//! The cases, and the work of a turn.

use std::sync::Arc;

use nowait_bench::measure::mixed::{Layout, Plan, Planned};
use nowait_bench::random::Random;
use nowait_bench::sys::PAGE;
use nowait_bench::{Error, ErrorKind, Result};

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) work: Work,
    pub(crate) driver: Driver,
}

#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Each task reads pages, one after the other; `hot` of a hundred are cached.
    Reads { tasks: usize, hot: usize },
    /// One task reads batches of records, each in a page of its own.
    Gathers { records: usize, hot: usize },
    /// Tasks write the pages of a new file in turn, so that it grows.
    Writes { tasks: usize, is_durable: bool },
}

/// Executor that polls the tasks.
#[derive(Clone, Copy)]
pub(crate) enum Driver {
    /// A thread that makes blocking calls instead.
    Blocking,
    /// Threads in `nowait::block_on`, each with its share of the tasks.
    BlockOn { threads: usize },
    /// A multi-thread runtime, on which `Nowait::attach_tokio` was called or not.
    Tokio { workers: usize, is_attached: bool },
}

/// Bytes of a record of a gather.
const RECORD: usize = 1024;

const BLOCK_ON: Driver = Driver::BlockOn { threads: 1 };
const TOKIO: Driver = Driver::Tokio { workers: 2, is_attached: true };
const UNATTACHED: Driver = Driver::Tokio { workers: 2, is_attached: false };

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, work, driver| cases.push(Case { name, work, driver });

    let cached = Work::Reads { tasks: 1, hot: 100 };
    add("cached-blocking".to_owned(), cached, Driver::Blocking);
    add("cached-block-on".to_owned(), cached, BLOCK_ON);
    for workers in [1, 2] {
        add(format!("cached-tokio-{workers}"), cached, Driver::Tokio { workers, is_attached: true });
    }
    for (name, driver) in [("block-on", BLOCK_ON), ("tokio", TOKIO), ("unattached", UNATTACHED)] {
        for tasks in [1, 4, 32] {
            add(format!("cold-{name}-{tasks}"), Work::Reads { tasks, hot: 0 }, driver);
        }
    }
    for (name, driver) in [("blocking", Driver::Blocking), ("tokio", TOKIO)] {
        for records in [64, 512] {
            add(format!("gather-{name}-{records}"), Work::Gathers { records, hot: 100 }, driver);
        }
        add(format!("gather-{name}-512-cold"), Work::Gathers { records: 512, hot: 0 }, driver);
    }
    for hot in [90, 99] {
        for count in [1, 2] {
            let work = Work::Reads { tasks: 64, hot };
            add(format!("mixed-block-on-{hot}-{count}"), work, Driver::BlockOn { threads: count });
            add(format!("mixed-tokio-{hot}-{count}"), work, Driver::Tokio { workers: count, is_attached: true });
        }
    }
    for (name, driver) in [("block-on", BLOCK_ON), ("tokio", TOKIO)] {
        for tasks in [1, 16] {
            add(format!("write-{name}-{tasks}"), Work::Writes { tasks, is_durable: false }, driver);
        }
    }
    add("durable-block-on-1".to_owned(), Work::Writes { tasks: 1, is_durable: true }, BLOCK_ON);
    cases
}

/// The cases whose names begin with one of these texts; all, if there is none.
pub(crate) fn chosen(texts: &[String]) -> Result<Vec<Case>> {
    let mut cases = all();
    if let Some(text) = texts.iter().find(|text| !cases.iter().any(|case| case.name.starts_with(*text))) {
        return Err(Error::new(ErrorKind::Usage, format!("no case begins with {text}; --list lists the cases")));
    }
    cases.retain(|case| texts.is_empty() || texts.iter().any(|text| case.name.starts_with(text)));
    Ok(cases)
}

/// The work of a turn.
pub(crate) enum Job {
    Reads {
        plan: Plan,
        with_heartbeat: bool,
    },
    /// Batches of offsets and lengths.
    Gathers(Arc<[Vec<(u64, usize)>]>),
    Writes {
        pages: u64,
        tasks: usize,
        is_durable: bool,
    },
}

impl Case {
    /// Makes about this number of operations: fewer if the file has too few cold pages, or would exceed its size.
    pub(crate) fn job(&self, layout: Layout, operations: u64, random: &mut Random) -> Job {
        let mut plan = |tasks, hot| Plan::new(layout, tasks, operations as usize, hot, random);
        match self.work {
            Work::Reads { tasks, hot } => Job::Reads { plan: plan(tasks, hot), with_heartbeat: self.is_mixed() },
            Work::Gathers { records, hot } => {
                let batch = |pages: &[Planned]| pages.iter().map(|page| (page.offset(), RECORD)).collect();
                Job::Gathers(plan(1, hot).tasks[0].chunks(records).map(batch).collect())
            }
            Work::Writes { tasks, is_durable } => {
                let pages = operations.min(layout.hot_pages() + layout.cold_pages());
                Job::Writes { pages, tasks, is_durable }
            }
        }
    }

    /// Returns whether hot and cold reads are mixed, beside a heartbeat.
    pub(crate) fn is_mixed(&self) -> bool {
        matches!(self.work, Work::Reads { hot: 1..100, .. })
    }

    pub(crate) fn operation_bytes(&self) -> usize {
        if let Work::Gathers { .. } = self.work { RECORD } else { PAGE as usize }
    }
}

impl Job {
    /// For a gather, an operation is a record.
    pub(crate) fn operations(&self) -> u64 {
        match self {
            Job::Reads { plan, .. } => plan.reads(),
            Job::Gathers(batches) => batches.iter().map(|batch| batch.len() as u64).sum(),
            Job::Writes { pages, .. } => *pages,
        }
    }
}
