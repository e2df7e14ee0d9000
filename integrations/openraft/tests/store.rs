//! What openraft's own test suite does not cover: restarts, crashes, and appends in flight.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use nowait::sim::Sim;
use nowait::{Engine, ErrorKind, Nowait, block_on};
use nowait_log::{Log, Scan, inspect, inspect_in};
use nowait_openraft::{LogStore, Options};
use openraft::storage::{RaftLogReaderExt, RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, Vote};

openraft::declare_raft_types!(Types: D = String, R = String);

fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn text(entry: &Entry<Types>) -> &str {
    match &entry.payload {
        EntryPayload::Normal(text) => text,
        _ => "",
    }
}

fn entry(term: u64, index: u64) -> Entry<Types> {
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(format!("{index} of term {term}")) }
}

/// An entry of several sectors.
fn long(term: u64, index: u64) -> Entry<Types> {
    let length = index as usize * 977 % 3000;
    Entry { log_id: id(term, index), payload: EntryPayload::Normal("x".repeat(length)) }
}

fn options() -> Options {
    Options::new().create(true).segment_bytes(64 << 10).first_segment_bytes(16 << 10)
}

fn ids(entries: &[Entry<Types>]) -> Vec<LogId<u64>> {
    entries.iter().map(|entry| entry.log_id).collect()
}

#[test]
fn all_of_it_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("raft");
    block_on(async {
        let mut store = LogStore::<Types>::open(&dir, &options()).await.unwrap();
        assert_eq!(store.read_vote().await.unwrap(), None);
        store.blocking_append((0..10).map(|index| entry(1, index))).await.unwrap();
        store.save_vote(&Vote::new(1, 7)).await.unwrap();
        store.save_vote(&Vote::new_committed(2, 1)).await.unwrap();
        store.truncate(id(1, 7)).await.unwrap();
        store.blocking_append([entry(2, 7), entry(2, 8)]).await.unwrap();
        store.save_committed(Some(id(2, 7))).await.unwrap();
        store.purge(id(1, 3)).await.unwrap();
        // The second time with everything in the log from the start.
        for life in 0..2 {
            let log = store.log().clone();
            drop(store);
            log.close().await.unwrap();
            store = LogStore::open(&dir, &options()).await.unwrap();
            let state = store.get_log_state().await.unwrap();
            assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(id(1, 3)), Some(id(2, 8))), "{life}");
            assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new_committed(2, 1)));
            assert_eq!(store.read_committed().await.unwrap(), Some(id(2, 7)));
            let entries = store.try_get_log_entries(..).await.unwrap();
            assert_eq!(entries, [entry(1, 4), entry(1, 5), entry(1, 6), entry(2, 7), entry(2, 8)]);
            assert_eq!(store.get_log_id(7).await.unwrap(), id(2, 7));
            assert!(store.get_log_id(3).await.is_err());
        }
        // A purge beyond the end, as after a snapshot of another node was installed.
        store.purge(id(5, 100)).await.unwrap();
        store.blocking_append([entry(5, 101)]).await.unwrap();
        drop(store);
        let mut store = reopened(&dir).await;
        let state = store.get_log_state().await.unwrap();
        assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(id(5, 100)), Some(id(5, 101))));
        assert_eq!(store.try_get_log_entries(0..).await.unwrap(), [entry(5, 101)]);
        assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new_committed(2, 1)));
    });
}

/// Opens a store again, once the log that was dropped is closed.
async fn reopened(dir: &Path) -> LogStore<Types> {
    loop {
        match LogStore::open(dir, &options()).await {
            Err(error) if error.kind() == ErrorKind::Locked => std::thread::yield_now(),
            store => return store.unwrap(),
        }
    }
}

#[test]
fn a_purge_frees_segments_but_keeps_the_vote() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("raft");
    let large = |index| Entry { log_id: id(1, index), payload: EntryPayload::Normal("x".repeat(1000)) };
    block_on(async {
        let mut store = LogStore::<Types>::open(&dir, &options()).await.unwrap();
        store.save_vote(&Vote::new(3, 2)).await.unwrap();
        for first in (0..500).step_by(50) {
            store.blocking_append((first..first + 50).map(large)).await.unwrap();
        }
        store.purge(id(1, 450)).await.unwrap();
        let log = store.log().clone();
        drop(store);
        log.close().await.unwrap();
        let found = inspect(&dir).await.unwrap();
        // Record 1 is the vote; 452 and 453 are the first entry that is left, and the state after it.
        assert!(found.first_lsn > 300, "{found:?}");
        let mut store = LogStore::<Types>::open(&dir, &options()).await.unwrap();
        assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new(3, 2)));
        assert_eq!(store.get_log_state().await.unwrap().last_purged_log_id, Some(id(1, 450)));
        assert_eq!(store.try_get_log_entries(..).await.unwrap().len(), 49);
        // With no entry left, the state is all that is needed.
        store.purge(id(1, 499)).await.unwrap();
        store.save_vote(&Vote::new(4, 2)).await.unwrap();
        let state = store.get_log_state().await.unwrap();
        assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(id(1, 499)), Some(id(1, 499))));
    });
}

#[test]
fn reads_go_forward_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("raft");
    block_on(async {
        let mut store = LogStore::<Types>::open(&dir, &options()).await.unwrap();
        for first in (0..3000).step_by(100) {
            store.blocking_append((first..first + 100).map(|index| entry(1, index))).await.unwrap();
            store.save_committed(Some(id(1, first))).await.unwrap();
        }
        let log = store.log().clone();
        drop(store);
        log.close().await.unwrap();
        let mut store = LogStore::<Types>::open(&dir, &options().scan(Scan::Tail)).await.unwrap();
        let mut readers = [store.get_log_reader().await, store.get_log_reader().await];
        let mut place = 1;
        for round in 0..200 {
            place = place * 48271 % 0x7fff_ffff;
            let (from, length) = (place % 3050, place % 7 * 40);
            let found = readers[round % 2].try_get_log_entries(from..from + length).await.unwrap();
            let expected: Vec<_> = (from..from + length).filter(|index| *index < 3000).collect();
            assert_eq!(found.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), expected);
            assert!(found.iter().all(|found| text(found) == text(&entry(1, found.log_id.index))));
        }
        assert_eq!(readers[0].try_get_log_entries(..).await.unwrap().len(), 3000);
        assert_eq!(readers[1].try_get_log_entries(2998..=2999).await.unwrap().len(), 2);
    });
}

/// As replication does, which goes on after the snapshot that a slow follower received.
#[test]
fn a_reader_continues_after_entries_that_were_purged() {
    let dir = tempfile::tempdir().unwrap();
    let large = |index| Entry { log_id: id(1, index), payload: EntryPayload::Normal("x".repeat(1000)) };
    block_on(async {
        let mut store = LogStore::<Types>::open(dir.path().join("raft"), &options()).await.unwrap();
        for first in (0..600).step_by(50) {
            store.blocking_append((first..first + 50).map(large)).await.unwrap();
        }
        let mut reader = store.get_log_reader().await;
        assert_eq!(reader.try_get_log_entries(0..5).await.unwrap().len(), 5);
        store.purge(id(1, 450)).await.unwrap();
        assert_eq!(ids(&reader.try_get_log_entries(440..453).await.unwrap()), [id(1, 451), id(1, 452)]);
    });
}

#[test]
fn a_limited_read_returns_some_entries() {
    let dir = tempfile::tempdir().unwrap();
    let large = |index| Entry { log_id: id(1, index), payload: EntryPayload::Normal("x".repeat(1 << 20)) };
    block_on(async {
        let options = Options::new().create(true).segment_bytes(16 << 20);
        let mut store = LogStore::<Types>::open(dir.path().join("raft"), &options).await.unwrap();
        store.blocking_append((0..10).map(large)).await.unwrap();
        let found = store.limited_get_log_entries(2, 9).await.unwrap();
        assert_eq!(ids(&found), [id(1, 2), id(1, 3), id(1, 4), id(1, 5)]);
        assert_eq!(store.limited_get_log_entries(9, 10).await.unwrap().len(), 1);
        assert_eq!(store.limited_get_log_entries(9, 9).await.unwrap().len(), 0);
        store.blocking_append((10..17_000).map(|index| entry(1, index))).await.unwrap();
        assert_eq!(store.limited_get_log_entries(10, 17_000).await.unwrap().len(), 16 << 10);
    });
}

#[test]
fn another_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    let (log, _) = Log::open(&dir, &options()).wait().unwrap();
    log.append(b"a line of a journal").wait().unwrap().wait().unwrap();
    log.close().wait().unwrap();
    let error = block_on(LogStore::<Types>::open(&dir, &options())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// A node that forgot its vote must not vote again.
#[test]
fn a_damaged_store_is_refused_whatever_the_options() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("raft");
    block_on(async {
        let mut store = LogStore::<Types>::open(&dir, &options()).await.unwrap();
        store.save_vote(&Vote::new(1, 7)).await.unwrap();
        for index in 0..4 {
            store.blocking_append([long(1, index)]).await.unwrap();
        }
        let log = store.log().clone();
        drop(store);
        log.close().await.unwrap();
    });
    let segments = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    for segment in segments {
        let mut bytes = std::fs::read(&segment).unwrap();
        let Some(at) = bytes.windows(4).position(|found| found == b"vote") else { continue };
        bytes[at] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
    }
    let error = block_on(LogStore::<Types>::open(&dir, &options().salvage(true))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

#[test]
fn a_store_is_only_created_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let error = block_on(LogStore::<Types>::open(dir.path().join("raft"), &Options::new())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

const DIR: &str = "/raft";

fn on(sim: &Sim) -> Nowait {
    Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap()
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn entries_in_flight_are_readable_and_not_acknowledged() {
    let sim = Sim::manual(1);
    let options = options().instance(&on(&sim)).maintenance(false);
    let mut store = block_on(LogStore::<Types>::open(DIR, &options)).unwrap();
    let mut reader = block_on(store.get_log_reader());
    {
        let mut append = pin!(store.blocking_append([entry(1, 0), entry(1, 1)]));
        // Nothing completes on this disk until it is stepped.
        for _ in 0..20 {
            assert!(poll(&mut append).is_pending());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(block_on(reader.try_get_log_entries(..)).unwrap(), [entry(1, 0), entry(1, 1)]);
        assert_eq!(block_on(reader.limited_get_log_entries(1, 2)).unwrap(), [entry(1, 1)]);
        loop {
            sim.step();
            if let Poll::Ready(result) = poll(&mut append) {
                break result.unwrap();
            }
        }
    }
    assert_eq!(store.log().durable_lsn(), 2);
    assert_eq!(block_on(reader.try_get_log_entries(..)).unwrap(), [entry(1, 0), entry(1, 1)]);
}

fn segments(sim: &Sim) -> Vec<PathBuf> {
    let mut names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    names.sort();
    names.into_iter().map(|name| Path::new(DIR).join(name)).collect()
}

/// Makes operations on all segments hang, or end.
fn hang(sim: &Sim, hangs: bool) {
    segments(sim).iter().for_each(|path| sim.set_hung(path, hangs));
}

/// A read waits for the disk while the entries that it looked up are replaced and freed.
#[test]
fn a_read_in_flight_returns_what_replaced_freed_entries() {
    let mut waited = 0;
    for seed in 1..=10 {
        let sim = Sim::new(seed);
        let options = options().instance(&on(&sim)).tail_bytes(0);
        let mut store = block_on(LogStore::<Types>::open(DIR, &options)).unwrap();
        for entries in [0..500, 500..501] {
            // With the second append the store drops what the first made durable.
            block_on(store.blocking_append(entries.map(|index| long(1, index)))).unwrap();
        }
        let mut reader = block_on(store.get_log_reader());
        // Those that the read begins with; the log writes to later ones.
        let segments = segments(&sim);
        segments[..segments.len() / 2].iter().for_each(|path| sim.set_hung(path, true));
        let mut read = pin!(reader.try_get_log_entries(100..500));
        if poll(&mut read).is_ready() {
            // The disk completed its reads at once.
            continue;
        }
        waited += 1;
        block_on(async {
            store.truncate(id(1, 450)).await.unwrap();
            store.blocking_append((450..500).map(|index| long(2, index))).await.unwrap();
            store.purge(id(2, 460)).await.unwrap();
        });
        segments.iter().for_each(|path| sim.set_hung(path, false));
        let found = block_on(read).unwrap();
        assert_eq!(ids(&found), (461..500).map(|index| id(2, index)).collect::<Vec<_>>(), "seed {seed}");
    }
    assert!(waited > 0);
}

/// What openraft may expect of a store.
#[derive(Clone, Default)]
struct Model {
    entries: BTreeMap<u64, LogId<u64>>,
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
}

/// Random calls, of which the last is cut off by a crash: what was acknowledged is there, and the
/// last call happened, did not, or did in part if it appended.
#[test]
fn what_was_acknowledged_survives_a_crash() {
    let (mut torn, mut in_part) = (0, 0);
    for seed in 1..=150 {
        let sim = Sim::new(seed);
        let options = options().instance(&on(&sim)).segment_bytes(16 << 10);
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut store = block_on(LogStore::<Types>::open(DIR, &options)).unwrap();
        let mut model = Model::default();
        let calls = 5 + random(30);
        for call in 0..=calls {
            let before = model.clone();
            let term = call / 3 + 1;
            let next = model
                .entries
                .last_key_value()
                .map(|(_, last)| *last)
                .max(model.purged)
                .map_or(0, |last| last.index + 1);
            let chosen = model.entries.keys().nth(random(model.entries.len() as u64 + 1) as usize).copied();
            let kind = random(8);
            let count = 1 + random(20);
            let new: Vec<_> = (next..next + count).map(|index| long(term, index)).collect();
            // Its write hangs, and the disk crashes meanwhile.
            let is_last = call == calls;
            hang(&sim, is_last);
            macro_rules! finish {
                ($call:expr) => {{
                    let mut future = pin!($call);
                    match is_last {
                        true => drop(poll(&mut future)),
                        false => block_on(future).unwrap(),
                    }
                }};
            }
            match (kind, chosen) {
                (0, _) => {
                    let vote = Vote::new(term, 1);
                    model.vote = Some(vote);
                    finish!(store.save_vote(&vote));
                }
                (1, Some(index)) => {
                    model.entries.split_off(&index);
                    finish!(store.truncate(id(term, index)));
                }
                (2, Some(index)) => {
                    model.purged = Some(model.entries[&index]);
                    model.entries = model.entries.split_off(&(index + 1));
                    finish!(store.purge(model.purged.unwrap()));
                }
                _ => {
                    model.entries.extend(new.iter().map(|entry| (entry.log_id.index, entry.log_id)));
                    finish!(store.blocking_append(new));
                }
            }
            if !is_last {
                continue;
            }
            for _ in 0..100 {
                match sim.pending() {
                    0 => std::thread::sleep(std::time::Duration::from_micros(100)),
                    _ => break,
                }
            }
            let crashed = sim.crash_at_random(seed * 31);
            hang(&sim, false);
            let what = format!("seed {seed}, {calls} calls, last {kind} {chosen:?}");
            torn += usize::from(block_on(inspect_in(&on(&crashed), DIR)).unwrap().torn.is_some());
            let options = self::options().instance(&on(&crashed)).create(false);
            let mut found = block_on(LogStore::<Types>::open(DIR, &options)).unwrap();
            let vote = block_on(found.read_vote()).unwrap();
            assert!(vote == before.vote || vote == model.vote, "{what}");
            let log_state = block_on(found.get_log_state()).unwrap();
            let purged = log_state.last_purged_log_id;
            assert!(purged == before.purged || purged == model.purged, "{what}");
            let entries = ids(&block_on(found.try_get_log_entries(..)).unwrap());
            let (old, new): (Vec<_>, Vec<_>) =
                (before.entries.values().copied().collect(), model.entries.values().copied().collect());
            let appended_in_part = new.starts_with(&entries) && entries.starts_with(&old);
            assert!(entries == old || entries == new || appended_in_part, "{what}: {entries:?} of {old:?} to {new:?}");
            in_part += usize::from(entries != old && entries != new);
            // It goes on from there.
            let last = log_state.last_log_id.map_or(0, |last| last.index + 1);
            block_on(found.blocking_append([entry(99, last)])).unwrap();
            assert_eq!(block_on(found.get_log_state()).unwrap().last_log_id, Some(id(99, last)), "{what}");
        }
    }
    println!("{torn} torn, {in_part} appended in part");
}
