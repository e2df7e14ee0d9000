//! A process that appends and cuts until it is killed, and writes down each step before or after it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nowait::ErrorKind;
use nowait_log::{Durability, Log, Options, Retention, Scan, Strategy, Submitter, SyncPolicy};

use crate::common::child;
use crate::common::rng::Rng;
use crate::model::record;

const EVENTS: &str = "NOWAIT_SOAK_EVENTS";
const SEED: &str = "NOWAIT_SOAK_SEED";
/// Line on standard output when the log is open.
pub(crate) const OPEN: &str = "writer: open";

/// Starts a writer of the log in `dir`, which appends its events to the file `events`.
pub(crate) fn start(dir: &Path, events: &Path, seed: u64) -> Child {
    let mut command: Command = child::command_at("writer", dir);
    command.env(EVENTS, events).env(SEED, seed.to_string());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn options(rng: &mut Rng) -> Options {
    let durability = if rng.below(2) == 0 { Durability::Write } else { Durability::WriteAndSync };
    let by = if rng.below(2) == 0 { Submitter::Ring } else { Submitter::Call };
    let depth = [1, 2, 4, 8][rng.below(4)];
    let mut options = Options::new().create(true).segment_bytes(64 << 10);
    options = options.first_segment_bytes([16 << 10, 32 << 10, 64 << 10][rng.below(3)]);
    options = options.sync(SyncPolicy::Fixed(Strategy { durability, by, depth }));
    options = options.scan(if rng.below(2) == 0 { Scan::Tail } else { Scan::All });
    options = options.maintenance(rng.below(3) > 0).tail_bytes(rng.below(20_000) as u64);
    if rng.below(5) == 0 { options.recycle_bytes(0) } else { options }
}

struct Writer {
    log: Log,
    events: File,
    /// Appends hold it shared, cuts of the end alone.
    gate: RwLock<()>,
    durable: AtomicU64,
    stop: AtomicBool,
}

pub(crate) fn write() {
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let events = OpenOptions::new().append(true).create(true).open(std::env::var_os(EVENTS).unwrap()).unwrap();
    let mut rng = Rng::new(seed);
    // A log that gives up its oldest records says which, before it does.
    let (mut options, retains) = (options(&mut rng), rng.below(3) == 0);
    static KEPT_FROM: AtomicU64 = AtomicU64::new(0);
    if retains {
        let events = events.try_clone().unwrap();
        options = options.retain(Retention::before(move || {
            let first = KEPT_FROM.load(Relaxed);
            event(&events, &format!("prefix {first}"));
            first
        }));
    }
    let (log, found) = Log::open(child::path(), &options).wait().unwrap();
    event(&events, &format!("open {} {}", found.first_lsn, found.last_lsn));
    println!("{OPEN}");
    let durable = AtomicU64::new(found.last_lsn);
    let writer = Writer { log, events, gate: RwLock::new(()), durable, stop: AtomicBool::new(false) };
    // Some end their log themselves.
    let steps = if rng.below(4) == 0 { rng.below(20) } else { usize::MAX };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let writer = &writer;
            scope.spawn(move || writer.append(Rng::new(seed ^ (thread + 1) << 40)));
        }
        for _ in 0..steps {
            std::thread::sleep(Duration::from_micros(200 + rng.below(6000) as u64));
            let durable = writer.durable.load(Relaxed);
            KEPT_FROM.store(durable.saturating_sub(300), Relaxed);
            match rng.below(6) {
                0 => writer.give_up_before(durable.saturating_sub(rng.below(400) as u64)),
                1 => writer.cut(rng.below(60) as u64),
                2 => _ = writer.log.maintain(),
                _ => {}
            }
        }
        writer.stop.store(true, Relaxed);
    });
    writer.log.close().wait().unwrap();
    event(&writer.events, "closed");
}

/// One call, so that lines of several threads do not mix.
fn event(mut events: &File, text: &str) {
    events.write_all(format!("{text}\n").as_bytes()).unwrap();
}

impl Writer {
    fn append(&self, mut rng: Rng) {
        while !self.stop.load(Relaxed) {
            let _appending = self.gate.read().unwrap();
            let count = if rng.below(5) == 0 { 2 + rng.below(5) } else { 1 };
            let seeds: Vec<u64> = (0..count).map(|_| rng.next()).collect();
            let mut record = |seed: &u64| {
                let length = match rng.below(20) {
                    0 => 0,
                    // A batch fits a segment.
                    1 if count == 1 => rng.below(40_000),
                    2..5 => rng.below(6000),
                    _ => rng.below(300),
                };
                record(*seed, length)
            };
            let records: Vec<Vec<u8>> = seeds.iter().map(&mut record).collect();
            let appended = match &*records {
                [one] if rng.below(3) == 0 => {
                    self.log.append_with(one.len(), |memory| memory.copy_from_slice(one)).wait()
                }
                [one] => self.log.append(one).wait(),
                several => self.log.append_batch(several.iter().map(|record| record.as_slice())).wait(),
            };
            let ticket = appended.unwrap();
            let last = ticket.lsn();
            let first = last + 1 - count as u64;
            for (lsn, seed) in (first..).zip(&seeds) {
                event(&self.events, &format!("appended {lsn} {seed}"));
            }
            if count > 1 {
                event(&self.events, &format!("batch {first} {last}"));
            }
            if rng.below(8) > 0 {
                ticket.wait().unwrap();
                event(&self.events, &format!("durable {last}"));
                self.durable.fetch_max(last, Relaxed);
            }
        }
    }

    fn give_up_before(&self, lsn: u64) {
        event(&self.events, &format!("prefix {lsn}"));
        self.log.truncate_prefix(lsn);
    }

    fn cut(&self, records: u64) {
        let _alone = self.gate.write().unwrap();
        let last = self.log.last_lsn().saturating_sub(records);
        event(&self.events, &format!("cutting {last}"));
        match self.log.truncate_suffix(last).wait() {
            Ok(()) => {
                self.durable.store(last, Relaxed);
                event(&self.events, &format!("cut {last}"));
            }
            // Given up meanwhile.
            Err(error) if error.kind() == ErrorKind::NoSuchRecord => event(&self.events, "uncut"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("writer") => write(),
        Some(other) => unreachable!("{other}"),
    }
}
