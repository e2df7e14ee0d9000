//! Properties that redb's own tests of backends do not cover; `suites/run redb` runs those.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Bound;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nowait::sim::{Faults, Sim};
use nowait::{Engine, File, Nowait, OpenOptions};
use nowait_redb::NowaitBackend;
use redb::{
    BackendError, CommitError, ConcurrencyMode, Database, DatabaseError, ReadableDatabase, ReadableTable,
    StorageBackend, StorageError, TableDefinition,
};
use tempfile::TempDir;

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("table");

fn temporary() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("database.redb");
    (dir, path)
}

fn on_nowait(path: &Path) -> Result<Database, DatabaseError> {
    Database::builder().create_with_backend(NowaitBackend::create(path).unwrap())
}

fn insert(database: &Database, key: u64, value: &[u8]) {
    let write = database.begin_write().unwrap();
    write.open_table(TABLE).unwrap().insert(key, value).unwrap();
    write.commit().unwrap();
}

fn contents(database: &impl ReadableDatabase) -> BTreeMap<u64, Vec<u8>> {
    entries(&database.begin_read().unwrap().open_table(TABLE).unwrap())
}

fn entries(table: &impl ReadableTable<u64, &'static [u8]>) -> BTreeMap<u64, Vec<u8>> {
    let entries = table.iter().unwrap().map(|entry| entry.unwrap());
    entries.map(|(key, value)| (key.value(), value.value().to_vec())).collect()
}

#[test]
fn file_and_locks_are_those_of_redbs_own_backend() {
    let (_dir, path) = temporary();
    let database = on_nowait(&path).unwrap();
    insert(&database, 1, b"by nowait");
    assert!(matches!(Database::create(&path), Err(DatabaseError::DatabaseAlreadyOpen)));
    assert!(matches!(redb::ReadOnlyDatabase::open(&path), Err(DatabaseError::DatabaseAlreadyOpen)));
    drop(database);

    let database = Database::create(&path).unwrap();
    assert_eq!(contents(&database)[&1], b"by nowait");
    insert(&database, 2, b"by redb");
    assert!(matches!(on_nowait(&path), Err(DatabaseError::DatabaseAlreadyOpen)));
    drop(database);
    assert_eq!(contents(&on_nowait(&path).unwrap())[&2], b"by redb");
}

#[test]
fn locks_end_with_the_database_though_the_file_is_still_open() {
    let (_dir, path) = temporary();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&path).wait().unwrap();
    let database = Database::builder().create_with_backend(NowaitBackend::new(file.clone()).unwrap()).unwrap();
    assert!(matches!(Database::create(&path), Err(DatabaseError::DatabaseAlreadyOpen)));
    drop(database);
    drop(Database::create(&path).unwrap());
    drop(file);
}

#[test]
fn a_reader_of_redbs_own_backend_follows_a_writer_on_nowait() {
    let (_dir, path) = temporary();
    let mut builder = Database::builder();
    builder.set_concurrency_mode(ConcurrencyMode::SingleWriter);
    let writer = builder.create_with_backend(NowaitBackend::create(&path).unwrap()).unwrap();
    insert(&writer, 0, b"");
    let stock = builder.open_read_only(&path).unwrap();
    let on_nowait = builder.open_read_only_with_backend(NowaitBackend::open_read_only(&path).unwrap()).unwrap();
    for key in 1..100 {
        insert(&writer, key, &[key as u8; 3000]);
        assert_eq!(contents(&stock).len(), key as usize + 1);
        assert_eq!(contents(&on_nowait).len(), key as usize + 1);
    }
}

#[test]
fn a_read_beyond_the_end_is_an_error_with_path_and_range() {
    let (_dir, path) = temporary();
    let backend = NowaitBackend::create(&path).unwrap();
    backend.write(0, &[7; 100]).unwrap();
    let mut bytes = [0; 64];
    let error = backend.read(50, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    let text = error.to_string();
    assert!(text.contains("database.redb") && text.contains("50"), "{text}");
    backend.set_len(200).unwrap();
    backend.read(50, &mut bytes).unwrap();
    assert_eq!((bytes[..50].to_vec(), bytes[50..].to_vec()), (vec![7; 50], vec![0; 14]));
}

#[test]
fn a_closed_file_is_refused() {
    let (_dir, path) = temporary();
    let file = File::create_new(&path).wait().unwrap();
    let backend = NowaitBackend::new(file.clone()).unwrap();
    file.close().unwrap();
    assert!(backend.sync_data().is_err());
    assert!(backend.read(0, &mut [0; 1]).is_err());
    assert!(backend.write(0, &[0; 1]).is_err());
}

/// The name that a crash could undo is in the directory of the link's target.
#[test]
fn a_link_to_a_new_file_leads_to_the_directory_that_is_synced() {
    let (_dir, path) = temporary();
    let file = std::fs::File::create_new(&path).unwrap();
    // A link whose own directory cannot be synced.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let database = Database::builder().create_with_backend(NowaitBackend::create(link).unwrap()).unwrap();
    insert(&database, 1, b"1");
}

#[test]
fn operations_are_those_of_the_files_instance() {
    let (_dir, path) = temporary();
    let nowait = Nowait::builder().build().unwrap();
    let file = OpenOptions::new().read(true).write(true).create(true).open_in(&nowait, &path).wait().unwrap();
    let database = Database::builder().create_with_backend(NowaitBackend::new(file).unwrap()).unwrap();
    let before = nowait.stats().ended();
    insert(&database, 1, &[1; 10_000]);
    assert!(nowait.stats().ended() > before);
}

const FILE: &str = "/database.redb";

fn on(sim: &Sim) -> Nowait {
    Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap()
}

fn simulated(sim: &Sim) -> Database {
    Database::builder().create_with_backend(NowaitBackend::create_in(&on(sim), FILE).unwrap()).unwrap()
}

#[test]
fn a_simulated_file_has_no_locks() {
    let backend = NowaitBackend::create_in(&on(&Sim::new(1)), FILE).unwrap();
    assert!(matches!(backend.try_lock_range(Bound::Unbounded, Bound::Unbounded), Err(BackendError::Unsupported)));
    backend.close().unwrap();
}

#[test]
fn a_failed_sync_fails_later_ones_of_the_file() {
    let sim = Sim::new(1);
    let file = OpenOptions::new().read(true).write(true).create(true).open_in(&on(&sim), FILE).wait().unwrap();
    let database = Database::builder().create_with_backend(NowaitBackend::new(file.clone()).unwrap()).unwrap();
    insert(&database, 1, b"kept");
    let mut faults = Faults::default();
    faults.writeback_error = 1.0;
    sim.set_faults(faults);
    let write = database.begin_write().unwrap();
    write.open_table(TABLE).unwrap().insert(2, &[2; 5000][..]).unwrap();
    write.commit().unwrap_err();
    drop(database);

    // The disk works again, but may lack pages that reads return.
    sim.set_faults(Faults::default());
    let backend = NowaitBackend::new(file.clone()).unwrap();
    backend.sync_data().unwrap_err();
    assert!(Database::builder().create_with_backend(backend).is_err());
    assert!(file.acknowledge_sync_failure().is_some());
    NowaitBackend::new(file).unwrap().sync_data().unwrap();
}

/// Random commits, and a crash after one that may have failed: it happened, or did not if it failed, and
/// earlier ones survive.
#[test]
fn what_was_committed_survives_a_crash() {
    let (mut happened, mut did_not) = (0, 0);
    for seed in 1..=60 {
        let sim = Sim::new(seed);
        let database = simulated(&sim);
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        // Creates the table.
        insert(&database, 0, b"");
        let mut model = BTreeMap::from([(0, Vec::new())]);
        let commits = 1 + random(12);
        for commit in 0..=commits {
            let before = model.clone();
            let write = database.begin_write().unwrap();
            {
                let mut table = write.open_table(TABLE).unwrap();
                for _ in 0..=random(20) {
                    let (key, value) = (random(40), vec![commit as u8; random(3000) as usize]);
                    match random(4) {
                        0 => drop(table.remove(key).unwrap()),
                        _ => drop(table.insert(key, &value[..]).unwrap()),
                    }
                }
                model = entries(&table);
            }
            if commit < commits {
                write.commit().unwrap();
                continue;
            }
            // The last commit may fail on the way, and then the disk crashes.
            let mut faults = Faults::default();
            faults.io_error = 0.1;
            sim.set_faults(faults);
            let committed = match write.commit() {
                Ok(()) => true,
                Err(CommitError::Storage(StorageError::Io(_))) => false,
                Err(error) => panic!("seed {seed}: {error}"),
            };
            let after = sim.crash_at_random(seed);
            after.set_faults(Faults::default());
            let mut recovered = simulated(&after);
            assert!(recovered.check_integrity().unwrap_or_else(|error| panic!("seed {seed}: {error}")));
            match contents(&recovered) {
                found if found == model => happened += 1,
                found if found == before && !committed => did_not += 1,
                found => {
                    panic!("seed {seed}: {} entries, of neither {} nor {}", found.len(), before.len(), model.len())
                }
            }
        }
    }
    assert!(happened > 5 && did_not > 5, "{happened} happened, {did_not} did not");
}
