//! Properties that turso's own tests do not cover; `suites/run turso` runs those.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nowait::{Engine, Nowait};
use nowait_turso::NowaitIo;
use tempfile::TempDir;
use turso_core::io::FileSyncType;
use turso_core::{
    Buffer, Completion, CompletionError, ConnectOpts, Connection, Database, IO, LimboError, OpenFlags, PlatformIO,
    SqliteDialect, StepResult,
};

fn temporary() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("database.db");
    (dir, path)
}

fn open(io: Arc<dyn IO>, path: &Path) -> turso_core::Result<Arc<Connection>> {
    let database = Database::open_file(io, path.to_str().unwrap(), Arc::new(SqliteDialect))?;
    database.connect(ConnectOpts::new())
}

fn numbers(connection: &Arc<Connection>, query: &str) -> Vec<i64> {
    let rows = connection.prepare(query).unwrap().run_collect_rows().unwrap();
    rows.iter().map(|row| row[0].as_int().unwrap()).collect()
}

/// Operations on these engines are in flight when a call returns.
fn slow_io() -> NowaitIo {
    NowaitIo::new_in(&Nowait::builder().engine(Engine::Pool).build().unwrap())
}

fn page(byte: u8, length: usize) -> Arc<Buffer> {
    Arc::new(Buffer::new(vec![byte; length]))
}

fn ignored() -> Completion {
    Completion::new_write(|_| {})
}

#[test]
fn either_io_opens_a_database_of_the_other_on_each_engine() {
    for engine in [Engine::Auto, Engine::Pool] {
        let (_dir, path) = temporary();
        let nowait = Nowait::builder().engine(engine).build().unwrap();
        let on_nowait = || -> Arc<dyn IO> { Arc::new(NowaitIo::new_in(&nowait)) };
        let blocking = || -> Arc<dyn IO> { Arc::new(NowaitIo::new_in(&nowait).blocking()) };
        let stock = || -> Arc<dyn IO> { Arc::new(PlatformIO::new().unwrap()) };
        open(on_nowait(), &path).unwrap().execute("CREATE TABLE t (x INTEGER)").unwrap();
        for (round, io) in [on_nowait(), stock(), blocking(), stock(), on_nowait()].into_iter().enumerate() {
            let connection = open(io, &path).unwrap();
            assert_eq!(numbers(&connection, "SELECT x FROM t"), (0..round as i64).collect::<Vec<_>>());
            connection.execute(format!("INSERT INTO t VALUES ({round})")).unwrap();
        }
        assert!(nowait.stats().ended() > 10);
    }
}

/// Run as a process by the next test. Its exit code says whether the database can be opened.
#[test]
fn opens_in_another_process() {
    let Some(path) = std::env::var_os("TURSO_PATH") else { return };
    let io = Arc::new(PlatformIO::new().unwrap());
    match open(io, path.as_ref()) {
        Err(LimboError::LockingError(_)) => std::process::exit(11),
        opened => drop(opened.unwrap()),
    }
}

#[test]
fn the_lock_excludes_other_processes_until_the_database_is_dropped() {
    let (_dir, path) = temporary();
    let exit = || {
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "opens_in_another_process"]).env("TURSO_PATH", &path);
        other.output().unwrap().status.code()
    };
    let connection = open(Arc::new(slow_io()), &path).unwrap();
    connection.execute("CREATE TABLE t (x INTEGER)").unwrap();
    assert_eq!(exit(), Some(11));
    drop(connection);
    assert_eq!(exit(), Some(0));
    // No descriptor of the first database is closed after the second one has locked the file.
    let _connection = open(Arc::new(slow_io()), &path).unwrap();
    assert_eq!(exit(), Some(11));
}

#[test]
fn descriptors_are_closed_on_return_of_the_drop() {
    let (_dir, path) = temporary();
    let descriptors = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|link| link == path)).count()
    };
    for _ in 0..100 {
        let file = slow_io().open_file(path.to_str().unwrap(), OpenFlags::Create, false).unwrap();
        assert_eq!(descriptors(), 1);
        // In flight when the file is dropped, as after `cancel`.
        drop(file.pwrite(0, page(1, 100_000), ignored()).unwrap());
        drop(file.sync(Completion::new_sync(|_| {}), FileSyncType::Fsync).unwrap());
        drop(file);
        assert_eq!(descriptors(), 0);
    }
}

#[test]
fn step_waits_for_a_completion() {
    let (_dir, path) = temporary();
    let io = slow_io();
    let file = io.open_file(path.to_str().unwrap(), OpenFlags::Create, false).unwrap();
    io.wait_for_completion(file.pwritev(10, vec![page(1, 5000), page(2, 1), page(3, 70_000)], ignored()).unwrap())
        .unwrap();
    assert_eq!(file.size().unwrap(), 75_011);
    // More than one call takes.
    let many = file.pwritev(75_011, (0..3000).map(|number| page(number as u8, 10)).collect(), ignored());
    io.wait_for_completion(many.unwrap()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[75_011 + 29_980..], [[182; 10], [183; 10]].concat());
    let read = Completion::new_read(page(9, 6000), |read| {
        let (buffer, bytes) = read.unwrap();
        assert_eq!(bytes, 6000);
        assert_eq!(buffer.as_slice()[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(buffer.as_slice()[5009..5012], [1, 2, 3]);
        None
    });
    let sync = file.sync(Completion::new_sync(|_| {}), FileSyncType::Fsync).unwrap();
    let read = file.pread(0, read).unwrap();
    let mut steps = 0;
    while !(sync.finished() && read.finished()) {
        io.step().unwrap();
        steps += 1;
    }
    // One for each, and one that found what had ended before.
    assert!(steps <= 3, "{steps} steps");
    assert!(sync.succeeded() && read.succeeded());
    // Nothing is in flight.
    io.step().unwrap();
    io.wait_for_completion(file.truncate(20, Completion::new_trunc(|_| {})).unwrap()).unwrap();
    let short = Completion::new_read(page(9, 100), |read| {
        assert_eq!(read.unwrap().1, 10);
        None
    });
    io.wait_for_completion(file.pread(10, short).unwrap()).unwrap();
    assert_eq!(file.size().unwrap(), 20);
}

/// As a database that is attached to one with another IO, which alone is stepped.
#[test]
fn completions_are_called_though_no_thread_steps() {
    let (_dir, path) = temporary();
    let file = slow_io().open_file(path.to_str().unwrap(), OpenFlags::Create, false).unwrap();
    let sync = file.sync(Completion::new_sync(|_| {}), FileSyncType::Fsync).unwrap();
    nowait::block_on(sync).unwrap();
}

#[test]
fn blocking_calls_have_ended_on_return() {
    let (_dir, path) = temporary();
    let io = slow_io().blocking();
    let file = io.open_file(path.to_str().unwrap(), OpenFlags::Create, false).unwrap();
    assert!(file.pwritev(0, vec![page(1, 5000), page(2, 5000)], ignored()).unwrap().succeeded());
    assert!(file.sync(Completion::new_sync(|_| {}), FileSyncType::Fsync).unwrap().succeeded());
    assert!(file.truncate(6000, Completion::new_trunc(|_| {})).unwrap().succeeded());
    let read = Completion::new_read(page(9, 10_000), |read| {
        let (buffer, bytes) = read.unwrap();
        assert_eq!((bytes, &buffer.as_slice()[4999..5001]), (6000, &[1, 2][..]));
        None
    });
    assert!(file.pread(0, read).unwrap().succeeded());
}

#[test]
fn a_completion_that_panics_fails() {
    let (_dir, path) = temporary();
    let io = slow_io();
    let file = io.open_file(path.to_str().unwrap(), OpenFlags::Create, false).unwrap();
    let panics = Completion::new_sync(|synced| assert!(synced.is_err(), "as intended by this test"));
    assert!(io.wait_for_completion(file.sync(panics, FileSyncType::Fsync).unwrap()).is_err());
}

#[test]
fn errors_are_those_of_the_completion() {
    let (_dir, path) = temporary();
    for io in [NowaitIo::new(), slow_io(), slow_io().blocking()] {
        let opened = io.open_file(path.join("none").to_str().unwrap(), OpenFlags::None, false);
        let not_found = CompletionError::IOError(ErrorKind::NotFound, "open");
        assert!(matches!(opened, Err(LimboError::CompletionError(error)) if error == not_found));

        let full = io.open_file("/dev/full", OpenFlags::NoLock, false).unwrap();
        let write = full.pwrite(0, page(1, 4096), ignored()).unwrap();
        let written = io.wait_for_completion(write.clone());
        assert!(matches!(written, Err(LimboError::CompletionError(_))));
        assert_eq!(write.get_error(), Some(CompletionError::IOError(ErrorKind::StorageFull, "pwrite")));

        std::fs::write(&path, b"bytes").unwrap();
        let file = io.open_file(path.to_str().unwrap(), OpenFlags::ReadOnly, false).unwrap();
        assert!(io.wait_for_completion(file.pwrite(0, page(1, 1), ignored()).unwrap()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
        io.remove_file(path.to_str().unwrap()).unwrap();
        assert!(io.remove_file(path.to_str().unwrap()).is_err());
    }
}

/// The name that a crash could undo is in the directory of the link's target.
#[test]
fn a_link_to_a_new_file_leads_to_the_directory_that_is_synced() {
    let (_dir, path) = temporary();
    let file = std::fs::File::create_new(&path).unwrap();
    // A link whose own directory cannot be synced.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let io = NowaitIo::new();
    let file = io.open_file(&link, OpenFlags::Create, false).unwrap();
    let sync = || io.wait_for_completion(file.sync(Completion::new_sync(|_| {}), FileSyncType::Fsync).unwrap());
    sync().unwrap();
    sync().unwrap();
}

/// An earlier process may have created the file, and been killed before it synced the directory.
#[test]
fn the_first_sync_of_an_open_file_also_syncs_its_directory() {
    let (dir, _) = temporary();
    let (there, away) = (dir.path().join("there"), dir.path().join("away"));
    std::fs::create_dir(&there).unwrap();
    let path = there.join("database.db");
    std::fs::write(&path, b"contents").unwrap();
    for io in [slow_io(), slow_io().blocking()] {
        let file = io.open_file(path.to_str().unwrap(), OpenFlags::Create, false).unwrap();
        let sync = || io.wait_for_completion(file.sync(Completion::new_sync(|_| {}), FileSyncType::Fsync)?);
        std::fs::rename(&there, &away).unwrap();
        assert!(sync().is_err());
        std::fs::rename(&away, &there).unwrap();
        sync().unwrap();
        std::fs::rename(&there, &away).unwrap();
        sync().unwrap();
        std::fs::rename(&away, &there).unwrap();
    }
}

#[test]
fn threads_share_an_io() {
    let (_dir, path) = temporary();
    let io = Arc::new(slow_io());
    let database = Database::open_file(io, path.to_str().unwrap(), Arc::new(SqliteDialect)).unwrap();
    let connect = || database.connect(ConnectOpts::new()).unwrap();
    connect().execute("CREATE TABLE t (x INTEGER)").unwrap();
    thread::scope(|scope| {
        for number in 0..4 {
            let connection = connect();
            scope.spawn(move || {
                connection.set_busy_timeout(Duration::from_secs(60));
                for at in 0..25 {
                    connection.execute(format!("INSERT INTO t VALUES ({})", number * 25 + at)).unwrap();
                }
            });
        }
    });
    assert_eq!(numbers(&connect(), "SELECT x FROM t ORDER BY x"), (0..100).collect::<Vec<_>>());
}

/// While one statement waits for the disk, another one of the same thread goes on.
#[test]
fn a_statement_that_waits_blocks_no_other() {
    let (_dir, path) = temporary();
    let (_other_dir, other_path) = temporary();
    let io = Arc::new(slow_io());
    let connection = open(io.clone(), &path).unwrap();
    connection.execute("CREATE TABLE t (x INTEGER)").unwrap();
    let other = open(io.clone(), &other_path).unwrap();
    other.execute("CREATE TABLE t (x INTEGER)").unwrap();
    let mut insert = connection.prepare("INSERT INTO t VALUES (1)").unwrap();
    assert!(matches!(insert.step().unwrap(), StepResult::IO));
    other.execute("INSERT INTO t VALUES (2)").unwrap();
    insert.run_ignore_rows().unwrap();
    assert_eq!((numbers(&connection, "SELECT x FROM t"), numbers(&other, "SELECT x FROM t")), (vec![1], vec![2]));
}

#[test]
fn rows_that_exceed_memory_are_sorted_in_temporary_files() {
    let (_dir, path) = temporary();
    let nowait = Nowait::builder().build().unwrap();
    let connection = open(Arc::new(NowaitIo::new_in(&nowait)), &path).unwrap();
    connection.execute("PRAGMA cache_size = 200").unwrap();
    connection.execute("CREATE TABLE t (x INTEGER, y TEXT)").unwrap();
    connection.execute("INSERT INTO t VALUES (0, printf('%02000d', 0))").unwrap();
    for rows in (0..12).map(|doublings| 1 << doublings) {
        connection.execute(format!("INSERT INTO t SELECT {} - x, y FROM t", 2 * rows - 1)).unwrap();
    }
    let sorted = numbers(&connection, "SELECT x, y FROM t ORDER BY x");
    assert_eq!(sorted, (0..4096).collect::<Vec<_>>());
    assert!(nowait.stats().ended() > 100);
}
