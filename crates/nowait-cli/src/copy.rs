//! `nowait copy`: runs a copy, and reports its progress and result.

mod args;
mod progress;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nowait_copy::{Event, Failure, FailureKind, Operation, Report, Started};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, Value, json};

use crate::show::{complain, counted};
use crate::{cli, interrupt};
pub(crate) use args::Copy;
use args::USAGE;

/// Warnings, or refused clones, of one operation and kind that are printed; the rest are counted.
const SIMILAR_SHOWN: u32 = 20;

/// Exit codes, beside [`USAGE`].
const SOME: u8 = 1;
const NOTHING: u8 = 3;
const DIFFERS: u8 = 5;
const INTERRUPTED: u8 = 130;

pub(crate) fn run(args: &Copy) -> Result<(), cli::Failure> {
    let (sources, target) = args.places()?;
    allow_many_files();
    let tell = Arc::new(Teller {
        explains: args.explain,
        is_json: args.json,
        filters: !args.exclude.is_empty(),
        counts: Mutex::default(),
        unprinted: Mutex::default(),
    });
    let shows = match args.progress {
        args::Progress::Auto => !args.json && !args.explain && io::stderr().is_terminal(),
        args::Progress::Always => true,
        args::Progress::Never => false,
    };
    let teller = tell.clone();
    let options = args.options().count_first(shows).on_event(move |event| teller.event(event));
    // Without handlers a signal kills the command, which leaves no partial file under its final name.
    let options = options.cancel_flag(interrupt::interrupted().unwrap_or_default());
    let again = Again::new(args, sources, target);
    let copied = match shows {
        true => nowait_copy::start(sources, target, &options)
            .and_then(|started| wait_and_show(started, args.bytes_per_second_max())),
        false => nowait_copy::copy_all(sources, target, &options),
    };
    let report = copied.map_err(refused)?;
    if args.progress == args::Progress::Always && !args.dry_run {
        progress::show_total(&report);
    }
    tell.end(&report);
    let unprinted = tell.unprinted().map(|error| (SOME, format!("cannot print all results: {error}")));
    match (outcome(&report, &again), unprinted) {
        (None, None) => Ok(()),
        (None, Some((code, message))) | (Some((code, message)), None) => Err(cli::Failure { code, message }),
        (Some((code, message)), Some((_, unprinted))) => {
            complain(unprinted);
            Err(cli::Failure { code, message })
        }
    }
}

/// Turns a refusal, before anything was copied, into an exit code.
fn refused(failure: Failure) -> cli::Failure {
    let code = if failure.kind() == FailureKind::Usage { USAGE } else { NOTHING };
    cli::Failure { code, message: failure.to_string() }
}

/// How a copy continues after an interruption.
enum Again {
    /// It does not: without --resume.
    No,
    /// Nothing was changed: with --dry-run.
    Planned,
    /// The same command continues.
    Same,
    /// The same command would copy into the target, which is a directory now. With -T it continues.
    WithT(String),
}

impl Again {
    /// Decides this before the copy creates the target.
    fn new(args: &Copy, sources: &[PathBuf], target: &Path) -> Self {
        if args.dry_run {
            return Again::Planned;
        }
        match sources {
            _ if !args.resume => Again::No,
            [source] if !args.no_target_directory && args.target_directory.is_none() => {
                let is_contents = source.as_os_str().as_bytes().ends_with(b"/.") || source == Path::new(".");
                match target.is_dir() || is_contents || !source.is_dir() {
                    true => Again::Same,
                    false => Again::WithT(format!("nowait copy --resume -T {} {}", quoted(source), quoted(target))),
                }
            }
            _ => Again::Same,
        }
    }
}

/// Formats a path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = nowait_copy::shown(path).to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Returns the last line of a copy that was interrupted.
fn interrupted(report: &Report, again: &Again) -> String {
    let complete = match (report.files, report.files_found) {
        // Kept entries are complete, too, but entries that a pattern excludes are not.
        (files, _) if report.skipped > 0 => {
            let entries = if report.skipped == 1 { "entry" } else { "entries" };
            format!("interrupted: copied {}, skipped {} {entries}", counted(files, "file"), report.skipped)
        }
        (files, Some(found)) => format!("interrupted: {files} of {} are complete", counted(found, "file")),
        (1, None) => "interrupted: 1 file is complete".to_owned(),
        (files, None) => format!("interrupted: {} are complete", counted(files, "file")),
    };
    let kept = "copied parts of files of 8 MiB or more are kept";
    match again {
        Again::Planned => "interrupted; nothing was changed".to_owned(),
        Again::No => format!("{complete}; the others are unchanged"),
        Again::Same => format!("{complete}; {kept}; the same command continues"),
        Again::WithT(command) => format!("{complete}; {kept}; continue with the same options and -T: `{command}`"),
    }
}

/// Returns the exit code and the last line, unless everything was copied. Each failure was already
/// reported.
fn outcome(report: &Report, again: &Again) -> Option<(u8, String)> {
    let lost = report.failures.len();
    let files = if lost == 1 { "1 entry was" } else { &format!("{lost} entries were") };
    if report.failures.iter().any(|failure| failure.kind() == FailureKind::VerificationFailed) {
        return Some((DIFFERS, format!("{files} not copied; a verified copy differs from what was written")));
    }
    if report.is_cancelled {
        return Some((INTERRUPTED, interrupted(report, again)));
    }
    if lost > 0 && report.entries() == 0 {
        return Some((NOTHING, "nothing was copied".to_owned()));
    }
    if lost > 0 {
        return Some((SOME, format!("{files} not copied; the others were")));
    }
    let warnings = report.warnings.len();
    (warnings > 0)
        .then(|| (SOME, format!("all was copied, with {warnings} warning{}", if warnings == 1 { "" } else { "s" })))
}

/// Deep trees have many directories open at a time.
fn allow_many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(1 << 20, |maximum| maximum.min(1 << 20));
    if current.is_some_and(|current| current < wanted) {
        // With fewer, the deepest directories fail, and say so.
        _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn wait_and_show(started: Started, bytes_per_second_max: Option<u64>) -> Result<Report, Failure> {
    let (end, ended) = mpsc::channel();
    let progress = started.watcher();
    let shown = std::thread::spawn(move || progress::show(progress, bytes_per_second_max, &ended));
    let report = started.wait();
    drop(end);
    // The thread only draws; a panic in it was already reported.
    _ = shown.join();
    report
}

/// Tells of events.
struct Teller {
    explains: bool,
    is_json: bool,
    /// A pattern leaves files out.
    filters: bool,
    /// Failures and warnings of each operation and kind so far; true for failures.
    counts: Mutex<HashMap<(bool, Operation, FailureKind), u32>>,
    /// Why not all could be printed.
    unprinted: Mutex<Option<io::Error>>,
}

impl Teller {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Failed(failure) if self.is_shown(true, failure) => complain(message(failure)),
            Event::Warning(warning) if self.is_shown(false, warning) => complain(message(warning)),
            _ => {}
        }
        if self.is_json {
            self.say(format_args!("{}", as_json(event)));
            return;
        }
        match event {
            Event::Copied { source, target, way, why, bytes, .. } if self.explains => {
                let (source, target) = (nowait_copy::shown(source), nowait_copy::shown(target));
                self.say(format_args!("{}: {bytes} bytes, {source} -> {target} ({why})", way.name()));
            }
            Event::Skipped { source, why, .. } if self.explains => {
                self.say(format_args!("left out: {} ({why})", nowait_copy::shown(source)));
            }
            Event::Planned { source, target, bytes, .. } => {
                let (source, target) = (nowait_copy::shown(source), nowait_copy::shown(target));
                self.say(format_args!("would copy: {bytes} bytes, {source} -> {target}"));
            }
            _ => {}
        }
    }

    /// Prints a line. If that fails, the copy continues: the reader may be gone, and a full disk is
    /// reported at the end.
    fn say(&self, line: fmt::Arguments<'_>) {
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => _ = lock(&self.unprinted).get_or_insert(error),
            _ => {}
        }
    }

    fn unprinted(&self) -> Option<io::Error> {
        lock(&self.unprinted).take()
    }

    /// Counts a warning, or a clone that was refused; returns false if enough similar ones were
    /// printed. Any other file that is missing is named.
    fn is_shown(&self, has_failed: bool, failure: &Failure) -> bool {
        let is_limited = match has_failed {
            true => failure.operation() == Operation::Clone,
            false => !matches!(failure.kind(), FailureKind::SourceChanged | FailureKind::VerificationFailed),
        };
        if !is_limited {
            return true;
        }
        let mut counts = lock(&self.counts);
        let count = counts.entry((has_failed, failure.operation(), failure.kind())).or_default();
        *count += 1;
        *count <= SIMILAR_SHOWN
    }

    fn end(&self, report: &Report) {
        let counts = lock(&self.counts);
        let mut more: Vec<String> = counts
            .iter()
            .filter(|(_, count)| **count > SIMILAR_SHOWN)
            .map(|((_, operation, _), count)| format!("{operation} {} more files: the same", count - SIMILAR_SHOWN))
            .collect();
        more.sort_unstable();
        for line in more {
            complain(format_args!("{line}; --json lists all"));
        }
        if report.resumed_bytes > 0 {
            complain(format_args!("resumed: {} bytes came from an earlier run", report.resumed_bytes));
        }
        if self.filters && report.entries() == 0 && report.skipped > 0 {
            complain("nothing was copied: the patterns exclude all files; --explain lists them");
        }
        if self.is_json {
            self.say(format_args!(
                "{}",
                json!({
                    "event": "finished",
                    "files": report.files,
                    "directories": report.directories,
                    "nodes": report.nodes,
                    "hard_links": report.hard_links,
                    "bytes": report.bytes,
                    "resumed_bytes": report.resumed_bytes,
                    "skipped": report.skipped,
                    "verified": report.verified,
                    "failures": report.failures.len(),
                    "warnings": report.warnings.len(),
                    "is_cancelled": report.is_cancelled,
                    "elapsed_ns": u64::try_from(report.elapsed.as_nanos()).unwrap_or(u64::MAX),
                })
            ));
        }
    }
}

/// Formats a failure with the options as the command spells them.
fn message(failure: &Failure) -> String {
    failure.to_string().replace("(reflink: auto)", "(--reflink=auto)")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn as_json(event: &Event<'_>) -> Value {
    let mut fields = Map::new();
    let mut field = |name: &str, value: Value| _ = fields.insert(name.to_owned(), value);
    match event {
        Event::Copied { source, target, way, why, bytes, .. } => {
            field("event", "copied".into());
            path(&mut field, "source", source);
            path(&mut field, "target", target);
            field("way", way.name().into());
            field("why", (*why).into());
            field("bytes", (*bytes).into());
        }
        Event::Directory { source, target, is_new, .. } => {
            field("event", "directory".into());
            path(&mut field, "source", source);
            path(&mut field, "target", target);
            field("is_new", (*is_new).into());
        }
        Event::Planned { source, target, bytes, .. } => {
            field("event", "planned".into());
            path(&mut field, "source", source);
            path(&mut field, "target", target);
            field("bytes", (*bytes).into());
        }
        Event::Skipped { source, why, .. } => {
            field("event", "skipped".into());
            path(&mut field, "source", source);
            field("why", (*why).into());
        }
        Event::Failed(failure) => trouble(&mut field, "failed", failure),
        Event::Warning(failure) => trouble(&mut field, "warning", failure),
        _ => field("event", "other".into()),
    }
    Value::Object(fields)
}

fn trouble(field: &mut impl FnMut(&str, Value), event: &str, failure: &Failure) {
    field("event", event.into());
    field("operation", failure.operation().to_string().into());
    path(field, "path", failure.path());
    field("kind", format!("{:?}", failure.kind()).into());
    if let Some(offset) = failure.offset() {
        field("offset", offset.into());
    }
    if let Some(errno) = failure.raw_os_error() {
        field("errno", errno.into());
    }
    field("message", message(failure).into());
}

/// A path as text; and as bytes, in hexadecimal, if it is not UTF-8.
fn path(field: &mut impl FnMut(&str, Value), name: &str, path: &Path) {
    field(name, path.to_string_lossy().into());
    if path.to_str().is_none() {
        let hex: String = path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        field(&format!("{name}_hex"), hex.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: after a second interruption, files that the first run had completed counted as missing.
    #[test]
    fn an_interruption_tells_what_is_complete() {
        let mut report = Report::default();
        let mut said = |files: u64, found: Option<u64>, skipped: u64, again: &Again| {
            (report.files, report.files_found, report.skipped) = (files, found, skipped);
            interrupted(&report, again)
        };
        assert_eq!(
            said(3, Some(10), 0, &Again::No),
            "interrupted: 3 of 10 files are complete; the others are unchanged"
        );
        assert_eq!(said(1, None, 0, &Again::No), "interrupted: 1 file is complete; the others are unchanged");
        assert!(
            said(3, Some(10), 6, &Again::Same).starts_with("interrupted: copied 3 files, skipped 6 entries; copied ")
        );
        assert_eq!(said(3, None, 0, &Again::Planned), "interrupted; nothing was changed");
    }
}
