//! The commands that copy: this project's, those that everybody has, and those that call themselves
//! fast.
//!
//! The clock runs from the start of the process until its copy is on stable storage: commands end
//! with `fsync(2)`, or `syncfs(2)` of a tree, made for them. When the command itself had ended, is
//! told besides. Its processor time, its ring's workers included, is that of a process that this
//! one has started and seen end. What the kernel's own threads write back is nobody's: only the
//! machine's time has it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{ended, not_installed, tried};
use crate::measure::meter::Round;
use crate::measure::options::Copied;
use crate::measure::work::CopyJob;
use crate::ways::{CopyWay, Does, OURS, Way};

/// A command that copies by name.
pub(crate) struct Program {
    name: &'static str,
    /// Takes part in copies of this kind, where files can share blocks or not.
    suits: fn(Copied, bool) -> bool,
    options: fn(Copied) -> &'static [&'static str],
    operands: fn(&CopyJob<'_>) -> [OsString; 2],
}

const USUAL: Program =
    Program { name: "", suits: |_, _| true, options: |_| &[], operands: |job| [job.from.into(), job.to.into()] };

/// `nowait copy`, of the command that measures, or else of that in PATH.
pub(crate) static NOWAIT: Program = Program {
    name: OURS,
    options: |kind| match kind {
        Copied::Big => &["copy", "--reflink=never"],
        Copied::BigNeutral => &["copy", "--reflink=never", "--cache-neutral"],
        Copied::Tree => &["copy"],
        Copied::Reflink => &["copy", "--reflink=always"],
    },
    ..USUAL
};

static CP_PROGRAM: Program = Program {
    name: "cp",
    options: |kind| match kind {
        Copied::Big | Copied::BigNeutral => &["-a", "--reflink=never"],
        Copied::Tree => &["-a"],
        Copied::Reflink => &["-a", "--reflink=always"],
    },
    ..USUAL
};

static DD_PROGRAM: Program = Program {
    name: "dd",
    suits: |kind, _| matches!(kind, Copied::Big | Copied::BigNeutral),
    options: |kind| match kind {
        Copied::BigNeutral => &["bs=1M", "status=none", "iflag=direct", "oflag=direct"],
        _ => &["bs=1M", "status=none"],
    },
    operands: |job| {
        let named = |name: &str, path: &Path| [OsStr::new(name), path.as_os_str()].into_iter().collect();
        [named("if=", job.from), named("of=", job.to)]
    },
};

static RSYNC_PROGRAM: Program = Program {
    name: "rsync",
    suits: |kind, _| kind != Copied::Reflink,
    options: |_| &["-aHAX", "--whole-file"],
    // With a slash at its end: what is in the folder, and not the folder.
    operands: |job| {
        let from = if job.kind == Copied::Tree { job.from.join("") } else { job.from.into() };
        [from.into(), job.to.into()]
    },
};

/// Without clones only where none can be made: xcp says itself that the kernel may share blocks in
/// spite of `--reflink=never`, and for `fcp` and `cpz`, which have no options, it does.
const SHARING: Program = Program {
    suits: |kind, shares| kind == Copied::Tree || (kind == Copied::Reflink) == shares && kind != Copied::BigNeutral,
    ..USUAL
};

static XCP_PROGRAM: Program = Program {
    name: "xcp",
    options: |kind| match kind {
        Copied::Big | Copied::BigNeutral => &["--no-progress", "--reflink=never"],
        Copied::Tree => &["--no-progress", "-r", "--ownership"],
        Copied::Reflink => &["--no-progress", "--reflink=always"],
    },
    ..SHARING
};

pub(crate) static CP: Way = Way::new(
    "cp",
    "the installed cp -a, with --reflink=never where bytes are to be moved",
    &[Does::Copies(&CP_PROGRAM)],
)
.hue(7)
.refused(|| {
    // Others than that of GNU do not know it, or do not say whether they do.
    succeeds(Command::new("cp").args(["--reflink=never", "--version"]), "this cp does not know --reflink")
});

pub(crate) static DD: Way = Way::new(
    "dd",
    "the installed dd; in big-neutral past the page cache (iflag=direct, oflag=direct)",
    &[Does::Copies(&DD_PROGRAM)],
)
.hue(2)
.refused(|| not_installed("dd"));

pub(crate) static RSYNC: Way =
    Way::new("rsync", "the installed rsync -aHAX --whole-file", &[Does::Copies(&RSYNC_PROGRAM)])
        .hue(0)
        .refused(|| not_installed("rsync"));

pub(crate) static XCP: Way =
    Way::new("xcp", "the installed xcp", &[Does::Copies(&XCP_PROGRAM)]).hue(1).refused(|| not_installed("xcp"));

pub(crate) static FCP: Way = Way::new("fcp", "the installed fcp", &[Does::Copies(&Program { name: "fcp", ..SHARING })])
    .hue(3)
    .refused(|| not_installed("fcp"));

pub(crate) static CPZ: Way = Way::new("cpz", "the installed cpz", &[Does::Copies(&Program { name: "cpz", ..SHARING })])
    .hue(4)
    .refused(|| not_installed("cpz"));

impl Program {
    fn path(&self) -> PathBuf {
        let own = std::env::current_exe().ok();
        let own = own.filter(|path| path.file_name().is_some_and(|name| name == OURS && self.name == OURS));
        own.unwrap_or_else(|| PathBuf::from(self.name))
    }
}

impl CopyWay for Program {
    fn refused(&self) -> Option<String> {
        if self.name != OURS {
            return None;
        }
        succeeds(Command::new(self.path()).args(["copy", "--help"]), "this nowait has no command copy")
    }

    fn suits(&self, kind: Copied, shares: bool) -> bool {
        (self.suits)(kind, shares)
    }

    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new(self.path());
        command.args((self.options)(job.kind)).args((self.operands)(job));
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
