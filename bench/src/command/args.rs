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
  3    no space on the disk
  4    permission denied, for the directory or the file
  5    the file cannot be measured (missing, a directory, too small), or no such directory
  6    no case was measured: all of them are cold, and the file cannot be evicted from the page cache,
       or this system refuses all ways
  12   with --against: a row is worse
  130  interrupted";

/// Compare the ways of reading and writing files on this disk, file system and kernel.
///
/// All ways read the same file at the same random offsets, in interleaved rounds; the figures are
/// medians. Before a cold round, the command verifies that no page is cached. The run creates a
/// test file and leaves nothing behind.
///
/// The tables `writes` and `stall` append 4 KiB at a time, through the page cache, to a new file
/// for each round. If you name `stall` as root, without --quick, it lowers vm.dirty_bytes to 128
/// MiB for the whole system while it runs. It restores the value at the end, also after Ctrl-C, but
/// not after SIGKILL.
///
/// In the table `log`, up to 64 threads append small records and wait until each is on stable
/// storage. Each round writes to a new file of up to 1 GiB, which was filled with zeros. --logs
/// selects other workloads: a few threads with up to 32 records in flight each, or 64 and 256 tasks
/// on tokio. `--logs threads` takes five minutes, all workloads about twenty. With --quick, only
/// `threads` runs, unless --logs names others.
///
/// The table `scan` reads the cold test file in order, or every fourth block, with the kernel's
/// read-ahead.
///
/// The table `files` opens, reads and closes 100000 files of 4 to 16 KiB (3000 with --quick), in a
/// temporary directory in DIR. As root, and without --quick, the table drops the machine's inode and
/// page caches before each cold round.
///
/// In the table `mixed`, tasks on one runtime read 4 KiB at a time, mostly cached, beside a
/// heartbeat of 1 ms on the same runtime. The runtime is tokio, or threads that run
/// `nowait::block_on`. Another thread wakes the heartbeat, as an arriving request would. The whole
/// table takes about ten minutes.
///
/// In the table `load`, requests arrive at random times (Poisson). They are cold reads of 4 KiB,
/// gathers of 64 such reads, and durable appends of 100 bytes. The rate doubles until no way keeps
/// up. With --quick, it quadruples, and only reads arrive. Latency counts from the arrival.
/// At most 64 requests are in flight; others wait. A way that completes less than 0.95 of the
/// offered rate has no rows at higher rates. The whole table takes about ten minutes.
///
/// The table `cache` compares the page cache of the crate nowait-cache with the kernel's and with
/// maps: reads of cached pages, of sets of 16 MiB and of the test file (with --quick, only 16 MiB);
/// pages that are not cached; and the hit rates of traces. Each of these three parts takes two
/// minutes.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Bench {
    /// Tables to measure; `tour` measures most tables, shortened to minutes. The default is six
    /// cases of reads, writes and durable appends on one screen, in less than a minute. With
    /// --quick, --file, --direct or --ways, the default is the tables reads, cached and gather, if
    /// they support the option
    #[arg(value_parser = table_names())]
    pub(crate) tables: Vec<String>,

    #[command(flatten)]
    pub(crate) asked: Options,

    /// Seconds for a run without a table, at least 5 [default: 42]
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["tables", "rounds"], value_parser = seconds)]
    pub(crate) time: Option<u32>,

    /// Write all figures to FILE, or to stdout if FILE is - (the tables then go to stderr). After
    /// an interrupt or error, FILE contains the completed measurements, and the reason in its field
    /// `partial`
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a self-contained HTML page with charts, tables, environment and notes to FILE, or to
    /// stdout if FILE is -
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Show the --json file of an earlier run; measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tables", "time", "Options"])]
    pub(crate) from: Option<PathBuf>,

    /// Compare the run of --from with this earlier run. Each row is better, worse or uncertain;
    /// --json writes the comparison. The exit code is 12 if a row is worse
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with_all = ["report", "explain", "verbose"])]
    pub(crate) against: Option<PathBuf>,

    /// Explain the note CODE and what to do about it; without CODE, explain all notes after the run
    #[arg(long, value_name = "CODE", num_args = 0..=1, value_parser = PossibleValuesParser::new(Code::ALL.iter().map(|code| code.name())))]
    pub(crate) explain: Option<Option<String>>,

    /// Also print latency, CPU time, context switches and requests handed to kernel workers (punts)
    /// of every way in every case. Without a table, print all figures instead of one screen
    #[arg(long, short, visible_alias = "details")]
    pub(crate) verbose: bool,
}

/// Limits of --time. Below the minimum, even a fast disk is too slow for the rounds of every case.
const TIME_MIN: u32 = 5;
pub(super) const TIME_MAX: u32 = 86_400;

fn seconds(text: &str) -> Result<u32, String> {
    let seconds = text.parse().ok().filter(|seconds| (TIME_MIN..=TIME_MAX).contains(seconds));
    seconds
        .ok_or_else(|| format!("give whole seconds without a unit, from {TIME_MIN} to {TIME_MAX}, such as --time 60"))
}

/// Name that selects most tables.
pub(crate) const TOUR: &str = "tour";

/// Returns the names of the tables with their help texts.
fn table_names() -> PossibleValuesParser {
    let tables = table::to_ask_for().map(|table| PossibleValue::new(table.name).help(table.about));
    PossibleValuesParser::new(tables.chain([PossibleValue::new(TOUR).help("Most of these tables, shortened")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_whole_seconds_that_suffice() {
        assert_eq!(["5", "60", "86400"].map(seconds), [Ok(5), Ok(60), Ok(86_400)]);
        for wrong in ["0", "1", "4", "86401", "1m", "60s", "4.5", "-5", ""] {
            assert!(seconds(wrong).unwrap_err().ends_with("such as --time 60"), "{wrong}");
        }
    }
}
