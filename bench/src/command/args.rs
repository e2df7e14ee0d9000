//! Arguments of `nowait bench`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

use crate::measure::options::Options;
use crate::report::notes::Code;
use crate::table;

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

    #[command(flatten)]
    pub(crate) asked: Options,

    /// Seconds for a run without a table [default: 42]
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["tables", "rounds"], value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) time: Option<u32>,

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
    /// which are uncertain. --json writes these. Exit code 12 if a row is worse
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with_all = ["report", "explain", "verbose"])]
    pub(crate) against: Option<PathBuf>,

    /// Explain a note's CODE and what to do; without a CODE, explain all notes after the run
    #[arg(long, value_name = "CODE", num_args = 0..=1, value_parser = PossibleValuesParser::new(Code::ALL.iter().map(|code| code.name())))]
    pub(crate) explain: Option<Option<String>>,

    /// Also print latency, CPU, context switches and punts of every way in every case; without a table, all
    /// figures and not one screen of them
    #[arg(long, short, visible_alias = "details")]
    pub(crate) verbose: bool,
}

/// Names most tables.
pub(crate) const TOUR: &str = "tour";

/// The tables with their lines of help.
fn table_names() -> PossibleValuesParser {
    let tables = table::to_ask_for().map(|table| PossibleValue::new(table.name).help(table.about));
    PossibleValuesParser::new(tables.chain([PossibleValue::new(TOUR).help("Most of these tables, shortened")]))
}
