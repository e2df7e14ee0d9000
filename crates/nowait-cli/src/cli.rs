//! The command line: subcommands, options and exit codes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use nowait_probe::Case;

/// Exit codes of all subcommands except `copy` and `bench`, which have their own.
const EXIT_CODES: [(u8, &str); 12] = [
    (0, "done"),
    (1, "another error"),
    (2, "wrong usage"),
    (3, "no space on the disk"),
    (4, "permission denied, for the directory or the file"),
    (5, "no such file, directory or log"),
    (7, "the log is damaged"),
    (8, "the log is open for writing in another process"),
    (9, "an operation is not served as --require asks, or could not be observed"),
    (10, "io_uring is refused"),
    (11, "the behaviour of io_uring cannot be observed"),
    (130, "interrupted"),
];

/// Lists the exit codes of a subcommand: the common ones (0, 1, 2, 4 and 5) and its own.
fn exit_codes(own: &[u8]) -> String {
    let is_listed = |(code, _): &&(u8, &str)| [0, 1, 2, 4, 5].contains(code) || own.contains(code);
    let line = |(code, meaning): &(u8, &str)| format!("\n  {code:<4} {meaning}");
    EXIT_CODES.iter().filter(is_listed).map(line).fold("Exit codes:".to_owned(), |text, line| text + &line)
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

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
            nowait::ErrorKind::NotFound | nowait::ErrorKind::NotADirectory | nowait::ErrorKind::NotSeekable => 5,
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

/// Measure and inspect file I/O, copy files, and maintain durable logs.
#[derive(Debug, Parser)]
#[command(name = "nowait", version = env!("NOWAIT_VERSION"), after_help = "`nowait COMMAND --help` lists the exit codes.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    // No doc comment here: it would replace the longer ones below.
    #[cfg(feature = "bench")]
    Bench(Box<nowait_bench::command::Bench>),
    Probe(Probe),
    Copy(Box<crate::copy::Copy>),
    /// Inspect, repair or torture a durable log
    #[command(subcommand, after_help = "To measure: nowait bench log. Exit codes: nowait log SUBCOMMAND --help.")]
    Log(Log),
    /// Print completions for a shell
    #[command(after_help = "For bash: nowait completions bash > ~/.local/share/bash-completion/completions/nowait")]
    Completions {
        /// Shell that reads the completions
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all subcommands into a directory
    Man {
        /// Directory for the pages, for example ~/.local/share/man/man1
        dir: PathBuf,
    },
}

/// Returns the command line with the usage and options of each subcommand before its long text.
pub(crate) fn command() -> clap::Command {
    fn usage_first(mut command: clap::Command) -> clap::Command {
        let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
        for name in names {
            command = command.mut_subcommand(name, usage_first);
        }
        let Some(long) = command.get_long_about().map(ToString::to_string) else { return command };
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let rest = long.split_once("\n\n").map_or("", |(_, rest)| rest).trim_end();
        command.long_about(None::<&str>).after_long_help(format!("{rest}\n\n{after}").trim().to_owned())
    }
    usage_first(Cli::command())
}

/// Parses the arguments of this process; ends it if they are wrong, or ask for help.
pub(crate) fn parse() -> Command {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(copy) = copy_alone(&arguments) {
        return Command::Copy(copy);
    }
    let matches = command().get_matches_from(arguments);
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command
}

/// Parses a correct `nowait copy` without the other subcommands: to declare them takes as long as to
/// share the blocks of a file.
fn copy_alone(arguments: &[OsString]) -> Option<Box<crate::copy::Copy>> {
    arguments.get(1).filter(|name| *name == "copy")?;
    let copy = crate::copy::Copy::augment_args(clap::Command::new("copy"));
    let matches = clap::Command::new("nowait").subcommand(copy).try_get_matches_from(arguments).ok()?;
    crate::copy::Copy::from_arg_matches(matches.subcommand()?.1).ok().map(Box::new)
}

/// Ends this process: a subcommand lacks an argument that its declaration cannot require.
pub(crate) fn end_without(subcommand: &str, argument: &str) -> ! {
    let mut command = command();
    command.build();
    let text = format!("the following required arguments were not provided:\n  {argument}");
    let subcommand = command.find_subcommand_mut(subcommand).unwrap_or_else(|| unreachable!("{subcommand}"));
    subcommand.error(clap::error::ErrorKind::MissingRequiredArgument, text).exit()
}

/// Writes the manual pages, one for each subcommand: `nowait-copy.1` and so on.
pub(crate) fn write_manual(dir: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command().disable_help_subcommand(true), dir))
        .map_err(|error| manual_failure(&error, dir))
}

fn manual_failure(error: &std::io::Error, path: &std::path::Path) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => 3,
        std::io::ErrorKind::PermissionDenied => 4,
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => 5,
        _ => 1,
    };
    Failure { code, message: format!("write the manual pages into {}: {error}", path.display()) }
}

/// Show how io_uring serves file requests: which complete at submission, which complete later, and
/// which go to a kernel worker.
///
/// In a directory, the command probes scratch files. For a file, it probes scratch files beside it
/// with the same attributes, and reads of the file. For a block device, it probes reads. Scratch
/// files have no name and disappear at the end. The command never writes to the file, and keeps its
/// pages in the page cache unless --evict is given.
///
/// The command then makes the same requests through this library. The column `nowait` shows the
/// engine that served them, according to its counters.
///
/// The table shows requests of 4 KiB, one at a time. The command also submits 32, 256 and 1024 of
/// them together, and 1 and 32 requests of 128 KiB and 1 MiB. The report says where these requests
/// change the verdict. They need 33 MiB of disk and memory; --shallow skips them.
///
/// As root, with tracefs mounted, the command compares each request with the kernel's tracepoints.
/// Otherwise the report marks its verdicts as unconfirmed.
#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[9, 10, 11]))]
pub(crate) struct Probe {
    /// Files, directories and block devices
    #[arg(value_name = "PATH", required_unless_present = "pid")]
    pub paths: Vec<PathBuf>,

    /// Number of requests of each kind, one at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub requests: u32,

    /// Exit with code 9 if most requests of these kinds go to a kernel worker or sleep in their
    /// submission
    #[arg(long, value_delimiter = ',', value_name = "KIND", value_parser = PossibleValuesParser::new(case_names()))]
    pub require: Vec<String>,

    /// Drop the file's pages from the page cache, so that reads are cold
    #[arg(long)]
    pub evict: bool,

    /// Make only requests of 4 KiB, one at a time
    #[arg(long)]
    pub shallow: bool,

    /// Explain the columns and the reasons
    #[arg(long)]
    pub explain: bool,

    /// Write the result as JSON: a list with an object for each PATH
    #[arg(long)]
    pub json: bool,

    /// Watch the kernel workers of this process instead
    #[arg(long, value_name = "N", conflicts_with_all = ["paths", "requests", "require", "evict", "shallow"])]
    pub pid: Option<u32>,

    /// Seconds to watch
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "paths", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
}

/// Returns the names of the cases for --require: all except the control.
fn case_names() -> Vec<&'static str> {
    Case::ALL.into_iter().filter(|case| *case != Case::ForcedRead).map(Case::name).collect()
}

// A variant without a doc comment shows that of its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Log {
    /// Check that a log is complete; changes nothing
    Verify(LogDir),
    /// Show the contents of a log and how it is written; changes nothing
    Stat(LogDir),
    /// Print the records of a log, including those after damage; changes nothing
    Dump(Dump),
    Tail(Tail),
    Repair(Repair),
    Backup(Backup),
    Truncate(Truncate),
    /// Repeatedly kill a process that writes a log, and check that every acknowledged record exists
    Torture(Torture),
    /// Process that `torture` kills: appends records, and prints which are durable
    #[command(hide = true)]
    TortureWriter(TortureWriter),
}

#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[7]))]
pub(crate) struct LogDir {
    /// The log's directory
    pub dir: PathBuf,

    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[7]))]
pub(crate) struct Dump {
    /// The log's directory
    pub dir: PathBuf,

    /// First record to print [default: the oldest]
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,

    /// Print at most this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Print the intact records in files that a repair put aside, instead of the log
    #[arg(long, conflicts_with = "from")]
    pub aside: bool,

    /// Print only the records' raw bytes
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,

    /// Print a line of JSON for each record, its bytes in hexadecimal
    #[arg(long)]
    pub json: bool,
}

/// Print the last records of a log, and new ones with --follow; changes nothing.
///
/// Each line contains the number, the length and the first bytes of a record, the oldest record
/// first.
///
/// With --follow, the command also prints new records as a process appends them, until it is
/// interrupted (exit code 130). It polls the end of the newest segment every millisecond. While the
/// log is idle, the interval grows to 100 ms.
///
/// The command prints only records that it knows to be durable: a later block of the log confirms
/// them. If no such block follows within 100 ms, the command syncs the segment itself. If the log
/// drops records before they are read, or its end is cut off, the command reports this on stderr.
/// It then continues with the records that follow.
///
/// If durable records cannot be read, the command names them on stderr, and the exit code is 7. The
/// command then ends at once, or with --skip-damage after the last record. With --follow, the
/// command ends with exit code 5 if the directory is removed, renamed or replaced by another log.
#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[7, 130]))]
pub(crate) struct Tail {
    /// The log's directory
    pub dir: PathBuf,

    /// Wait for new records, and print them
    #[arg(short, long)]
    pub follow: bool,

    /// Begin with the last N records: before the damage, or with --skip-damage before the end of the log
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 10)]
    pub count: u64,

    /// Also print the intact records after damage
    #[arg(long)]
    pub skip_damage: bool,

    /// Print a line of JSON for each record, its bytes in hexadecimal
    #[arg(long)]
    pub json: bool,
}

/// Cut a damaged log off at the damage.
///
/// Everything after the damage, including intact records, is moved to files that end in .damaged.
#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[3, 8]))]
pub(crate) struct Repair {
    /// The log's directory
    pub dir: PathBuf,

    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Copy a log, even while a process writes it.
///
/// The copy is a complete log. It contains every record that was durable at the start, except those
/// that the log drops meanwhile. The command reads and verifies the copy before renaming it to
/// DEST. An interrupted backup leaves a directory beside DEST whose name ends in .partial. If the
/// file system supports it, the copy shares blocks with the log. A damaged log is not copied (exit
/// code 7).
#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[3, 7]))]
pub(crate) struct Backup {
    /// The log's directory
    pub dir: PathBuf,

    /// Directory for the copy, which must be missing or empty
    pub dest: PathBuf,

    /// Print the contents of the copy as JSON
    #[arg(long)]
    pub json: bool,
}

/// Remove the oldest records of a closed log; works on a full disk.
///
/// The command needs no free space, so that a log that has filled its disk can be opened again. It
/// removes only whole segments: some records before LSN may stay, and the last segment with records
/// always stays. An LSN greater than that of the next record is refused.
#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[7, 8]))]
pub(crate) struct Truncate {
    /// The log's directory
    pub dir: PathBuf,

    /// First record that is still needed
    #[arg(long, value_name = "LSN")]
    pub before: u64,
}

#[derive(Debug, Args)]
#[command(after_help = exit_codes(&[3, 7, 130]))]
pub(crate) struct Torture {
    /// Directory in which the log is created; it is removed at the end if no check failed
    #[arg(default_value = ".")]
    pub dir: PathBuf,

    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub kills: u32,

    /// Number of threads that append
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

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_copy_parsed_alone_is_the_same() {
        for line in [
            "nowait copy a b",
            "nowait copy --reflink=always --sync file -L a b c",
            "nowait copy -u -P -u=none --json -- -a b",
            "nowait copy --bwlimit 20M a b --bwlimit 1M",
            "nowait copy --reflink a b",
            "nowait copy --progress --reflink=auto a b --reflink",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let whole = Cli::from_arg_matches(&command().get_matches_from(&words)).unwrap().command;
            assert_eq!(format!("{:?}", Command::Copy(copy_alone(&words).unwrap())), format!("{whole:?}"), "{line}");
        }
        for line in ["nowait", "nowait copy", "nowait copy --help", "nowait copy --never a b", "nowait log verify copy"]
        {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(copy_alone(&words).is_none(), "{line}");
        }
    }

    /// Checks each subcommand, and their subcommands.
    #[test]
    fn help_begins_with_the_usage_and_ends_with_exit_codes() {
        fn check(command: &mut clap::Command) {
            if command.has_subcommands() {
                command
                    .get_subcommands_mut()
                    .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
                    .for_each(check);
                return;
            }
            let help = command.render_long_help().to_string();
            let lines: Vec<&str> = help.lines().collect();
            let usage = lines.iter().position(|line| line.starts_with("Usage:")).unwrap();
            assert!(usage <= 4, "{help}");
            if !["completions", "man", "help"].contains(&command.get_name()) {
                let codes = lines.iter().position(|line| line.starts_with("Exit codes:")).unwrap();
                assert!(lines[codes + 1..].iter().all(|line| line.starts_with("  ")), "{help}");
            }
        }
        let mut command = command();
        command.build();
        check(&mut command);
    }
}
