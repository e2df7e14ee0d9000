//! A log that has run for a while, and what it costs: `nowait` alone, and `nowait-tailed` beside a
//! reader that follows its end. Of a log whose oldest segments are given up as others come: `nowait`,
//! which is told what is no longer needed, and `nowait-retain`, which keeps so many bytes by itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nowait_log::{Log, Options, Retention};

use super::commit::by_pipelines;
use super::durable::{self, alone_bytes, find, open};
use crate::machine::load::Transfers;
use crate::measure::meter::{Latencies, Round, latencies};
use crate::measure::work::{Commits, Records};
use crate::sys;
use crate::ways::{OURS, SteadyWay, Way};

/// Seen beside the latencies of a round's commits.
pub struct Seen {
    /// Bytes that the log wrote, headers and padding included.
    pub file_bytes: u64,
    /// Bytes that this process had storage read and write. `None` where the kernel does not tell.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    /// Bytes that the device wrote, for whomever. `None` where it does not count.
    pub device_bytes: Option<u64>,
    /// Times from when a writer learned that its record is durable to when the reader had it; 0
    /// where the reader was first.
    pub lag: Latencies,
    /// Latencies of the commits next to a change of segments.
    pub rotation: Latencies,
}

/// Counters at one moment.
struct Reading {
    read: Option<u64>,
    written: Option<u64>,
    device: Option<Transfers>,
    file_bytes: u64,
}

impl Reading {
    fn now(log: &Log, file: &File) -> Self {
        let (read, written) = (sys::read_bytes("self"), sys::written_bytes("self"));
        Self { read, written, device: Transfers::under(file), file_bytes: log.stats().written_bytes }
    }

    fn since(self, before: &Self) -> Seen {
        let difference = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Seen {
            file_bytes: self.file_bytes - before.file_bytes,
            read_bytes: difference(self.read, before.read),
            written_bytes: difference(self.written, before.written),
            device_bytes: self.device.zip(before.device).map(|(now, then)| now.since(then).written_bytes),
            lag: latencies(),
            rotation: latencies(),
        }
    }
}

/// Writers of a log, with or without a reader.
pub(crate) struct Tailed {
    name: &'static str,
    has_reader: bool,
}

pub(crate) const ALONE: Tailed = Tailed { name: OURS, has_reader: false };
pub(crate) const TAILED: Tailed = Tailed { name: "nowait-tailed", has_reader: true };

impl Way for Tailed {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl SteadyWay for Tailed {
    fn steady(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Seen> {
        let (_folder, log) = open(job.folder, &durable::USUAL.options_for(job)?)?;
        let all = job.writers as u64 * job.commits;
        let began = Instant::now();
        // When its writer learned that a record is durable, by LSN; with and without a reader.
        let durable: Vec<AtomicU64> = (0..=all).map(|_| AtomicU64::new(0)).collect();
        let before = Reading::now(&log, job.file);
        let (lsns, had) = thread::scope(|scope| {
            let reader = self.has_reader.then(|| {
                let log = &log;
                scope.spawn(move || follow(log, all, began))
            });
            let lsns = by_pipelines(
                job,
                round,
                |record| Ok(log.append(record).wait()?),
                |ticket| {
                    let lsn = ticket.wait()?;
                    if let Some(durable) = durable.get(lsn as usize) {
                        durable.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    }
                    Ok(lsn)
                },
            );
            let is_short =
                lsns.as_ref().map_or(true, |all_of| (all_of.iter().map(Vec::len).sum::<usize>() as u64) < all);
            if is_short {
                // What the reader waits for does not come; its own error tells less.
                let _ = log.clone().close().wait();
            }
            let had = reader.map(|reader| reader.join().expect("the reader does not panic"));
            let lsns = lsns?;
            // Interrupted: the table says so.
            if is_short { io::Result::Ok((lsns, None)) } else { Ok((lsns, had.transpose()?)) }
        })?;
        let mut seen = Reading::now(&log, job.file).since(&before);
        if let Some(had) = had {
            let numbered = |(writer, of_writer): (usize, &Vec<u64>)| {
                (0..).zip(of_writer.clone()).map(move |(sequence, lsn)| (Records::number(writer, sequence), lsn))
            };
            for (number, lsn) in lsns.iter().enumerate().flat_map(numbered) {
                let Some(&(at, _)) = had.get(lsn as usize).filter(|(_, read)| *read == number) else {
                    return Err(io::Error::other(format!("the reader had another record for LSN {lsn}")));
                };
                let durable = durable.get(lsn as usize).map_or(0, |durable| durable.load(Ordering::Relaxed));
                seen.lag.saturating_record(at.saturating_sub(durable).max(1));
            }
        }
        if job.cancel.load(Ordering::Relaxed) {
            return Ok(seen);
        }
        find(job, round, &log, &lsns, 0)?;
        log.close().wait()?;
        Ok(seen)
    }
}

/// Reads records from the first on as they become durable. Gives when it had each, and its number,
/// by LSN.
fn follow(log: &Log, count: u64, began: Instant) -> io::Result<Vec<(u64, u64)>> {
    let mut reader = log.reader(1);
    let mut had = Vec::with_capacity(count as usize + 1);
    had.push((0, u64::MAX));
    for _ in 0..count {
        let record = reader.tail().wait()?;
        let number = record.bytes.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number));
        had.push((began.elapsed().as_nanos() as u64, number));
    }
    Ok(had)
}

/// Writers of a log that keeps the last so many of the job's records, or as many bytes of blocks.
pub(crate) struct Retained {
    name: &'static str,
    by_rule: bool,
}

pub(crate) const TOLD: Retained = Retained { name: OURS, by_rule: false };
pub(crate) const BY_RULE: Retained = Retained { name: "nowait-retain", by_rule: true };

/// The log keeps as many bytes as this share of what a round logs, in so many segments.
pub const RETAINED: u64 = 3;
const SEGMENTS: u64 = 8;
const SEGMENT_MIN: u64 = 128 << 10;
/// Records between two calls of `truncate_prefix`, of each writer.
const GIVEN_UP_EVERY: u64 = 16;
/// Appended at a time before the clock runs.
const BATCH: usize = 64;
/// How often the watch looks at the directory; a segment lasts many times as long.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Way for Retained {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl SteadyWay for Retained {
    fn steady(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Seen> {
        let all = job.writers as u64 * job.commits;
        let kept = (all / RETAINED).max(1);
        let segment = (kept * job.size as u64 / SEGMENTS).max(SEGMENT_MIN).next_multiple_of(64 << 10);
        let mut options: Options = durable::USUAL.options_for(job)?.segment_bytes(segment);
        if self.by_rule {
            options = options.retain(Retention::bytes(kept * job.size as u64));
        }
        let (folder, log) = open(job.folder, &options)?;
        // As full as it stays.
        let filling = vec![0xa5; job.size];
        let mut last = 0;
        // Several fit into a segment.
        let batch = BATCH.min(segment as usize / 4 / job.size).max(1);
        while last < kept {
            let count = batch.min((kept - last) as usize);
            last = log.append_batch(std::iter::repeat_n(&filling[..], count)).wait()?.wait()?;
        }
        durable::await_spare(&log);
        let (watches, began_at) = (AtomicBool::new(true), last + 1);
        let took: Vec<AtomicU64> = (0..all).map(|_| AtomicU64::new(0)).collect();
        let before = Reading::now(&log, job.file);
        let (lsns, firsts, mut seen) = thread::scope(|scope| {
            let watch = scope.spawn(|| watch(folder.path(), &watches));
            let lsns = by_pipelines(
                job,
                round,
                |record| Ok((Instant::now(), log.append(record).wait()?)),
                |(started, ticket)| {
                    let lsn = ticket.wait()?;
                    if let Some(took) = lsn.checked_sub(began_at).and_then(|index| took.get(index as usize)) {
                        took.store(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    }
                    if !self.by_rule && lsn % GIVEN_UP_EVERY == 0 {
                        log.truncate_prefix(lsn.saturating_sub(kept));
                    }
                    Ok(lsn)
                },
            );
            let seen = Reading::now(&log, job.file).since(&before);
            watches.store(false, Ordering::Relaxed);
            let firsts = watch.join().expect("the watch does not panic");
            io::Result::Ok((lsns?, firsts, seen))
        })?;
        let beside = 2 * job.writers as u64;
        for first in firsts.into_values().filter(|first| *first > began_at) {
            for lsn in first.saturating_sub(beside)..first + beside {
                let index = lsn.checked_sub(began_at).map_or(usize::MAX, |index| index as usize);
                if let Some(took) = took.get(index).map(|took| took.load(Ordering::Relaxed)).filter(|took| *took > 0) {
                    seen.rotation.saturating_record(took);
                }
            }
        }
        // Others are given up by now: the rule counts what fills up blocks, too. Half of what is left
        // where each record has a block of its own.
        let newest = lsns.iter().filter_map(|of_writer| of_writer.last()).max().copied().unwrap_or(0);
        let left = kept * job.size as u64 / alone_bytes(job.size) / 2;
        find(job, round, &log, &lsns, newest.saturating_sub(left))?;
        log.close().wait()?;
        Ok(seen)
    }
}

/// First record of each segment that comes, by its number, from its header (docs/log-format.md),
/// until it is told to stop.
fn watch(folder: &Path, goes_on: &AtomicBool) -> BTreeMap<u64, u64> {
    const MAGIC: &[u8] = b"nwlogseg";
    let mut firsts = BTreeMap::new();
    while goes_on.load(Ordering::Relaxed) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".seg")?.parse::<u64>().ok());
            let Some(number) = number.filter(|number| !firsts.contains_key(number)) else { continue };
            let mut header = [0; 64];
            // Readahead would bring pages into the cache that direct writes then have to drop.
            let read = File::open(entry.path()).and_then(|file| {
                sys::expect_random(&file)?;
                file.read_exact_at(&mut header, 0)
            });
            let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
            // A spare has none, or that of an earlier segment.
            if read.is_ok() && header.starts_with(MAGIC) && word(32) == number {
                firsts.insert(number, word(56));
            }
        }
        thread::sleep(LOOK_EVERY);
    }
    firsts
}
