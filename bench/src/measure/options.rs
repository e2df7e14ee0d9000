//! Options of a run, as on the command line. A table has its own default values for options that
//! are not given.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{EnumValueParser, PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, ValueEnum};

use crate::machine::testfile::SMALLEST;
use crate::measure::work::Records;
use crate::random::fresh_seed;
use crate::ways::{self, Roster, WAYS};

/// Limits of rounds, tasks and threads of a runtime, arrivals per second, and bytes of a record and
/// of a block.
pub const MOST_ROUNDS: u64 = 1000;
const TASKS_MAX: u64 = 1024;
const WORKERS_MAX: u64 = 256;
pub const RATE_MAX: usize = 1 << 20;
const RECORD_MIN: u64 = Records::SMALLEST as u64;
const RECORD_MAX: u64 = 1 << 20;
/// Unit of block sizes, since direct I/O requires whole sectors.
const SECTOR: u64 = 512;
const BLOCK_MAX: u64 = 64 << 20;

/// Declares the options. A list of values applies only to tables that name it in
/// [`Table::takes`](crate::table::Table::takes).
macro_rules! options {
    (
        { $($field:tt)* }
        $($(#[$help:meta])* $list:ident: $type:ty as $value:literal by $parser:expr;)*
    ) => {
        #[derive(Debug, Clone, Default, Args)]
        pub struct Options {
            $($field)*
            $($(#[$help])* #[arg(long, value_delimiter = ',', value_name = $value, value_parser = $parser)]
            pub $list: Vec<$type>,)*
        }

        impl Options {
            /// Returns each option that only some tables take, and whether it was given.
            pub fn given(&self) -> Vec<(&'static str, bool)> {
                let others = [("direct", self.direct), ("stall_size", self.stall_size.is_some())];
                others.into_iter().chain([$((stringify!($list), !self.$list.is_empty())),*]).collect()
            }

            /// Sorts the lists, and removes duplicates.
            fn sort(&mut self) {
                $(self.$list.sort_unstable(); self.$list.dedup();)*
            }
        }
    };
}

options! {
    {
        /// Measure a smaller file, fewer cases, fewer and shorter rounds: less than a minute for the
        /// tables of reads
        #[arg(long)]
        pub quick: bool,

        /// Read this file instead of making one; it is never modified
        #[arg(long, value_name = "PATH", conflicts_with_all = ["dir", "size"])]
        pub file: Option<PathBuf>,

        /// Directory for the test file, on the disk to be measured
        #[arg(long, value_name = "DIR", default_value = ".")]
        pub dir: PathBuf,

        /// Size of the test file in bytes, or with K, M, G or T (powers of 1024), such as 512M or
        /// 4G [default: 1G, with --quick 64M]. In `writes`, the most that a round writes [default:
        /// 64M, with --quick 8M]; a round takes at most about a second
        #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>(1, SMALLEST, i64::MAX as u64))]
        pub size: Option<u64>,

        /// Bytes that a round of `stall` writes [default: four times the limit of dirty data, but
        /// at most 2G and a third of the free space; with --quick 64M]
        #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>(1, SMALLEST, i64::MAX as u64))]
        pub stall_size: Option<u64>,

        /// Bypass the page cache (O_DIRECT), in the table `reads` only. It then omits the way
        /// `willneed` and adds `nowait-aio`: this library through libaio, its engine where io_uring
        /// is refused
        #[arg(long)]
        pub direct: bool,

        /// Timed rounds of each way in each case [default: from 3 to 15, as many as fit in two
        /// minutes per table, or with --quick in 20 s]
        #[arg(long, value_name = "N", value_parser = from(1, MOST_ROUNDS))]
        pub rounds: Option<usize>,

        /// Measure only these ways; an unknown name lists all
        #[arg(long, value_delimiter = ',', value_name = "WAY", hide_possible_values = true)]
        #[arg(value_parser = PossibleValuesParser::new(ways::names()))]
        pub ways: Vec<String>,

        /// Seed of an earlier run, to repeat its offsets
        #[arg(long, value_name = "N", default_value_t = fresh_seed(), hide_default_value = true)]
        pub seed: u64,

        /// Time for all cases of a table.
        #[arg(skip)]
        pub budget: Duration,
        /// Duration of a round of reads for a way of average speed; below, of commits and of
        /// `mixed`.
        #[arg(skip)]
        pub round_time: Duration,
        #[arg(skip)]
        pub commit_time: Duration,
        #[arg(skip)]
        pub mixed_time: Duration,
        /// Time over which the arrivals of a round are spread.
        #[arg(skip)]
        pub load_time: Duration,
        /// All ways.
        #[arg(skip)]
        pub roster: Roster,
        /// Names of the cases to measure; all if empty.
        #[arg(skip)]
        pub cases: Vec<String>,
        /// Number of small files in the table `files`.
        #[arg(skip)]
        pub files: Option<u64>,
        /// Permits dropping the machine's caches of inodes, names and pages before cold rounds of
        /// `files`, and lowering the system's limit of dirty data for `stall`.
        #[arg(skip)]
        pub drop_caches: bool,
        #[arg(skip)]
        pub lower_dirty_limit: bool,
    }

    /// Measure only these depths in `reads`, `writes`, `scan` and `files`
    depths: usize as "N" by from(1, 1024);

    /// Measure only batches of these numbers of records in `gather`
    records: usize as "N" by from(1, 65536);

    /// Measure only these block sizes in `scan`, such as 16K or 1M
    blocks: usize as "SIZE" by bytes::<usize>(SECTOR, SECTOR, BLOCK_MAX);

    /// Measure only these workloads in `log` [default: all; with --quick threads]
    logs: Logged as "KIND" by EnumValueParser::<Logged>::new();

    /// Measure only these numbers of records in flight per thread in `log --logs pipelined`
    in_flight: usize as "N" by from(1, 256);

    /// Measure only these numbers of writers in `log`
    writers: usize as "N" by from(1, 1024);

    /// Measure only these record sizes in `log`, such as 128 or 4K
    sizes: usize as "SIZE" by bytes::<usize>(1, RECORD_MIN, RECORD_MAX);

    /// Measure only these percentages of cached reads in `mixed`
    hot: usize as "N" by from(0, 100);

    /// Measure only these numbers of tasks in `mixed` and in `log --logs tokio`
    tasks: usize as "N" by from(1, TASKS_MAX);

    /// Measure only these numbers of runtime threads in `mixed`
    workers: usize as "N" by from(1, WORKERS_MAX);

    /// Measure `mixed` only beside this other work, on the same runtime or in other processes
    beside: Beside as "WORK" by EnumValueParser::<Beside>::new();

    /// Measure only these operations in `load`
    loads: Arriving as "KIND" by EnumValueParser::<Arriving>::new();

    /// Measure only these rates in `load`, in arrivals per second
    rates: usize as "N" by from(1, RATE_MAX as u64);
}

/// Other work beside the measured reads, on the same runtime or in other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Beside {
    /// Reads alone
    Nobody,
    /// A task that writes a file, 32 MB/s through the page cache
    Writes,
    /// A task that appends to a durable log
    Log,
    /// Other processes that keep all processors busy
    Cpu,
    /// Another process that reads from the same disk, with four reads of 128 KiB in flight
    Tenant,
}

/// Kind of operation that arrives at random times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Arriving {
    /// Cold reads of 4 KiB
    Reads,
    /// Gathers of 64 cold records of 4 KiB
    Gather,
    /// Durable appends of 100 bytes
    Log,
}

/// Kind of work with a durable log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Logged {
    /// Threads, each waiting for its record
    Threads,
    /// Threads with several records in flight, each waiting for its oldest
    Pipelined,
    /// Tasks on two tokio workers
    Tokio,
}

impl Options {
    /// Returns the default options, for the current directory.
    pub fn new(quick: bool, seed: u64) -> Self {
        Self { quick, seed, dir: PathBuf::from("."), ..Self::default() }.settled()
    }

    /// Sets the options that the command line does not have, and sorts the lists.
    pub fn settled(mut self) -> Self {
        let quick = |quick, full| Duration::from_millis(if self.quick { quick } else { full });
        self.budget = quick(20_000, 120_000);
        self.round_time = Duration::from_millis(300);
        self.commit_time = quick(150, 700);
        // A round has a few hundred beats, enough for their p99.
        self.mixed_time = quick(100, 500);
        // A round has a hundred gathers at their lowest rate.
        self.load_time = quick(200, 1000);
        self.roster = WAYS;
        self.sort();
        self
    }

    /// Returns the given values, or the table's defaults.
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

fn from(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

/// Parses a number of bytes with an optional suffix: a multiple of `unit` from `least` to `most`.
fn bytes<T: TryFrom<u64>>(unit: u64, least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let size = parse_size::Config::new().with_binary().parse_size(text);
        let size = size.map_err(|error| format!("not a size such as 4K, 512M or 1G: {error}"))?;
        let fits = (least..=most).contains(&size) && size % unit == 0;
        let multiple = if unit > 1 { format!(", and a multiple of {unit}") } else { String::new() };
        let refused = || format!("not {least} to {most} bytes{multiple}");
        T::try_from(size).ok().filter(|_| fits).ok_or_else(refused)
    }
}

/// Returns the name of a value, as on the command line.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        let size = |text| bytes::<u64>(1, SMALLEST, i64::MAX as u64)(text).ok();
        assert_eq!(["2M", "1gib", "1048576", "1.5G"].map(size), [2 << 20, 1 << 30, 1 << 20, 3 << 29].map(Some));
        assert_eq!(["", "M", "12X", "-1M", "64K", "99999999T"].map(size), [None; 6]);
        let block = |text| bytes::<usize>(SECTOR, SECTOR, BLOCK_MAX)(text).ok();
        assert_eq!(["16K", "512", "64M"].map(block), [16 << 10, 512, 64 << 20].map(Some));
        assert_eq!(["", "0", "1000", "-512", "65M", "16T"].map(block), [None; 6]);
    }
}
