//! The commands that copy: this project's, those that everybody has, and those that call themselves
//! fast.
//!
//! The clock runs from the start of the process until its copy is on stable storage: commands end
//! with `fsync(2)`, or `syncfs(2)` of a tree, made for them. When the command itself had ended, is
//! told besides. Its processor time, its ring's workers included, is that of a process that this
//! one has started and seen end. What the kernel's own threads write back is nobody's: only the
//! machine's time has it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{ended, not_installed, tried};
use crate::measure::meter::Round;
use crate::measure::options::Copied;
use crate::measure::work::CopyJob;
use crate::ways::{CopyWay, Does, Way};

/// `nowait copy`, of the command that measures, or else of that in PATH.
pub(crate) struct Nowait;
pub(crate) struct Cp;
pub(crate) struct Dd;
pub(crate) struct Rsync;
pub(crate) struct Xcp;
/// `fcp` and `cpz`, which have no options that concern us.
pub(crate) struct Bare(&'static str);

pub(crate) static CP: Way =
    Way::new("cp", "the installed cp -a, with --reflink=never where bytes are to be moved", &[Does::Copies(&Cp)])
        .hue(7)
        .refused(|| {
            // Others than that of GNU do not know it, or do not say whether they do.
            succeeds(Command::new("cp").args(["--reflink=never", "--version"]), "this cp does not know --reflink")
        });

pub(crate) static DD: Way = Way::new(
    "dd",
    "the installed dd; in big-neutral past the page cache (iflag=direct, oflag=direct)",
    &[Does::Copies(&Dd)],
)
.hue(2)
.refused(|| not_installed(Command::new("dd").arg("--version")));

pub(crate) static RSYNC: Way = Way::new("rsync", "the installed rsync -aHAX --whole-file", &[Does::Copies(&Rsync)])
    .hue(0)
    .refused(|| not_installed(Command::new("rsync").arg("--version")));

pub(crate) static XCP: Way = Way::new("xcp", "the installed xcp", &[Does::Copies(&Xcp)])
    .hue(1)
    .refused(|| not_installed(Command::new("xcp").arg("--version")));

pub(crate) static FCP: Way = Way::new("fcp", "the installed fcp", &[Does::Copies(&Bare("fcp"))])
    .hue(3)
    .refused(|| not_installed(Command::new("fcp").arg("--version")));

pub(crate) static CPZ: Way = Way::new("cpz", "the installed cpz", &[Does::Copies(&Bare("cpz"))])
    .hue(4)
    .refused(|| not_installed(Command::new("cpz").arg("--version")));

fn nowait() -> PathBuf {
    let own = std::env::current_exe().ok().filter(|path| path.file_name().is_some_and(|name| name == "nowait"));
    own.unwrap_or_else(|| PathBuf::from("nowait"))
}

impl CopyWay for Nowait {
    fn refused(&self) -> Option<String> {
        succeeds(Command::new(nowait()).args(["copy", "--help"]), "this nowait has no command copy")
    }

    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new(nowait());
        command.arg("copy").args(match job.kind {
            Copied::Big => &["--reflink=never"][..],
            Copied::BigNeutral => &["--reflink=never", "--cache-neutral"],
            Copied::Tree => &[],
            Copied::Reflink => &["--reflink=always"],
        });
        command.args([job.from, job.to]);
        command
    }
}

impl CopyWay for Cp {
    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new("cp");
        command.arg("-a").args(match job.kind {
            Copied::Big | Copied::BigNeutral => &["--reflink=never"][..],
            Copied::Tree => &[],
            Copied::Reflink => &["--reflink=always"],
        });
        command.args([job.from, job.to]);
        command
    }
}

impl CopyWay for Dd {
    fn suits(&self, kind: Copied, _: bool) -> bool {
        matches!(kind, Copied::Big | Copied::BigNeutral)
    }

    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new("dd");
        command.args(["bs=1M", "status=none"]);
        if job.kind == Copied::BigNeutral {
            command.args(["iflag=direct", "oflag=direct"]);
        }
        for (name, path) in [("if=", job.from), ("of=", job.to)] {
            let mut argument = std::ffi::OsString::from(name);
            argument.push(path);
            command.arg(argument);
        }
        command
    }
}

impl CopyWay for Rsync {
    fn suits(&self, kind: Copied, _: bool) -> bool {
        matches!(kind, Copied::Big | Copied::BigNeutral | Copied::Tree)
    }

    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new("rsync");
        command.args(["-aHAX", "--whole-file"]);
        // With a slash at its end: what is in the folder, and not the folder.
        command.arg(if job.kind == Copied::Tree { job.from.join("") } else { job.from.to_owned() }).arg(job.to);
        command
    }
}

impl CopyWay for Xcp {
    /// Without clones only where none can be made: xcp says itself that the kernel may share blocks
    /// in spite of `--reflink=never`.
    fn suits(&self, kind: Copied, shares: bool) -> bool {
        kind == Copied::Tree || (kind == Copied::Reflink) == shares && kind != Copied::BigNeutral
    }

    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new("xcp");
        command.arg("--no-progress").args(match job.kind {
            Copied::Big | Copied::BigNeutral => &["--reflink=never"][..],
            Copied::Tree => &["-r", "--ownership"],
            Copied::Reflink => &["--reflink=always"],
        });
        command.args([job.from, job.to]);
        command
    }
}

impl CopyWay for Bare {
    /// Where blocks can be shared, the kernel shares them for it.
    fn suits(&self, kind: Copied, shares: bool) -> bool {
        kind == Copied::Tree || (kind == Copied::Reflink) == shares && kind != Copied::BigNeutral
    }

    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new(self.0);
        command.args([job.from, job.to]);
        command
    }
}

/// Runs a way's command to its end, or until the user wants to stop, on the clock, and has its copy
/// on stable storage. Returns when the command had ended.
pub(crate) fn copy(way: &dyn CopyWay, job: &CopyJob<'_>, round: &mut Round<'_>) -> io::Result<Duration> {
    let mut command = way.command(job);
    round.start();
    let started = Instant::now();
    ended(&mut command, job.cancel)?;
    let returned = started.elapsed();
    let copy = File::open(job.to)?;
    match job.kind {
        Copied::Tree => rustix::fs::syncfs(&copy)?,
        _ => copy.sync_all()?,
    }
    round.tally.moved_elsewhere(job.files, job.bytes);
    round.stop();
    Ok(returned)
}

fn succeeds(command: &mut Command, otherwise: &str) -> Option<String> {
    match tried(command) {
        Ok(status) if status.success() => None,
        Ok(_) => Some(otherwise.to_owned()),
        Err(why) => Some(why),
    }
}
