//! Options of a run, as plain data. A table takes those that concern it, and has values of its own
//! for those left open.

use std::path::PathBuf;
use std::time::Duration;

use crate::ways::{Roster, WAYS};

#[derive(Debug, Clone)]
pub struct Options {
    /// Smaller files, fewer cases, shorter rounds.
    pub quick: bool,
    /// Names of the ways to measure; empty for all.
    pub ways: Vec<String>,
    /// Timed rounds of each way in each case.
    /// Without it, as many as fit in `budget`.
    pub rounds: Option<usize>,
    /// Time that a table's cases have together.
    pub budget: Duration,
    /// Duration of a round of reads at a middling way's speed.
    pub round_time: Duration,
    /// Duration of a round of commits at a middling way's speed.
    pub commit_time: Duration,
    /// Duration of a round of mixed load at a middling way's speed.
    pub mixed_time: Duration,
    /// Time in which the arrivals of a round come.
    pub load_time: Duration,
    pub seed: u64,
    /// Where files are made.
    pub dir: PathBuf,
    /// The ways that there are.
    pub roster: Roster,
    /// Only cases of these names; empty for all.
    pub cases: Vec<String>,
    /// The user's own file, which is only read.
    pub file: Option<PathBuf>,
    /// Size of the test file; for the table `writes`, the most that a round writes.
    pub size: Option<u64>,
    /// Reads go past the page cache.
    pub direct: bool,
    /// Reads that start in a second; without it, as many as there can be.
    pub rate: Option<u32>,

    // Sizes of cases. Empty: the table's own.
    pub depths: Vec<usize>,
    pub records: Vec<usize>,
    pub blocks: Vec<usize>,
    pub writers: Vec<usize>,
    pub sizes: Vec<usize>,
    /// Hot reads in a hundred.
    pub hot: Vec<usize>,
    pub tasks: Vec<usize>,
    pub workers: Vec<usize>,
    pub beside: Vec<Beside>,

    /// Kinds of operations that arrive by chance, and their rates.
    pub loads: Vec<Arriving>,
    pub rates: Vec<usize>,

    /// Kinds of work with a durable log, and a writer's records under way.
    pub logs: Vec<Logged>,
    pub in_flight: Vec<usize>,

    /// Kinds of copies, and the directory that they go to; `None` for that of the run.
    pub copies: Vec<Copied>,
    pub to: Option<PathBuf>,

    /// Small files of the tables `files` and `copy`.
    pub files: Option<u64>,
    /// Bytes that a round of the table `stall` writes; else four times the limit of dirty data,
    /// within bounds.
    pub stall_size: Option<u64>,
    /// Drop the machine's caches of inodes, names and pages before cold rounds of the table
    /// `files`.
    pub drop_caches: bool,
    /// Lower the system's limit of dirty data for the table `stall`, where that is allowed.
    pub lower_dirty_limit: bool,
}

/// Other work beside a measured load: of the same runtime, or of other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Beside {
    Nobody,
    /// A task that writes a file steadily, through the page cache.
    Writes,
    /// A task that appends to a durable log.
    Log,
    /// Other processes keep all processors busy.
    Cpu,
    /// Another process reads from the same disk.
    Tenant,
}

/// Kind of operation that arrives by chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arriving {
    Reads,
    Gather,
    Log,
}

/// Kind of work with a durable log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Logged {
    /// Threads, each of which waits for its record.
    Threads,
    /// Threads with several records in flight.
    Pipelined,
    /// Tasks of a runtime.
    Tokio,
}

/// Kind of copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Copied {
    /// One large file, its bytes moved.
    Big,
    /// The same, past the page cache where a way can.
    BigNeutral,
    /// Many small files, with their metadata.
    Tree,
    /// One large file, its blocks shared.
    Reflink,
}

const FULL_ROUND: Duration = Duration::from_millis(300);
const FULL_COMMITS: Duration = Duration::from_millis(700);
const QUICK_COMMITS: Duration = Duration::from_millis(150);
/// A round has some hundred beats, of which one in a hundred is to be told.
const FULL_MIXED: Duration = Duration::from_millis(500);
const QUICK_MIXED: Duration = Duration::from_millis(100);
/// At the lowest rate of gathers there are a hundred in a round.
const FULL_LOAD: Duration = Duration::from_secs(1);
const QUICK_LOAD: Duration = Duration::from_millis(200);
const FULL_BUDGET: Duration = Duration::from_secs(120);
const QUICK_BUDGET: Duration = Duration::from_secs(20);
impl Options {
    /// Everything left open. Touches nothing but the directory.
    pub fn new(quick: bool, seed: u64) -> Self {
        Self {
            quick,
            ways: Vec::new(),
            rounds: None,
            budget: if quick { QUICK_BUDGET } else { FULL_BUDGET },
            round_time: FULL_ROUND,
            commit_time: if quick { QUICK_COMMITS } else { FULL_COMMITS },
            mixed_time: if quick { QUICK_MIXED } else { FULL_MIXED },
            load_time: if quick { QUICK_LOAD } else { FULL_LOAD },
            seed,
            dir: PathBuf::from("."),
            roster: WAYS,
            cases: Vec::new(),
            files: None,
            file: None,
            size: None,
            direct: false,
            rate: None,
            depths: Vec::new(),
            records: Vec::new(),
            blocks: Vec::new(),
            writers: Vec::new(),
            sizes: Vec::new(),
            hot: Vec::new(),
            tasks: Vec::new(),
            workers: Vec::new(),
            beside: Vec::new(),
            loads: Vec::new(),
            rates: Vec::new(),
            logs: Vec::new(),
            in_flight: Vec::new(),
            copies: Vec::new(),
            to: None,
            stall_size: None,
            drop_caches: false,
            lower_dirty_limit: false,
        }
    }

    /// Returns what was asked for, else the table's own values.
    pub fn or_usual(&self, asked: &[usize], quick: &[usize], full: &[usize]) -> Vec<usize> {
        match (asked, self.quick) {
            ([], true) => quick.into(),
            ([], false) => full.into(),
            _ => asked.into(),
        }
    }

    /// Returns whether a way of this name was asked for.
    pub fn chooses(&self, way: &str) -> bool {
        self.ways.is_empty() || self.ways.iter().any(|name| name == way)
    }
}

impl Beside {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Writes => "writes",
            Self::Log => "log",
            Self::Cpu => "cpu",
            Self::Tenant => "tenant",
        }
    }
}

impl Arriving {
    pub const ALL: [Self; 3] = [Self::Reads, Self::Gather, Self::Log];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Gather => "gather",
            Self::Log => "log",
        }
    }
}

impl Logged {
    pub const ALL: [Self; 3] = [Self::Threads, Self::Pipelined, Self::Tokio];

    /// Name of its table.
    pub fn table(self) -> &'static str {
        match self {
            Self::Threads => "log",
            Self::Pipelined => "log-pipelined",
            Self::Tokio => "log-tokio",
        }
    }
}

impl Copied {
    pub const ALL: [Self; 4] = [Self::Big, Self::BigNeutral, Self::Tree, Self::Reflink];

    pub fn name(self) -> &'static str {
        match self {
            Self::Big => "big",
            Self::BigNeutral => "big-neutral",
            Self::Tree => "tree",
            Self::Reflink => "reflink",
        }
    }
}
