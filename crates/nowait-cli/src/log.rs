//! `nowait log`: what is in a log, and whether it keeps what it promised.

use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nowait::ErrorKind;
use nowait_log::{
    Calibration, Durability, Log, Options, Recovery, Strategy, Submitter, backup, inspect, inspect_end, read,
    read_aside, truncate_prefix,
};
use serde_json::json;

use crate::cli::{self, Failure, Result};
use crate::interrupt;
use crate::show::{complain, counted};

mod tail;

/// Small, so that a writer that lives for some milliseconds goes through several.
const TORTURE_SEGMENT_BYTES: u64 = 128 << 10;
const TORTURE_LIFE_MAX: Duration = Duration::from_millis(40);
/// Older records are removed.
const TORTURE_RECORDS_KEPT: u64 = 20_000;

pub(crate) fn run(command: cli::Log) -> Result<()> {
    match command {
        cli::Log::Verify(options) => verify(&options),
        cli::Log::Stat(options) => stat(&options),
        cli::Log::Dump(options) => dump(&options),
        cli::Log::Tail(options) => tail::tail(&options),
        cli::Log::Repair(options) => repair(&options),
        cli::Log::Backup(options) => back_up(&options),
        cli::Log::Truncate(options) => truncate(&options),
        cli::Log::Torture(options) => torture(&options),
        cli::Log::TortureWriter(options) => torture_writer(&options),
    }
}

/// Exit code 7, when something is lost.
fn damaged(recovery: &Recovery) -> Result<()> {
    match recovery.damage.len() {
        0 => Ok(()),
        _ => Err(damaged_log()),
    }
}

fn damaged_log() -> Failure {
    damage("the log is damaged: restore it from a copy, or see `nowait log repair --dry-run`")
}

fn damage(message: &str) -> Failure {
    Failure { code: 7, message: message.to_owned() }
}

fn look(dir: &Path) -> Result<Recovery> {
    of_log(dir, inspect(dir).wait())
}

/// Says in the terms of a command that there is no log.
fn of_log<T>(dir: &Path, opened: nowait::Result<T>) -> Result<T> {
    opened.map_err(|error| match error.kind() {
        _ if fs::metadata(dir).is_ok_and(|about| !about.is_dir()) => {
            Failure { code: 5, message: format!("{} is not a directory; name the directory of a log", dir.display()) }
        }
        ErrorKind::NotFound => Failure {
            code: 5,
            message: format!("{} contains no log; check the path, and that its volume is mounted", dir.display()),
        },
        _ => error.into(),
    })
}

fn verify(options: &cli::LogDir) -> Result<()> {
    let recovery = look(&options.dir)?;
    if options.json {
        say!("{}", as_json(&options.dir, &recovery));
        return damaged(&recovery);
    }
    let mib = recovery.bytes_read as f64 / f64::from(1 << 20);
    say!("{}: {}", options.dir.display(), range(&recovery));
    say!("  read {mib:.1} MiB in {:.0} ms", recovery.elapsed.as_secs_f64() * 1e3);
    print_end(&recovery);
    damaged(&recovery)
}

fn range(recovery: &Recovery) -> String {
    let Recovery { first_lsn, last_lsn, next_lsn, segments, epoch, .. } = recovery;
    let end = end_of_records(recovery);
    // A repair may have left none of those that have numbers.
    if end <= *first_lsn || *segments == 0 {
        return format!("no records, the next is {next_lsn}; epoch {epoch}");
    }
    let (there, segments) = (records(&(*first_lsn..end)), counted(*segments as u64, "segment"));
    match end <= *last_lsn {
        true => format!("{there}; the next is {next_lsn}; {segments}, epoch {epoch}"),
        false => format!("{there} in {segments}, epoch {epoch}"),
    }
}

/// Returns the number after the last record: a repair may have left out the last numbers.
fn end_of_records(recovery: &Recovery) -> u64 {
    let end = recovery.last_lsn + 1;
    recovery.gaps.iter().rev().fold(end, |end, gap| if gap.end >= end { end.min(gap.start) } else { end })
}

fn records(lsns: &std::ops::Range<u64>) -> String {
    match lsns.end - lsns.start {
        1 => format!("record {}", lsns.start),
        _ => format!("records {} to {}", lsns.start, lsns.end - 1),
    }
}

fn print_end(recovery: &Recovery) {
    if recovery.closed {
        say!("  closed");
    } else if recovery.damage.is_empty() {
        say!("  not closed: a process has it open or ended without closing it, or it is a backup of an open log");
    }
    if let Some(torn) = &recovery.torn {
        say!("  torn at {}, byte {}: a write was cut off before it was acknowledged", torn.path.display(), torn.offset);
    }
    for damage in &recovery.damage {
        say!("  DAMAGED: {damage}");
    }
    for part in &recovery.unreadable {
        say!("  unreadable: {}, bytes {} to {}: {}", part.path.display(), part.bytes.start, part.bytes.end, part.what);
    }
    for place in &recovery.from_copy {
        say!("  damaged, but read from its second copy: {}, the page at byte {}", place.path.display(), place.offset);
    }
    if recovery.control_lost {
        say!("  the control file is lost; opening the log creates it again");
    }
    for lsns in &recovery.behind {
        say!("  intact beside the damage: {}; `nowait log dump` prints them", records(lsns));
    }
    for lsns in &recovery.gaps {
        say!("  left out by a repair: {}", records(lsns));
    }
    if let Some(paths) = some(&recovery.aside) {
        say!("  put aside: {paths}; `nowait log dump --aside` prints their intact records");
    }
}

/// The first of them and how many more, for people. The JSON has them all.
fn some(paths: &[PathBuf]) -> Option<String> {
    let first = paths.first()?.display();
    Some(match paths.len() {
        1 => first.to_string(),
        count => format!("{first} and {} more", count - 1),
    })
}

fn as_json(dir: &Path, recovery: &Recovery) -> serde_json::Value {
    let damage = recovery.damage.iter().map(|damage| {
        json!({
            "path": damage.path, "first_byte": damage.bytes.start, "end_byte": damage.bytes.end,
            "first_lsn": damage.lsns.start, "end_lsn": damage.lsns.end, "what": damage.what,
        })
    });
    let lsns = |lsns: &std::ops::Range<u64>| json!({ "first_lsn": lsns.start, "end_lsn": lsns.end });
    let unreadable = recovery.unreadable.iter().map(|part| {
        json!({
            "path": part.path, "first_byte": part.bytes.start, "end_byte": part.bytes.end, "what": part.what,
        })
    });
    let from_copy = recovery.from_copy.iter().map(|place| json!({ "path": place.path, "offset": place.offset }));
    json!({
        "dir": dir,
        "first_lsn": recovery.first_lsn,
        "last_lsn": recovery.last_lsn,
        "next_lsn": recovery.next_lsn,
        "gaps": recovery.gaps.iter().map(lsns).collect::<Vec<_>>(),
        "epoch": recovery.epoch,
        "segments": recovery.segments,
        "segment_bytes": recovery.segment_bytes,
        "closed": recovery.closed,
        "torn": recovery.torn.as_ref().map(|torn| json!({ "path": torn.path, "offset": torn.offset })),
        "damage": damage.collect::<Vec<_>>(),
        "behind": recovery.behind.iter().map(lsns).collect::<Vec<_>>(),
        "unreadable": unreadable.collect::<Vec<_>>(),
        "from_copy": from_copy.collect::<Vec<_>>(),
        "control_lost": recovery.control_lost,
        "lost": recovery.lost,
        "aside": recovery.aside,
        "direct": recovery.direct,
        "durability": format!("{:?}", recovery.strategy.durability),
        "by": format!("{:?}", recovery.strategy.by),
        "depth": recovery.strategy.depth,
        "bytes_read": recovery.bytes_read,
        "elapsed_ns": recovery.elapsed.as_nanos() as u64,
    })
}

fn stat(options: &cli::LogDir) -> Result<()> {
    let recovery = look(&options.dir)?;
    if options.json {
        say!("{}", as_json(&options.dir, &recovery));
        return damaged(&recovery);
    }
    let mut bytes = 0;
    let mut files = 0;
    for entry in fs::read_dir(&options.dir)? {
        bytes += entry?.metadata()?.len();
        files += 1;
    }
    say!("{}: {}", options.dir.display(), range(&recovery));
    say!(
        "  on disk   {:.1} MiB in {files} files, segments of up to {:.1} MiB",
        bytes as f64 / 1048576.0,
        recovery.segment_bytes as f64 / 1048576.0
    );
    let cache = if recovery.direct { "past the page cache" } else { "through the page cache" };
    say!("  written   {cache}; {} at most", in_words(&recovery.strategy));
    if let Some(calibration) = &recovery.calibration {
        say!("  measured  {}; a page was durable after", age(calibration));
        for (strategy, time) in &calibration.candidates {
            say!("{:>16} us by {}", time.as_micros(), in_words(strategy));
        }
    }
    print_end(&recovery);
    damaged(&recovery)
}

/// How long ago it was measured.
fn age(calibration: &Calibration) -> String {
    match calibration.at.elapsed().map_or(0, |age| age.as_secs() / 86_400) {
        0 => "less than a day ago".to_owned(),
        days => format!("{} ago", counted(days, "day")),
    }
}

fn in_words(strategy: &Strategy) -> String {
    let durability = match strategy.durability {
        Durability::Write => "durable writes",
        Durability::WriteAndSync => "writes and fdatasync",
    };
    let by = match strategy.by {
        Submitter::Ring => "by io_uring",
        Submitter::Call => "by system calls",
    };
    format!("{durability} {by}, {} in flight", counted(strategy.depth as u64, "block"))
}

fn dump(options: &cli::Dump) -> Result<()> {
    let recovery = look(&options.dir)?;
    // Whole records beside the damage may be before the rest.
    let behind = recovery.behind.first().map_or(recovery.first_lsn, |lsns| lsns.start);
    let from = options.from.unwrap_or(behind.min(recovery.first_lsn));
    if from >= recovery.next_lsn && options.from.is_some() {
        complain(format_args!("no records from {from} on: the log has {}", range(&recovery)));
    }
    let mut reader = if options.aside { read_aside(&options.dir).wait()? } else { read(&options.dir, from).wait()?.0 };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut left = options.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let record = match reader.next().wait() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            // Whole records behind it come next.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                if !is_open(out.flush())? {
                    return Ok(());
                }
                complain(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        left -= 1;
        let written = match options.raw {
            true => out.write_all(record.bytes),
            false => print(&mut out, options.json, record.lsn, record.kind, record.bytes),
        };
        if !is_open(written)? {
            return Ok(());
        }
    }
    if !is_open(out.flush())? {
        return Ok(());
    }
    damaged(&recovery)
}

/// Prints a line for a record; its kind only where the application has given it one.
fn print(out: &mut impl Write, as_json: bool, lsn: u64, kind: u8, bytes: &[u8]) -> io::Result<()> {
    if as_json {
        return writeln!(out, "{}", json!({ "lsn": lsn, "kind": kind, "bytes": hexadecimal(bytes) }));
    }
    let kind = if kind == 0 { String::new() } else { format!("kind {kind}: ") };
    writeln!(out, "{lsn:>12} {:>8}  {kind}{}", bytes.len(), text(bytes))
}

/// Returns false if the reader of the output is gone.
fn is_open(written: io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure { code: 1, message: format!("cannot print the records: {error}") }),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The beginning of a record, for people.
fn text(bytes: &[u8]) -> String {
    const SHOWN: usize = 64;
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let dots = if bytes.len() > SHOWN { "..." } else { "" };
    format!("{}{dots}", shown.escape_ascii())
}

fn repair(options: &cli::Repair) -> Result<()> {
    let recovery = look(&options.dir)?;
    say!("{}: {}", options.dir.display(), range(&recovery));
    print_end(&recovery);
    if recovery.damage.is_empty() {
        say!("  nothing to repair");
        return Ok(());
    }
    if !options.dry_run {
        let (log, _) = Log::open(&options.dir, &Options::new().create(false).salvage(true)).wait()?;
        log.close().wait()?;
    }
    let done = if options.dry_run { "to be done" } else { "done" };
    let kept = match recovery.last_lsn < recovery.first_lsn || recovery.segments == 0 {
        true => "keep no record".to_owned(),
        false => format!("keep records up to {}", recovery.last_lsn),
    };
    say!("  {done}: {kept}; the next is {}", recovery.next_lsn);
    if let Some(paths) = some(&recovery.lost) {
        say!("  {done}: put aside {paths}");
    }
    match options.dry_run {
        true => Err(damage("the log is damaged: restore it from a copy, or repair it without --dry-run")),
        false => Ok(()),
    }
}

fn back_up(options: &cli::Backup) -> Result<()> {
    let copied = match backup(&options.dir, &options.dest).wait() {
        // The log exists: the error is about DEST or its parent.
        Err(error) if error.kind() == ErrorKind::NotFound && options.dir.is_dir() => {
            look(&options.dir)?;
            return Err(error.into());
        }
        copied => of_log(&options.dir, copied)?,
    };
    match options.json {
        true => say!("{}", as_json(&options.dest, &copied)),
        false => say!("{}: {}", options.dest.display(), range(&copied)),
    }
    Ok(())
}

fn truncate(options: &cli::Truncate) -> Result<()> {
    let found = of_log(&options.dir, inspect_end(&options.dir).wait())?;
    let first_lsn = found.first_lsn;
    // The library has no such limit: a program may name the first record that it will append.
    if options.before > found.next_lsn {
        let (last, next) = (end_of_records(&found).saturating_sub(1), found.next_lsn);
        let message = match last < first_lsn {
            true => format!("--before {}: the log has no records; name {next} at most", options.before),
            false => format!("--before {}: the last record is {last}; name {next} at most", options.before),
        };
        return Err(Failure { code: 2, message });
    }
    let left = of_log(&options.dir, truncate_prefix(&options.dir, options.before).wait())?;
    say!("{}: {}", options.dir.display(), range(&left));
    match left.first_lsn > first_lsn {
        true => say!("  removed: {}", records(&(first_lsn..left.first_lsn))),
        false => say!("  no record removed: the oldest segment also contains records that stay"),
    }
    Ok(())
}

/// Makes a self-checking record: its writer, the writer's count, and bytes derived from both.
fn record(writer: u64, count: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(writer << 40 ^ count);
    let length = random.usize(..500);
    let mut bytes = [writer.to_le_bytes(), count.to_le_bytes()].concat();
    bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
    bytes
}

/// The log of a torture, and its acknowledged records.
struct Tortured {
    dir: PathBuf,
    interrupted: Arc<AtomicBool>,
    acknowledged: u64,
    /// The oldest record at the last look.
    first_lsn: u64,
    /// Records by their hash, of those that were seen by an earlier look: they must stay what they
    /// were.
    seen: std::collections::BTreeMap<u64, u64>,
}

fn torture(options: &cli::Torture) -> Result<()> {
    let seed = options
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.subsec_nanos().into()));
    let interrupted = interrupt::interrupted()?;
    say!("{} kills of {} writers, seed {seed}", options.kills, options.writers);
    let dir = options.dir.join(format!("nowait-torture-{}", std::process::id()));
    fs::create_dir(&dir).map_err(|error| Failure {
        code: if error.kind() == io::ErrorKind::NotFound { 5 } else { 4 },
        message: format!("cannot create {}: {error}; name a writable directory", dir.display()),
    })?;
    let mut tortured = Tortured { dir, interrupted, acknowledged: 0, first_lsn: 1, seen: Default::default() };
    let bar = bar(options.kills.into());
    let mut random = fastrand::Rng::with_seed(seed);
    for kill in 0..options.kills {
        let life = Duration::from_micros(random.u64(..TORTURE_LIFE_MAX.as_micros() as u64));
        let done = tortured.kill(options.writers, life).and_then(|()| tortured.look());
        if tortured.interrupted.load(Relaxed) && done.as_ref().map_or_else(|failure| failure.code != 7, |()| true) {
            bar.finish_and_clear();
            return Err(tortured.end(kill));
        }
        if let Err(failure) = done {
            bar.finish_and_clear();
            let message =
                format!("kill {kill}, seed {seed}: {}; the log is left in {}", failure.message, tortured.dir.display());
            return Err(Failure { code: failure.code, message });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let removed = match tortured.first_lsn - 1 {
        0 => String::new(),
        removed => format!(" ({removed} were removed by the retention that the test sets)"),
    };
    say!("{} records were acknowledged; all are present{removed}", tortured.acknowledged);
    Ok(fs::remove_dir_all(&tortured.dir)?)
}

fn bar(length: u64) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} kills, {eta} left") {
        bar.set_style(style);
    }
    bar
}

impl Tortured {
    /// Ends an interrupted run: removes the log, or names it.
    fn end(&self, kills: u32) -> Failure {
        let message = match fs::remove_dir_all(&self.dir) {
            Ok(()) => format!("interrupted after {}", counted(kills.into(), "kill")),
            Err(error) => format!("interrupted; cannot remove {}: {error}", self.dir.display()),
        };
        Failure { code: 130, message }
    }

    /// Starts a writer, and kills it after `life`, from its first acknowledgement on.
    fn kill(&mut self, writers: u32, life: Duration) -> Result<()> {
        let mut writer = Command::new(std::env::current_exe()?)
            .args(["log", "torture-writer"])
            .arg(&self.dir)
            .arg(writers.to_string())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(writer.stdout.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?);
        let mut line = String::new();
        let mut begun = None;
        let mut killed = false;
        // To the end, also of what was on its way when it was killed.
        while lines.read_line(&mut line)? > 0 {
            if let Some(lsn) = line.strip_suffix('\n').and_then(|lsn| lsn.parse::<u64>().ok()) {
                self.acknowledged = self.acknowledged.max(lsn);
            }
            line.clear();
            let is_over = begun.get_or_insert_with(Instant::now).elapsed() >= life;
            if !killed && (is_over || self.interrupted.load(Relaxed)) {
                writer.kill()?;
                killed = true;
            }
        }
        let status = writer.wait()?;
        // Ctrl-C in a terminal also ends the writer.
        if !killed && !self.interrupted.load(Relaxed) {
            let message = format!("the writer ended before it was killed, with {status}");
            return Err(Failure { code: 1, message });
        }
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        let wrong = |message: String| Err(Failure { code: 7, message });
        let recovery = inspect(&self.dir).wait()?;
        if let Some(damage) = recovery.damage.first() {
            return wrong(damage.to_string());
        }
        if recovery.last_lsn < self.acknowledged {
            return wrong(format!(
                "record {} was acknowledged, but the last record is {}",
                self.acknowledged, recovery.last_lsn
            ));
        }
        self.first_lsn = recovery.first_lsn;
        let (mut reader, _) = read(&self.dir, recovery.first_lsn).wait()?;
        self.seen = self.seen.split_off(&recovery.first_lsn);
        while let Some(found) = reader.next().wait()? {
            let number = |at: usize| {
                found.bytes.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            };
            let (Some(writer), Some(count)) = (number(0), number(8)) else {
                return wrong(format!("record {} is too short", found.lsn));
            };
            if found.bytes != record(writer, count) {
                return wrong(format!("record {} differs from what was appended", found.lsn));
            }
            if *self.seen.entry(found.lsn).or_insert(writer << 40 ^ count) != writer << 40 ^ count {
                return wrong(format!("record {} differs from what was read before", found.lsn));
            }
        }
        Ok(())
    }
}

fn torture_writer(options: &cli::TortureWriter) -> Result<()> {
    let (log, recovery) =
        Log::open(&options.dir, &Options::new().create(true).segment_bytes(TORTURE_SEGMENT_BYTES)).wait()?;
    if let Some(old) = recovery.last_lsn.checked_sub(TORTURE_RECORDS_KEPT) {
        log.truncate_prefix(old);
    }
    let life = recovery.epoch + 1;
    let append = |thread: u64| -> Result<()> {
        for count in 0.. {
            let ticket = log.append(&record(life << 12 | thread, count)).wait()?;
            let lsn = ticket.wait()?;
            // One call, so that lines of several threads stay whole.
            let mut out = io::stdout().lock();
            match out.write_all(format!("{lsn}\n").as_bytes()).and_then(|()| out.flush()) {
                // The command that started this process is gone.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                printed => printed?,
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let append = &append;
        let threads: Vec<_> =
            (0..u64::from(options.writers)).map(|thread| scope.spawn(move || append(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure { code: 1, message: "a writer panicked".to_owned() }))
        })
    })
}
