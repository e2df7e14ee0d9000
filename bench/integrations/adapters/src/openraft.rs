//! Log storage of openraft: one file, as written by hand, and nowait's log.

mod plain;

use std::fmt::Debug;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nowait_bench::Result;
use nowait_measure::{Files, State, Work};
use nowait_openraft::{LogStore, Options};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, StorageError};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use self::plain::PlainStore;
use crate::{Cases, OrFailed, STOCK, make_anew, places, row};

openraft::declare_raft_types!(Types: D = String, R = String);

type Raft<T> = std::result::Result<T, StorageError<u64>>;

const ADAPTER: &str = "openraft";
const ENTRIES: u64 = 100_000;
const ENTRY_BYTES: usize = 200;
/// Entries of a large append, and of a read: openraft sends up to 300 at a time.
const BATCH: u64 = 64;

pub(crate) fn measure(cases: &mut Cases<'_>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().or_failed("start a runtime")?;
    for (batch, appends) in [(1, 400), (BATCH, 200)] {
        let work = Appends { runtime: &runtime, dir: cases.dir("openraft-appends")?, batch, appends, stores: None };
        cases.measure(ADAPTER, &format!("append {batch}"), work)?;
    }
    if cases.any(ADAPTER, &["read on hot", "read on cold", "read anywhere hot", "read anywhere cold"]) {
        let dir = cases.dir("openraft")?;
        let stores = Stores::open(&runtime, &dir)?;
        for way in 0..2 {
            let appended = stores.on(&runtime, way, Job::Append { first: 0, batch: 1000, appends: ENTRIES / 1000 });
            appended.or_failed("fill a log")?;
        }
        for (name, length) in [("read on", ENTRIES), ("read anywhere", BATCH)] {
            for (state, reads) in [(State::Hot, 1000), (State::Cold, 200)] {
                let reads = if length == BATCH { reads } else { 1 };
                let files = files(&dir)?;
                let seed = cases.run.seed();
                let work = Reads { runtime: &runtime, stores: &stores, files, state, reads, length, seed };
                cases.measure(ADAPTER, &format!("{name} {}", state.name()), work)?;
            }
        }
    }
    Ok(())
}

/// The files of both logs, once the log has prepared its next segment.
fn files(dir: &Path) -> Result<Files> {
    let is_preparing = || -> std::io::Result<bool> {
        let mut names = std::fs::read_dir(dir.join("nowait"))?;
        names.try_fold(false, |found, entry| Ok(found || entry?.path().extension().is_some_and(|end| end == "tmp")))
    };
    let begun = Instant::now();
    while is_preparing().or_failed("list the log's files")? && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(100));
    }
    Files::below(&[dir])
}

fn entry(index: u64) -> Entry<Types> {
    let text = row(index, ENTRY_BYTES).iter().map(|byte| char::from(b'a' + byte % 16)).collect();
    Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), index), payload: EntryPayload::Normal(text) }
}

/// A log in each way.
#[derive(Clone)]
struct Stores {
    plain: Arc<Mutex<PlainStore>>,
    nowait: Arc<Mutex<LogStore<Types>>>,
}

/// Work on a store.
#[derive(Clone)]
enum Job {
    /// Durable appends, one after the other, as openraft makes them.
    Append { first: u64, batch: u64, appends: u64 },
    /// Reads of `length` entries from each place, [`BATCH`] at a time.
    Read { places: Vec<u64>, length: u64 },
}

impl Stores {
    fn open(runtime: &Runtime, dir: &Path) -> Result<Stores> {
        let plain = PlainStore::create(&dir.join("plain")).or_failed("create a log by hand")?;
        let options = Options::new().create(true);
        let nowait =
            runtime.block_on(LogStore::open(dir.join("nowait"), &options)).or_failed("create a log of nowait")?;
        Ok(Stores { plain: Arc::new(Mutex::new(plain)), nowait: Arc::new(Mutex::new(nowait)) })
    }

    /// Runs a job in a task. Returns the sum of indexes and lengths of what it read.
    fn on(&self, runtime: &Runtime, way: usize, job: Job) -> Raft<u64> {
        let stores = self.clone();
        let task = async move {
            match way {
                STOCK => work(&mut *stores.plain.lock().await, job).await,
                _ => work(&mut *stores.nowait.lock().await, job).await,
            }
        };
        runtime.block_on(async { runtime.spawn(task).await }).expect("the task does not panic")
    }
}

async fn work<S: RaftLogStorage<Types> + Debug>(store: &mut S, job: Job) -> Raft<u64> {
    match job {
        Job::Append { first, batch, appends } => {
            for number in 0..appends {
                let first = first + number * batch;
                store.blocking_append((first..first + batch).map(entry)).await?;
            }
            Ok(0)
        }
        Job::Read { places, length } => {
            let (mut reader, mut sum) = (store.get_log_reader().await, 0);
            for place in places {
                for first in (place..place + length).step_by(BATCH as usize) {
                    let last = (first + BATCH).min(place + length);
                    for entry in reader.try_get_log_entries(first..last).await? {
                        let EntryPayload::Normal(text) = entry.payload else { continue };
                        sum += entry.log_id.index + text.len() as u64;
                    }
                }
            }
            Ok(sum)
        }
    }
}

struct Appends<'a> {
    runtime: &'a Runtime,
    dir: PathBuf,
    batch: u64,
    appends: u64,
    stores: Option<Stores>,
}

impl Work for Appends<'_> {
    type Answer = u64;

    fn operations(&self) -> u64 {
        self.appends
    }

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        if let Some(stores) = self.stores.take() {
            let log = self.runtime.block_on(async { stores.nowait.lock().await.log().clone() });
            drop(stores);
            self.runtime.block_on(log.close()).or_failed("close a log")?;
        }
        make_anew(&self.dir)?;
        self.stores = Some(Stores::open(self.runtime, &self.dir)?);
        Ok(())
    }

    fn run(&mut self, way: usize, _: u64) -> Result<(u64, u64)> {
        let job = Job::Append { first: 0, batch: self.batch, appends: self.appends };
        let stores = self.stores.as_ref().expect("prepared");
        let answer = stores.on(self.runtime, way, job).or_failed("append")?;
        Ok((answer, self.appends * self.batch * ENTRY_BYTES as u64))
    }
}

struct Reads<'a> {
    runtime: &'a Runtime,
    stores: &'a Stores,
    files: Files,
    state: State,
    reads: u64,
    length: u64,
    seed: u64,
}

impl Work for Reads<'_> {
    type Answer = u64;

    fn operations(&self) -> u64 {
        self.reads
    }

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        self.files.make(self.state)
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(u64, u64)> {
        let places = places(self.seed, round, ENTRIES - self.length + 1, self.reads);
        let read = self.stores.on(self.runtime, way, Job::Read { places, length: self.length });
        Ok((read.or_failed("read")?, self.reads * self.length * ENTRY_BYTES as u64))
    }
}
