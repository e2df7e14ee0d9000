//! The tables `log`, `log-pipelined` and `log-tokio`: durable appends of small records.
//!
//! In `log`, each of many writers appends a record, waits until it is on stable storage, and
//! appends the next. In `log-pipelined`, a thread has several records in flight, and waits for its
//! oldest. A way without pipelining has a thread for each of these records instead. In `log-tokio`,
//! tasks on two tokio workers await their records; ways without tasks use as many threads.
//!
//! Every round has a new file without a name, large enough for the way, filled with zeros and
//! synced before the clock starts. So no way except `nowait-young` pays for the allocation of
//! blocks or for a growing file. The column "prepared" shows the preparation of a way itself
//! before the clock starts. For `nowait` that is the calibration of a new log, its first
//! segment (up to 256 MiB, as large as the round needs) and the next one. All ways of a case
//! make the same number of commits per round.
//!
//! The columns "device bytes/byte" and "device writes" are the block device's counts while the
//! clock runs, for each byte of a record and for each commit. They include other programs and
//! flushes.
//!
//! A way's records are read back and compared once for each case, before it is timed, and some of
//! them after each timed round. In all rounds the device must have written at least the bytes of
//! the records, if it counts its writes.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::measure::meter::Sampled;
use crate::measure::options::Logged;
use crate::measure::work::{Commits, Records};
use crate::ways::LogWay;

const USUAL: Table = Table {
    part_of: Some("log"),
    unit: "commits/s",
    writes_into: |_| Some((FILE_MAX, "at most; a new one for each round, filled with zeros, without a name")),
    grids: &[Grid {
        name: "a commit",
        is_detail: false,
        columns: &[
            P50,
            P99,
            P999,
            LONGEST,
            CPU,
            SWITCHES,
            Column { name: "file bytes/byte", cell: |row| own(row, "file_bytes_per_byte", 2) },
            Column { name: "device bytes/byte", cell: |row| own(row, "device_bytes_per_byte", 2) },
            Column { name: "device writes", cell: |row| own(row, "device_writes_per_op", 2) },
            Column { name: "prepared ms", cell: |row| Some(format!("{:.1}", row.prepared_ms?)) },
        ],
    }],
    ..Table::USUAL
};

pub static LOG: Table = Table {
    name: "log",
    part_of: None,
    about: "Durable appends, each awaited by its writer, by number of writers and record size",
    title: "log: each writer appends a record and waits until it is on stable storage; commits/s",
    takes: &["writers", "sizes", "logs"],
    toured: true,
    cases: |options| cases(Logged::Threads, options),
    ..USUAL
};

pub static PIPELINED: Table = Table {
    name: "log-pipelined",
    about: "Durable appends: threads with several records in flight",
    title: "log-pipelined: threads with several records in flight, each waiting for its oldest; commits/s",
    takes: &["writers", "in_flight", "sizes", "logs"],
    cases: |options| cases(Logged::Pipelined, options),
    ..USUAL
};

pub static TASKS: Table = Table {
    name: "log-tokio",
    about: "Durable appends: tasks of tokio on two workers",
    title: "log-tokio: tasks on two tokio workers, or as many threads, each awaiting its record; commits/s",
    takes: &["tasks", "sizes", "logs"],
    cases: |options| cases(Logged::Tokio, options),
    ..USUAL
};

/// Maximum size of a round's file.
pub const FILE_MAX: u64 = 1 << 30;

/// Time of a turn besides its round: filling and syncing the file, or calibrating a log.
const BESIDE: Duration = Duration::from_millis(250);
/// Minimum number of commits of a slot.
const FEWEST: u64 = 4;
/// Bytes between syncs, so that an interrupt takes effect soon.
const SYNC_EVERY: u64 = 64 << 20;

#[derive(Clone, Copy)]
struct CommitShape {
    /// Number of records in flight of all writers.
    slots: usize,
    /// Number of records in flight of each writer, for a way that [pipelines](LogWay::pipelines).
    in_flight: usize,
    size: usize,
    /// Options that make it need less room, as an error names them.
    limits: &'static str,
}

/// Returns the cases; none if this kind of work is not selected.
fn cases(kind: Logged, options: &Options) -> Vec<Case> {
    let wanted = match (&options.logs[..], options.quick) {
        ([], true) => kind == Logged::Threads,
        ([], false) => true,
        (asked, _) => asked.contains(&kind),
    };
    if !wanted {
        return Vec::new();
    }
    let (roster, threads, in_flight) = (options.roster, &options.writers, &options.in_flight);
    let sizes = |quick: &[usize], full: &[usize]| options.or_usual(&options.sizes, quick, full);
    let (ways, writers, in_flight, sizes, limits) = match kind {
        Logged::Threads => {
            let (writers, sizes) =
                (options.or_usual(threads, &[1, 64], &[1, 8, 64]), sizes(&[128, 4096], &[128, 256, 4096]));
            (ways::loggers(roster), writers, vec![1], sizes, "--writers or --sizes")
        }
        Logged::Pipelined => {
            let in_flight = options.or_usual(in_flight, &[32], &[8, 32]);
            let (writers, sizes) = (options.or_usual(threads, &[2], &[1, 2, 8]), sizes(&[128], &[128]));
            (ways::pipeliners(roster), writers, in_flight, sizes, "--writers, --in-flight or --sizes")
        }
        Logged::Tokio => {
            let (tasks, sizes) = (options.or_usual(&options.tasks, &[64], &[64, 256]), sizes(&[128], &[128]));
            (ways::task_loggers(roster), tasks, vec![1], sizes, "--tasks or --sizes")
        }
    };
    let mut cases = Vec::new();
    for (writers, &in_flight) in writers.into_iter().flat_map(|writers| in_flight.iter().map(move |n| (writers, n))) {
        for &size in &sizes {
            let name = match kind {
                Logged::Threads => format!("writers={writers}"),
                Logged::Pipelined => format!("threads={writers} in-flight={in_flight}"),
                Logged::Tokio => format!("tasks={writers}"),
            };
            let shape = CommitShape { slots: writers * in_flight, in_flight, size, limits };
            let open = move |ways, run: &mut Run<'_>| LogCase::open(ways, shape, run).map(Some);
            let (name, work) = (format!("{name} size={}", size_of(size)), Work::For(options.commit_time));
            cases.push(Case::new(name, ways.clone(), work, open).in_directory().beside(BESIDE));
        }
    }
    cases
}

/// One case, ready to be measured.
struct LogCase {
    ways: Vec<Part<dyn LogWay>>,
    shape: CommitShape,
    /// Free bytes of the file system before anything was written, and whether it allows `O_DIRECT`.
    free: u64,
    direct: bool,
    /// Commits of each slot in the next round.
    commits: u64,
}

impl LogCase {
    fn open(ways: Vec<Part<dyn LogWay>>, shape: CommitShape, run: &mut Run<'_>) -> Result<Self> {
        let dir = &run.options.dir;
        let probe = testfile::create_nameless(dir)?;
        let direct = run.takes_direct(&sys::path_of(&probe), "log: its direct ways are")?;
        let case = Self { ways, shape, free: free_bytes(dir)?, direct, commits: FEWEST };
        require_room(case.room().saturating_mul(FEWEST), shape.limits, dir)?;
        Ok(case)
    }

    /// Returns the maximum number of bytes that one record of each slot takes in the file, over all
    /// ways.
    fn room(&self) -> u64 {
        let of_record = self.ways.iter().map(|way| way.room(self.shape.size)).max().unwrap_or(0);
        (of_record as u64).saturating_mul(self.shape.slots as u64)
    }
}

impl Bench for LogCase {
    fn takes(&self, index: usize, _: &str) -> bool {
        self.direct || !self.ways[index].direct()
    }

    fn prepare(&mut self, _: &Place<'_>, _: Stage, operations: usize) -> Result<()> {
        let most = FILE_MAX.min(self.free / 2) / self.room().max(1);
        self.commits = (operations as u64 / self.shape.slots as u64).min(most).max(FEWEST);
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (way, CommitShape { slots, in_flight, size, limits }) = (self.ways[turn.index], self.shape);
        // Different records for each verified way, so that no way finds those of the previous one.
        let seed = if turn.verifies() { turn.index as u64 + 1 } else { 0 };
        let in_flight = if way.pipelines() { in_flight } else { 1 };
        let (writers, commits) = (slots / in_flight, self.commits * in_flight as u64);
        let (mut sample, file_bytes) =
            Appending { writers, in_flight, size, commits, pace: None, seed, limits }.by(way, turn)?;
        // Includes the padding of blocks. Not every way knows this number.
        if let Some(bytes) = file_bytes {
            sample.tell("file_bytes_per_byte", Figure::Ratio(bytes as f64, sample.bytes as f64));
        }
        if let Some(Transfers { writes, written_bytes, .. }) = sample.transfers {
            sample.tell("device_writes_per_op", Figure::Ratio(writes as f64, sample.operations as f64));
            sample.tell("device_bytes_per_byte", Figure::Ratio(written_bytes as f64, sample.bytes as f64));
        }
        Ok(sample)
    }
}

/// Records that a round appends to a new file.
pub(super) struct Appending<'a> {
    pub writers: usize,
    pub in_flight: usize,
    pub size: usize,
    pub commits: u64,
    pub pace: Option<&'a Pace>,
    /// Determines the records' bytes, together with the run's seed.
    pub seed: u64,
    /// Options that make it need less room, as an error names them.
    pub limits: &'static str,
}

impl Appending<'_> {
    /// Appends the records, and reads them back. Also returns the bytes that they took in the file.
    pub(super) fn by(self, way: Part<dyn LogWay>, turn: &Turn<'_>) -> Result<(Sample, Option<u64>)> {
        let Self { writers, in_flight, size, commits, pace, seed, limits } = self;
        let records = Records::new(turn.options.seed.wrapping_add(seed));
        let all = if pace.is_some() { commits } else { commits * writers as u64 };
        let (room, folder, cancel) = (way.room(size) as u64 * all, turn.dir(), turn.cancel);
        let failed = |error| turn.failed_or_full(&error, room, limits, folder);
        let mut file = testfile::create_nameless(folder)?;
        zeros(&mut file, room, cancel).map_err(failed)?;
        if turn.interrupted() {
            return Err(Error::interrupted());
        }
        // Otherwise the first direct write to a page would have to drop the page.
        if way.direct() {
            sys::drop_cache(&file).map_err(failed)?;
        }
        let (file, path) = (&file, &*sys::path_of(&file));
        let job = Commits { file, path, folder, writers, in_flight, size, commits, pace, records, cancel };
        let found = Mutex::new(HashSet::new());
        let holds = |number: u64, record: &[u8]| {
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
            records.holds(number, record)
        };
        // One that has not counted a write yet may count none.
        let device = device_under(file).filter(|name| Transfers::of(name).is_some_and(|all| all.written_bytes > 0));
        let outcome = alone(turn.check(&holds), |round| {
            round.count_transfers(device.as_deref());
            way.commits(&job, round)
        });
        let (sample, file_bytes) = turn.sample(outcome, failed)?;
        turn.require("commits", &sample, (all, all * size as u64))?;
        let differs = |found: &&Sampled| found.len != size || found.crc != records.checksum(size, found.offset);
        if let Some(number) = sample.wrong.or_else(|| Some(sample.sampled.iter().find(differs)?.offset)) {
            let (writer, sequence) = (number >> 32, number & u64::from(u32::MAX));
            return Err(turn.failed(format!("record {sequence} of writer {writer} is missing or wrong")));
        }
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        if turn.verifies() && found != all {
            return Err(turn.failed(format!("it found {found} of its {all} records")));
        }
        if !turn.verifies() && room > 0 && sample.sampled.is_empty() {
            return Err(turn.failed("it found none of its records in a timed round"));
        }
        turn.require_on_device(sample.bytes, sample.transfers)?;
        // Done here, so that the next way does not pay for it.
        file.set_len(0).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok((sample, file_bytes))
    }
}

/// Writes and syncs `room` zeros. Writes to allocated but unwritten blocks are as slow as to a
/// growing file.
fn zeros(file: &mut File, room: u64, cancel: &AtomicBool) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    for offset in (0..room).step_by(zeros.len()) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(());
        }
        file.write_all(&zeros[..zeros.len().min((room - offset) as usize)])?;
        if (offset + zeros.len() as u64) % SYNC_EVERY == 0 {
            file.sync_data()?;
        }
    }
    file.sync_all()
}
