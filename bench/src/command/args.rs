//! Arguments of `nowait bench`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};

use crate::machine::testfile::SMALLEST;
use crate::measure::options::{Arriving, Beside, Copied, Logged};
use crate::measure::work::Records;
use crate::report::figures::parse_bytes;
use crate::report::notes::Code;
use crate::table::{self, load, log, mixed, scan};
use crate::ways;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    another error
  2    wrong usage
  3    no room on the disk
  4    permission denied, for the directory or the file
  5    the file cannot be measured (missing, a directory, too small), or no such directory
  6    the file cannot be made cold; nothing cold was measured
  12   with --against: a row is worse
  130  interrupted";

/// Compare the ways of reading and writing files on this disk, file system and kernel.
///
/// All ways read the same file at the same random offsets, in interleaved rounds; the figures are
/// medians. Cold means verified cold. A test file is made for the run and leaves nothing behind.
///
/// The tables `writes` and `stall` append 4 KiB at a time, through the page cache, to a new file
/// for each round. As root, if it is named and --quick is not, `stall` lowers vm.dirty_bytes to
/// 128 MiB while it runs, for all programs. That is undone at the end, also after Ctrl-C, but not
/// after SIGKILL.
///
/// In the table `log`, up to 64 threads append small records and wait until each is on stable
/// storage. Each round writes to a new file of up to 1 GiB, filled with zeros before. --logs chooses
/// other work with a log: a few threads with up to 32 records in flight each; 64 and 256 tasks of
/// tokio. `--logs threads` takes five minutes, all of it about twenty; with --quick it is `threads`
/// alone, unless --logs says more.
///
/// The table `scan` reads the test file, cold, in order or every fourth block, with the kernel's
/// readahead.
///
/// The table `files` opens, reads and closes 100000 files of 4 to 16 KiB in a folder of its own in
/// DIR (3000 with --quick), removed at the end; then 4000 tasks read 256 open files of 2 MiB at
/// random. As root, and without --quick, it drops the machine's caches of inodes and pages before
/// each cold round. `threads` has 128 threads at most there.
///
/// The table `ranges` takes the test file, of 4 GiB (256 MiB with --quick), for row groups of 16
/// column chunks, and reads four columns of each: 20000 ranges (4096) of 13 to 350 KiB, nothing of it
/// aligned, each into memory of its own, from 32 tasks on tokio (--tasks). Told are seconds, the
/// largest resident set of the process, which has mapped pages of the file in it but not the page
/// cache, and what was read from storage. With --size 16G ranges are four times as long.
///
/// The table `copy` has commands copy a file of 2 GiB (64 MiB with --quick) and a tree of 5000 files of
/// up to 16 KiB (500), by name: nowait copy, cp, dd, rsync, and xcp, fcp and cpz where they are in
/// PATH. Sources are cold; the clock stops when the copy is on stable storage, and when the command
/// ended is told besides. As root, and without --quick, it drops the machine's caches of inodes and
/// pages before each round of the tree.
///
/// The table `readwrite` makes a file of 512 MiB (32 MiB with --quick), reads it at random and
/// writes to it durably, 70 to 30, past the page cache and through it.
///
/// In the table `mixed`, tasks on one runtime read 4 KiB at a time, most of it cached, beside a
/// heartbeat of 1 ms on the same runtime: tokio, smol, or threads in `nowait::block_on`. How late
/// the heartbeat comes depends on the runtime's timer, too: compare ways of the same runtime. The
/// whole table takes about ten minutes.
///
/// In the table `load`, cold reads of 4 KiB, gathers of 64 of them, and durable appends of 100 bytes
/// arrive by chance (Poisson), at a rate that doubles until no way keeps up; with --quick, reads
/// alone, at rates four times apart. Latency counts from the arrival. At most 64 are at work at a
/// time; others wait. A way that does less than 0.95 of what is offered has no rows at higher rates.
/// The whole table takes about ten minutes.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Bench {
    /// Tables to measure, or `tour`: most of them, shortened to minutes. Default: six cases of reads,
    /// writes and durable appends on one screen, in less than a minute; with --quick, --file, --direct,
    /// --rate or --ways: reads, cached and gather, as far as the option allows
    #[arg(value_parser = table_names())]
    pub(crate) tables: Vec<String>,

    /// Measure a smaller file, fewer cases, fewer and shorter rounds: less than a minute for the
    /// tables of reads
    #[arg(long)]
    pub(crate) quick: bool,

    /// Read this file instead of making one; it is never modified
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dir", "size"])]
    pub(crate) file: Option<PathBuf>,

    /// Directory for the test file, on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,

    /// Size of the test file, such as 512M or 4G [default: 1G, for `ranges` 4G; with
    /// --quick 64M and 256M], and of the large file of `copy` [default: 2G, with --quick 64M]. In `writes`, the limit of a round's writes [default: 64M, with --quick
    /// 8M]; a slow way's round ends after about a second
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,

    /// Bytes that a round of `stall` writes [default: four times the limit of dirty data, at most
    /// 2G and a third of the free space; with --quick 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) stall_size: Option<u64>,

    /// Bypass the page cache (O_DIRECT), in the table `reads` only, without `willneed`. Adds the
    /// way nowait-aio: libaio for futures in `block_on`, as where io_uring is refused
    #[arg(long)]
    pub(crate) direct: bool,

    /// Start this many reads a second, on a fixed schedule; latency counts from the scheduled
    /// start. For the tables reads and cached, and ways that can be paced
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) rate: Option<u32>,

    /// Timed rounds of each way in each case [default: 3 to 15, as fit in two minutes a table,
    /// with --quick in 20 s]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// Seconds for a run without a table [default: 42]
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["tables", "rounds"], value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) time: Option<u32>,

    /// Measure only these ways
    #[arg(long, value_delimiter = ',', value_name = "WAY", value_parser = PossibleValuesParser::new(ways::names()))]
    pub(crate) ways: Vec<String>,

    /// Measure only these depths, in the tables of cold reads and of writes, in `scan`, `files` and
    /// `readwrite`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depths: Vec<u32>,

    /// Measure only these numbers of records a batch, in `gather`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) records: Vec<u32>,

    /// Measure only these block sizes in `scan`, such as 16K or 1M
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = parse_block)]
    pub(crate) blocks: Vec<usize>,

    /// Measure only this in `copy`
    #[arg(long, value_delimiter = ',', value_enum, value_name = "KIND")]
    pub(crate) copies: Vec<CopyKind>,

    /// Directory that `copy` copies to, on another file system perhaps [default: that of --dir]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,

    /// Measure only this in `log` [default: all; with --quick threads]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "KIND")]
    pub(crate) logs: Vec<LogKind>,

    /// Measure only these numbers of a thread's records in flight in `log --logs pipelined`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) in_flight: Vec<u32>,

    /// Measure only these numbers of writers in `log`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) writers: Vec<u32>,

    /// Measure only these record sizes in `log`, such as 128 or 4K
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = parse_record)]
    pub(crate) sizes: Vec<usize>,

    /// Measure only these shares of cached reads, in percent, in `mixed`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) hot: Vec<u32>,

    /// Measure only these numbers of tasks in `mixed`, in `ranges`, and in `log --logs tokio`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=mixed::TASKS_MAX as i64))]
    pub(crate) tasks: Vec<u32>,

    /// Measure only these numbers of a runtime's threads in `mixed`
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=mixed::WORKERS_MAX as i64))]
    pub(crate) workers: Vec<u32>,

    /// Measure `mixed` only beside these: tasks of the same runtime, or other processes
    #[arg(long, value_delimiter = ',', value_enum, value_name = "WORK")]
    pub(crate) beside: Vec<BesideName>,

    /// Measure only these in `load`
    #[arg(long, value_delimiter = ',', value_enum, value_name = "KIND")]
    pub(crate) loads: Vec<LoadName>,

    /// Measure only these rates in `load`, in arrivals a second
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=load::RATE_MAX as i64))]
    pub(crate) rates: Vec<u32>,

    /// Write all figures to FILE, or to stdout if it is - (the tables then go to stderr). After an
    /// interrupt or an error it holds the complete figures, and `partial` says that there were to
    /// be more
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a self-contained HTML page with charts, tables, environment and notes to FILE, or to
    /// stdout if it is -
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Measure nothing; show an earlier run's --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tables", "quick", "file", "dir", "size", "ways", "depths", "records", "rounds", "seed", "direct"])]
    pub(crate) from: Option<PathBuf>,

    /// Compare the run of --from with this earlier run, row by row: which are better, which worse, and
    /// which the rounds do not tell. --json writes these. Exit code 12 if a row is worse
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with_all = ["report", "with_fio", "explain", "details"])]
    pub(crate) against: Option<PathBuf>,

    /// Measure nothing; write the cases that fio can measure as a fio job file, to stdout if FILE
    /// is -. They read --file, or nowait-fio.data in DIR, which fio makes and leaves
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "json", "report", "with_fio"])]
    pub(crate) emit_fio: Option<PathBuf>,

    /// Show fio's results (--output-format=json) of such a job file beside the rows of the same
    /// cases. Given several times, each is a round
    #[arg(long, value_name = "FILE")]
    pub(crate) with_fio: Vec<PathBuf>,

    /// Explain a note's CODE and what to do; without a CODE, explain all notes after the run
    #[arg(long, value_name = "CODE", num_args = 0..=1, value_parser = PossibleValuesParser::new(Code::ALL.iter().map(|code| code.name())))]
    pub(crate) explain: Option<Option<String>>,

    /// Also show latency, CPU, context switches and punts of every way in every case
    #[arg(long)]
    pub(crate) details: bool,

    /// Without a table: print all that the run measured, not one screen of it
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Seed of an earlier run, to repeat its offsets
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CopyKind {
    /// A large file, its bytes moved
    Big,
    /// The same, past the page cache where a command can
    BigNeutral,
    /// Small files, with their metadata where a command keeps it
    Tree,
    /// A large file, its blocks shared
    Reflink,
}

impl CopyKind {
    pub(crate) fn copied(self) -> Copied {
        match self {
            Self::Big => Copied::Big,
            Self::BigNeutral => Copied::BigNeutral,
            Self::Tree => Copied::Tree,
            Self::Reflink => Copied::Reflink,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BesideName {
    /// Reads alone
    Nobody,
    /// A task that writes a file, 32 MB/s through the page cache
    Writes,
    /// A task that appends to a durable log
    Log,
    /// Other processes that keep all processors busy
    Cpu,
    /// Another process that reads from the same disk, four times 128 KiB at once
    Tenant,
}

impl BesideName {
    pub(crate) fn beside(self) -> Beside {
        match self {
            Self::Nobody => Beside::Nobody,
            Self::Writes => Beside::Writes,
            Self::Log => Beside::Log,
            Self::Cpu => Beside::Cpu,
            Self::Tenant => Beside::Tenant,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LoadName {
    /// Cold reads of 4 KiB
    Reads,
    /// Gathers of 64 cold records of 4 KiB
    Gather,
    /// Durable appends of 100 bytes
    Log,
}

impl LoadName {
    pub(crate) fn arriving(self) -> Arriving {
        match self {
            Self::Reads => Arriving::Reads,
            Self::Gather => Arriving::Gather,
            Self::Log => Arriving::Log,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogKind {
    /// Threads, each of which waits for its record
    Threads,
    /// Threads with several records in flight, each waiting for its oldest
    Pipelined,
    /// Tasks of tokio on two workers
    Tokio,
}

impl LogKind {
    pub(crate) fn logged(self) -> Logged {
        match self {
            Self::Threads => Logged::Threads,
            Self::Pipelined => Logged::Pipelined,
            Self::Tokio => Logged::Tokio,
        }
    }
}

/// Names most tables.
pub(crate) const TOUR: &str = "tour";

/// The tables with their lines of help.
fn table_names() -> PossibleValuesParser {
    let tables = table::to_ask_for().map(|table| PossibleValue::new(table.name).help(table.about));
    PossibleValuesParser::new(tables.chain([PossibleValue::new(TOUR).help("Most of these tables, shortened")]))
}

/// Parses the size of a test file.
fn parse_size(text: &str) -> Result<u64, String> {
    let smallest = SMALLEST;
    match parse_bytes(text)? {
        size if size > i64::MAX as u64 => Err("too large for a file".to_owned()),
        size if size < smallest => Err(format!("too small: at least {} MiB are needed", smallest >> 20)),
        size => Ok(size),
    }
}

/// Parses a block size that direct I/O can take.
fn parse_block(text: &str) -> Result<usize, String> {
    let (sector, most) = (scan::SECTOR, scan::BLOCK_MAX);
    match usize::try_from(parse_bytes(text)?) {
        Ok(block) if block > 0 && block % sector == 0 && block <= most => Ok(block),
        _ => Err(format!("not a multiple of {sector} bytes, or more than {} MiB", most >> 20)),
    }
}

/// Parses the size of a record, which carries its number and lies in memory once for each writer.
fn parse_record(text: &str) -> Result<usize, String> {
    let (least, most) = (Records::SMALLEST, log::SIZE_MAX);
    match usize::try_from(parse_bytes(text)?) {
        Ok(size) if (least..=most).contains(&size) => Ok(size),
        _ => Err(format!("less than {least} bytes, or more than {} MiB", most >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("2M"), Ok(2 << 20));
        assert_eq!(parse_size("1gib"), Ok(1 << 30));
        assert_eq!(parse_size("1048576"), Ok(1 << 20));
        for wrong in ["", "M", "12X", "-1M", "1.5G", "64K", "99999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_block("16K"), parse_block("512"), parse_block("64M")), (Ok(16 << 10), Ok(512), Ok(64 << 20)));
        for wrong in ["", "0", "1000", "-512", "65M", "16T"] {
            assert!(parse_block(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_record("16"), parse_record("4K"), parse_record("1M")), (Ok(16), Ok(4096), Ok(1 << 20)));
        for wrong in ["", "0", "15", "2M", "16T"] {
            assert!(parse_record(wrong).is_err(), "{wrong}");
        }
    }
}
