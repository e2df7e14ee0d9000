//! What tantivy's own tests of directories do not show; those are run by `suites/run tantivy`.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use nowait::{Engine, Nowait};
use nowait_tantivy::NowaitDirectory;
use tantivy::collector::Count;
use tantivy::directory::error::{LockError, OpenDirectoryError, OpenReadError};
use tantivy::directory::{Directory, Lock, TerminatingWrite, WatchCallback};
use tantivy::query::QueryParser;
use tantivy::schema::{STORED, Schema, TEXT};
use tantivy::{Index, IndexWriter, doc};

fn write(directory: &dyn Directory, name: &str, bytes: &[u8]) {
    let mut file = directory.open_write(Path::new(name)).unwrap();
    file.write_all(bytes).unwrap();
    file.terminate().unwrap();
}

fn numbered(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8).collect()
}

#[test]
fn ranges_are_those_of_the_file_read_blocking_and_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open(dir.path()).unwrap();
    let copying = NowaitDirectory::open_copying(Nowait::shared(), dir.path()).unwrap();
    let bytes = numbered(3 << 20);
    let mut file = directory.open_write(Path::new("file")).unwrap();
    // Shorter and longer than the buffers on the way.
    for piece in [&bytes[..1], &bytes[1..9000], &bytes[9000..1_000_001], &bytes[1_000_001..]] {
        file.write_all(piece).unwrap();
    }
    file.terminate().unwrap();
    for directory in [&directory, &copying] {
        let file = directory.get_file_handle(Path::new("file")).unwrap();
        assert_eq!(file.len(), bytes.len());
        for range in [0..0, 0..1, 4095..4096, 1..4097, 17..1_000_003, 0..bytes.len(), bytes.len()..bytes.len()] {
            assert_eq!(file.read_bytes(range.clone()).unwrap().as_slice(), &bytes[range.clone()]);
            let awaited = nowait::block_on(file.read_bytes_async(range.clone())).unwrap();
            assert_eq!(awaited.as_slice(), &bytes[range]);
        }
    }
}

#[test]
fn blocking_reads_are_slices_of_a_map_unless_copies_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open(dir.path()).unwrap();
    let copying = NowaitDirectory::open_copying(Nowait::shared(), dir.path()).unwrap();
    write(&directory, "file", &numbered(10_000));
    let share_memory = |directory: &NowaitDirectory| {
        let file = directory.get_file_handle(Path::new("file")).unwrap();
        let (all, part) = (file.read_bytes(0..10_000).unwrap(), file.read_bytes(5000..5010).unwrap());
        // A slice keeps the map.
        drop(file);
        assert_eq!(all.as_slice()[5000..5010], *part.as_slice());
        all.as_slice()[5000..].as_ptr() == part.as_slice().as_ptr()
    };
    assert!(share_memory(&directory));
    assert!(!share_memory(&copying));
}

#[test]
fn a_range_that_the_file_lacks_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open(dir.path()).unwrap();
    write(&directory, "file", b"12345");
    let file = directory.get_file_handle(Path::new("file")).unwrap();
    #[expect(clippy::reversed_empty_ranges)]
    for range in [0..6, 5..6, 6..6, 3..2, 0..usize::MAX] {
        assert_eq!(file.read_bytes(range.clone()).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(nowait::block_on(file.read_bytes_async(range)).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_file_that_was_cut_meanwhile_is_an_error_of_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open_copying(Nowait::shared(), dir.path()).unwrap();
    write(&directory, "file", &numbered(100_000));
    let file = directory.get_file_handle(Path::new("file")).unwrap();
    std::fs::File::options().write(true).open(dir.path().join("file")).unwrap().set_len(50_000).unwrap();
    let error = file.read_bytes(0..100_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("file"), "{error}");
    assert_eq!(file.read_bytes(0..50_000).unwrap().len(), 50_000);
}

#[test]
fn a_deleted_file_stays_readable_and_its_name_becomes_free() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open(dir.path()).unwrap();
    let path = Path::new("file");
    write(&directory, "file", b"old");
    let old = directory.open_read(path).unwrap();
    directory.delete(path).unwrap();
    assert!(matches!(directory.open_read(path), Err(OpenReadError::FileDoesNotExist(_))));
    write(&directory, "file", b"newer");
    assert_eq!(directory.open_read(path).unwrap().read_bytes().unwrap().as_slice(), b"newer");
    assert_eq!(old.read_bytes().unwrap().as_slice(), b"old");
    // Deleted by another process.
    std::fs::remove_file(dir.path().join("file")).unwrap();
    write(&directory, "file", b"newest");
    assert_eq!(directory.open_read(path).unwrap().read_bytes().unwrap().as_slice(), b"newest");
}

#[test]
fn readers_of_a_file_share_a_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open(dir.path()).unwrap();
    write(&directory, "file", b"bytes");
    let path = dir.path().canonicalize().unwrap().join("file");
    let descriptors = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|link| link == path)).count()
    };
    let readers: Vec<_> = (0..10).map(|_| directory.open_read(Path::new("file")).unwrap()).collect();
    assert_eq!(descriptors(), 1);
    drop(readers);
    // The last reader's descriptor may be closed by a thread of the pool.
    for _ in 0..500 {
        if descriptors() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the descriptor is open still");
}

#[test]
fn locks_exclude_other_directories_of_the_same_path() {
    let dir = tempfile::tempdir().unwrap();
    let lock = |is_blocking| Lock { filepath: "lock".into(), is_blocking };
    let (a, b) = (NowaitDirectory::open(dir.path()).unwrap(), NowaitDirectory::open(dir.path()).unwrap());
    let held = a.acquire_lock(&lock(false)).unwrap();
    assert!(matches!(b.acquire_lock(&lock(false)), Err(LockError::LockBusy)));
    let (sender, receiver) = channel();
    let waits = std::thread::spawn(move || {
        let _held = b.acquire_lock(&lock(true)).unwrap();
        sender.send(()).unwrap();
    });
    assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err());
    drop(held);
    receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    waits.join().unwrap();
}

#[test]
fn a_commit_of_another_directory_is_noticed_and_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (NowaitDirectory::open(dir.path()).unwrap(), NowaitDirectory::open(dir.path()).unwrap());
    let (sender, receiver) = channel();
    let _handle = here.watch(WatchCallback::new(move || sender.send(()).unwrap())).unwrap();
    let meta = Path::new("meta.json");
    for (directory, content) in [(&there, b"1"), (&here, b"2"), (&there, b"3")] {
        directory.atomic_write(meta, content).unwrap();
        receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(receiver.recv_timeout(Duration::from_millis(700)).is_err(), "called twice");
    }
    here.atomic_write(Path::new("other.json"), b"4").unwrap();
    assert!(receiver.recv_timeout(Duration::from_millis(700)).is_err());
}

#[test]
fn what_is_no_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(NowaitDirectory::open(dir.path().join("none")), Err(OpenDirectoryError::DoesNotExist(_))));
    assert!(matches!(NowaitDirectory::open(&file), Err(OpenDirectoryError::NotADirectory(_))));
    assert!(matches!(NowaitDirectory::open(file.join("below")), Err(OpenDirectoryError::IoError { .. })));
}

#[test]
fn atomic_writes_leave_no_other_name() {
    let dir = tempfile::tempdir().unwrap();
    let directory = NowaitDirectory::open(dir.path()).unwrap();
    for content in [&b"first"[..], b"", b"third"] {
        directory.atomic_write(Path::new("meta.json"), content).unwrap();
        assert_eq!(directory.atomic_read(Path::new("meta.json")).unwrap(), content);
    }
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["meta.json"]);
    assert!(directory.atomic_write(Path::new("none/meta.json"), b"").is_err());
    assert!(matches!(directory.atomic_read(Path::new("none")), Err(OpenReadError::FileDoesNotExist(_))));
}

#[test]
fn an_index_is_searched_after_a_new_open_on_each_engine() {
    for engine in [Engine::Auto, Engine::Pool] {
        let dir = tempfile::tempdir().unwrap();
        let nowait = Nowait::builder().engine(engine).build().unwrap();
        let mut schema = Schema::builder();
        let text = schema.add_text_field("text", TEXT | STORED);
        let directory = NowaitDirectory::open_in(&nowait, dir.path()).unwrap();
        let index = Index::create(directory, schema.build(), Default::default()).unwrap();
        let mut writer: IndexWriter = index.writer_with_num_threads(1, 15_000_000).unwrap();
        for commit in 0..3 {
            for number in 0..500 {
                writer.add_document(doc!(text => format!("number {} of {commit}", number % 50))).unwrap();
            }
            writer.commit().unwrap();
        }
        writer.wait_merging_threads().unwrap();
        drop(index);

        let index = Index::open(NowaitDirectory::open_in(&nowait, dir.path()).unwrap()).unwrap();
        assert!(index.validate_checksum().unwrap().is_empty());
        let searcher = index.reader().unwrap().searcher();
        let query = QueryParser::for_index(&index, vec![text]).parse_query("7").unwrap();
        assert_eq!(searcher.search(&query, &Count).unwrap(), 30);
        assert!(nowait.stats().ended() > 100);
    }
}
