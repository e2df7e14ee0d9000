//! Calls that `std::fs` and `std::fs::File` have: each is answered as std answers it, in every way
//! of calling. `files_linux.rs` tests what only Linux has.

use std::fs as std_fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::Way;
use crate::common::mounts::temp_dir;
use nowait::sim::{Sim, Unsynced};
use nowait::{Engine, Error, ErrorKind, File, Nowait, OpenOptions, RangeLock, TryLockError, fs};

pub(crate) fn folder() -> tempfile::TempDir {
    temp_dir()
}

/// Each kernel engine that can be had here.
pub(crate) fn instances() -> Vec<Nowait> {
    let builder = |engine| Nowait::builder().engine(engine);
    let builders = [builder(Engine::Auto), builder(Engine::Aio), builder(Engine::Pool).pool_threads_max(1)];
    builders.into_iter().filter_map(|builder| builder.build().ok()).collect()
}

pub(crate) fn on_each(test: impl Fn(&Nowait, Way, &Path)) {
    for nowait in instances() {
        for way in Way::ALL {
            test(&nowait, way, folder().path());
        }
    }
}

#[test]
fn text_is_read_if_it_is_text() {
    on_each(|nowait, way, folder| {
        let path = folder.join("file");
        std_fs::write(&path, "Größe: 3 µm").unwrap();
        assert_eq!(way.run_future(nowait.fs().read_to_string(&path)).unwrap(), "Größe: 3 µm");
        assert_eq!(fs::read_to_string(&path).wait().unwrap(), "Größe: 3 µm");
        std_fs::write(&path, b"abc\xff").unwrap();
        let error = way.run_future(nowait.fs().read_to_string(&path)).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidData, Some(&*path)));
        assert!(error.to_string().contains("first 3 bytes"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std_fs::read_to_string(&path).unwrap_err().kind());
    });
}

/// Without syncs no engine gets a sync.
#[test]
fn a_replaced_file_that_need_not_be_durable_is_not_synced() {
    let sim = Sim::new(1);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    fs::AtomicOptions::new().durable(false).write_in(&nowait, "file", "contents").wait().unwrap();
    assert_eq!(nowait.fs().read("file").wait().unwrap(), b"contents");
    let after_the_worst_crash = || sim.crash(|_, _| false).contents("file");
    assert_eq!(after_the_worst_crash(), None, "its name is not durable");
    fs::AtomicOptions::new().write_in(&nowait, "file", "contents").wait().unwrap();
    assert_eq!(after_the_worst_crash(), Some(b"contents".to_vec()));
    let mut keeps = fs::AtomicOptions::new();
    let error = keeps.keep_mode_and_owner(true).write_in(&nowait, "file", "new").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// One sync of the directory makes the names of several files durable.
#[test]
fn a_replaced_file_may_leave_the_sync_of_its_directory_to_another() {
    let sim = Sim::new(1);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let files = ["one", "two"];
    let is_of_a_name = |change: &Unsynced| !matches!(change, Unsynced::Write { .. } | Unsynced::Length { .. });
    let after_a_crash = |names: bool| {
        let disk = sim.crash(|change, _| names && is_of_a_name(change));
        files.map(|file| disk.contents(file))
    };
    for file in files {
        nowait.fs().write_atomic(file, "old").wait().unwrap();
    }
    for file in files {
        fs::AtomicOptions::new().sync_directory(false).write_in(&nowait, file, "new").wait().unwrap();
    }
    assert_eq!(after_a_crash(false), files.map(|_| Some(b"old".to_vec())), "no name is durable");
    // The contents were synced before the names changed.
    assert_eq!(after_a_crash(true), files.map(|_| Some(b"new".to_vec())));
    nowait.fs().sync_dir(".").wait().unwrap();
    assert_eq!(after_a_crash(false), files.map(|_| Some(b"new".to_vec())));
}

/// Types that users share between threads: in a server's state, or as a boxed writer.
#[test]
fn all_types_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    use nowait::stream::{AtomicWriter, Cursor, Reader, Writer};
    shared::<(File, Nowait, OpenOptions, nowait::Error, nowait::BufferError<Vec<u8>>, nowait::Buf, nowait::Lent)>();
    shared::<(Reader, Writer, Cursor, AtomicWriter, fs::AtomicOptions, fs::Dir, fs::DirEntry)>();
    shared::<(nowait::Gathered, nowait::map::Map, nowait::Stats, nowait::Builder, Engine, Sim)>();
    // What awaits them holds them.
    fn sent<T: Send>() {}
    sent::<(
        nowait::Operation<'static, nowait::Result<File>>,
        nowait::Write<'static, nowait::BufferResult<Vec<u8>>>,
        nowait::Started<nowait::Result<File>>,
        nowait::Steps<nowait::Result<()>>,
        nowait::Gather<'static>,
    )>();
}

#[test]
fn on_the_shared_instance() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, "some bytes").wait().unwrap();
    assert_eq!(fs::read(&path).wait().unwrap(), b"some bytes");
    fs::write_atomic(&path, "others").wait().unwrap();
    assert_eq!(fs::read(&path).wait().unwrap(), b"others");
    assert!(fs::exists(&path).wait().unwrap());
    let file = File::create(&path).wait().unwrap();
    assert_eq!(file.size().wait().unwrap(), 0);
    assert_eq!(File::create_new(&path).wait().unwrap_err().kind(), ErrorKind::AlreadyExists);
    let file = File::options().read(true).write(true).open(&path).wait().unwrap();
    file.write_all_at([b'x'; 3], 0).wait().unwrap();
    file.write_all_at(Arc::new(vec![b'y'; 2]), 0).wait().unwrap();
    assert_eq!(file.read_at([0; 5], 0).wait().unwrap(), (3, *b"yyx\0\0"));
    file.write_all_at("abc", 0).wait().unwrap();
    assert_eq!(file.read_exact_at(vec![0; 2], 1).wait().unwrap(), b"bc");
    let error = file.read_exact_at(vec![0; 3], 1).wait().unwrap_err();
    assert_eq!((error.error.kind(), error.buffer), (ErrorKind::UnexpectedEof, vec![b'b', b'c', 0]));
}

pub(crate) fn conflicts(lock: Result<(), TryLockError>) -> bool {
    matches!(lock, Err(TryLockError::WouldBlock))
}

#[test]
fn locks_exclude_others() {
    for nowait in instances() {
        let folder = folder();
        let path = folder.path().join("file");
        std_fs::write(&path, "").unwrap();
        let open = || OpenOptions::new().read(true).open_in(&nowait, &path).wait().unwrap();
        let (first, second) = (open(), open());
        assert!(first.try_lock().is_ok() && first.clone().try_lock().is_ok());
        assert!(conflicts(second.try_lock()) && conflicts(second.try_lock_shared()));
        first.unlock().unwrap();
        assert!(first.try_lock_shared().is_ok() && second.try_lock_shared().is_ok());
        assert!(conflicts(second.try_lock()));
        let refused = second.try_lock().unwrap_err();
        assert!(refused.to_string().contains("another open of the file"), "{refused}");
        assert_eq!(std::io::Error::from(refused.clone()).kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(Error::from(refused).kind(), ErrorKind::WouldBlock);
        first.clone().close().unwrap();
        assert_eq!(Error::from(first.try_lock().unwrap_err()).kind(), ErrorKind::Closed);
    }
}

/// Symptom: a name of more than 233 bytes was too long with what made it temporary.
#[test]
fn long_names_are_replaced() {
    let folder = folder();
    let path = folder.path().join("n".repeat(255));
    fs::write_atomic(&path, "contents").wait().unwrap();
    assert_eq!(std_fs::read(&path).unwrap(), b"contents");
    assert_eq!(std_fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_simulator_has_files_and_directories_only() {
    let sim = Sim::new(1);
    sim.create("file", vec![1; 100]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    let file = OpenOptions::new().read(true).open_in(&nowait, "file").wait().unwrap();
    let kinds = [
        nowait.fs().metadata("file").wait().unwrap_err().kind(),
        nowait.fs().copy("file", "other").wait().unwrap_err().kind(),
        file.metadata().wait().unwrap_err().kind(),
        Error::from(file.try_lock().unwrap_err()).kind(),
        Error::from(file.try_lock_range(RangeLock::Shared, 0, 0).unwrap_err()).kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Unsupported; 5]);
    assert!(file.into_std().is_err());
    assert_eq!(nowait.fs().read("file").wait().unwrap(), [1; 100]);
}
