//! The command line: what can be asked, and what the exit code means.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use nowait_probe::Case;

const EXIT_CODES: &str = "\
Exit codes (`copy` has its own: see `nowait copy --help`):
  0    done
  1    another error
  2    wrong usage
  3    no room on the disk
  4    permission denied, for the directory or the file
  5    the file cannot be measured (missing, a directory, too small); no such directory, or no log
  6    the file cannot be made cold; nothing cold was measured
  7    a log is damaged
  8    a log is open for writing in another process
  9    an operation is not served as `probe --require` asks, or could not be observed
  10   io_uring is refused (`probe`)
  11   what io_uring does cannot be observed (`probe`)
  12   a row is worse than in the other run (`bench --against`)
  130  interrupted";

/// Last message of the command, and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: u8,
    pub message: String,
}

#[cfg(feature = "bench")]
impl From<nowait_bench::Error> for Failure {
    fn from(error: nowait_bench::Error) -> Self {
        Self { code: error.kind().exit_code(), message: error.to_string() }
    }
}

impl From<nowait::Error> for Failure {
    fn from(error: nowait::Error) -> Self {
        let code = match error.kind() {
            nowait::ErrorKind::InvalidInput | nowait::ErrorKind::NoSuchRecord => 2,
            nowait::ErrorKind::NoSpace => 3,
            nowait::ErrorKind::PermissionDenied | nowait::ErrorKind::ReadOnlyFilesystem => 4,
            nowait::ErrorKind::NotFound | nowait::ErrorKind::NotSeekable => 5,
            nowait::ErrorKind::Damaged => 7,
            nowait::ErrorKind::Locked => 8,
            _ => 1,
        };
        Self { code, message: error.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: 1, message: error.to_string() }
    }
}

/// Non-blocking file I/O: measure it, look into it, copy files by it.
#[derive(Debug, Parser)]
#[command(name = "nowait", version = env!("NOWAIT_VERSION"), after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    // Without words of its own here: they would take the place of the longer ones below.
    #[cfg(feature = "bench")]
    Bench(Box<nowait_bench::command::Bench>),
    Probe(Probe),
    Copy(Box<crate::copy::Copy>),
    /// Inspect, repair or torture a durable log
    #[command(subcommand)]
    Log(Log),
}

/// Show how files are served here: which requests io_uring completes at submission, which later,
/// and which it punts to a kernel worker.
///
/// For a directory it probes scratch files in it; for a file, scratch files beside it with its
/// attributes, and reads of the file; for a block device, reads of it. Scratch files have no name
/// and leave nothing behind. The file is never written to, and its pages stay in the page cache
/// without --evict.
///
/// The same requests are then made through this library; the column `nowait` shows where its
/// counters say they went.
///
/// The table has requests of 4 KiB, one at a time. They are also submitted 32, 256 and 1024
/// together, and at 1 and 32 of 128 KiB and 1 MiB; the report says where that changes the verdict.
/// This takes 33 MiB of the disk and of memory; --shallow leaves it out.
///
/// As root, with tracefs mounted, each request is compared with the kernel's tracepoints; otherwise
/// verdicts are called unconfirmed.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Probe {
    /// Files, directories and block devices
    #[arg(value_name = "PATH", required_unless_present = "pid")]
    pub paths: Vec<PathBuf>,

    /// Number of requests of each kind, one at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub requests: u32,

    /// Exit with 9 if most requests of these kinds are punted to a kernel worker or sleep in
    /// submission
    #[arg(long, value_delimiter = ',', value_name = "KIND", value_parser = PossibleValuesParser::new(case_names()))]
    pub require: Vec<String>,

    /// Drop the file's pages from the page cache, so that it is read cold
    #[arg(long)]
    pub evict: bool,

    /// Make requests one at a time only, of 4 KiB
    #[arg(long)]
    pub shallow: bool,

    /// Explain the columns and the reasons
    #[arg(long)]
    pub explain: bool,

    /// Write the findings as JSON: a list with an object for each PATH
    #[arg(long)]
    pub json: bool,

    /// Watch the kernel workers of this process instead
    #[arg(long, value_name = "N", conflicts_with_all = ["paths", "requests", "require", "evict", "shallow"])]
    pub pid: Option<u32>,

    /// Seconds to watch
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "paths", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
}

/// Names of requirable cases: all but the control.
fn case_names() -> Vec<&'static str> {
    Case::ALL.into_iter().filter(|case| *case != Case::ForcedRead).map(Case::name).collect()
}

#[derive(Debug, Subcommand)]
#[command(after_help = EXIT_CODES)]
pub(crate) enum Log {
    /// Check that a log is complete; changes nothing
    Verify(LogDir),
    /// Show how a log is written and what it holds; changes nothing
    Stat(LogDir),
    /// Print the records of a log, those behind damage included; changes nothing
    Dump(Dump),
    /// Print the last records of a log, and new ones with --follow; changes nothing
    Tail(Tail),
    /// Make a damaged log continue after the last record before the damage. Everything after it,
    /// whole records included, is put aside in files that end in .damaged
    Repair(Repair),
    /// Copy a log while a process writes it
    Backup(Backup),
    /// Remove the oldest records of a log that no process has open; works on a full disk
    Truncate(Truncate),
    /// Kill a process that writes a log, again and again, and check that every acknowledged record
    /// is there
    Torture(Torture),
    /// The process that `torture` kills: appends, and prints what is durable
    #[command(hide = true)]
    TortureWriter(TortureWriter),
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct LogDir {
    /// The log's directory
    pub dir: PathBuf,

    /// Write the findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Dump {
    /// The log's directory
    pub dir: PathBuf,

    /// First record to print [default: the oldest]
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,

    /// Print at most this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Print the whole records in files that a repair has put aside, instead of the log
    #[arg(long, conflicts_with = "from")]
    pub aside: bool,

    /// Print only the records' raw bytes
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,

    /// Print a line of JSON for each record, its bytes in hexadecimal
    #[arg(long)]
    pub json: bool,
}

/// Print the last records of a log, oldest first, a line for each: its number, its length and the
/// beginning of its bytes.
///
/// With --follow it goes on with the records that a process appends, in this one's or any other, until
/// it is interrupted (exit code 130). It looks at the end of the newest segment again, after 1 ms at
/// first and up to 100 ms while nothing comes, and reads what is new.
///
/// A record is printed when it is known to be durable: a later block of the log says so, or nothing
/// has for 100 ms and the segment was synced from here. When records were given up before they were
/// read, or the end of the log was cut off, stderr says so, and the records that follow are printed.
///
/// If durable records cannot be read, stderr names them, and the exit code is 7. The command then
/// ends at once, or with --skip-damage after the last record. With --follow it ends with exit code
/// 5 when the directory is removed, renamed or replaced by another log.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Tail {
    /// The log's directory
    pub dir: PathBuf,

    /// Go on with the records to come
    #[arg(short, long)]
    pub follow: bool,

    /// Begin with the last N records
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 10)]
    pub count: u64,

    /// Also print the intact records behind damage
    #[arg(long)]
    pub skip_damage: bool,

    /// Print a line of JSON for each record, its bytes in hexadecimal
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Repair {
    /// The log's directory
    pub dir: PathBuf,

    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Copy a log, even while a process writes it.
///
/// The copy is a complete log. It contains every record that was durable at the start and was not
/// given up meanwhile. It is read and verified before it gets its name. An interrupted backup
/// leaves a directory beside DEST whose name ends in .partial. Where the file system can, the copy
/// shares blocks with the log. A damaged log is not copied (exit code 7).
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Backup {
    /// The log's directory
    pub dir: PathBuf,

    /// The copy: a directory that does not exist, or is empty
    pub dest: PathBuf,

    /// Print the contents of the copy as JSON
    #[arg(long)]
    pub json: bool,
}

/// Remove the oldest records of a log that no process has open.
///
/// This removes whole segments: some records before LSN may stay, and the last segment with records
/// always stays. It needs no free space, so that a log that has filled its disk can be opened
/// again.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Truncate {
    /// The log's directory
    pub dir: PathBuf,

    /// First record that is still needed
    #[arg(long, value_name = "LSN")]
    pub before: u64,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Torture {
    /// Directory for the log; removed at the end if nothing is wrong
    #[arg(default_value = ".")]
    pub dir: PathBuf,

    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub kills: u32,

    /// Threads that append
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub writers: u32,

    /// Seed of an earlier run, to repeat its kills
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct TortureWriter {
    pub dir: PathBuf,
    pub writers: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
