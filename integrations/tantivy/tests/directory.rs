//! What tantivy's own tests of directories do not show; those are run by `suites/run tantivy`.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nowait::{Engine, Nowait, OpenOptions};
use nowait_cache::{Access, PageCache};
use nowait_tantivy::NowaitDirectory;
use tantivy::collector::{Count, TopDocs};
use tantivy::directory::error::{LockError, OpenDirectoryError, OpenReadError};
use tantivy::directory::{Directory, Lock, TerminatingWrite, WatchCallback};
use tantivy::query::QueryParser;
use tantivy::schema::{FAST, STORED, Schema, TEXT, Value};
use tantivy::{Index, IndexWriter, Order, TantivyDocument, doc};

fn write(directory: &dyn Directory, name: &str, bytes: &[u8]) {
    let mut file = directory.open_write(Path::new(name)).unwrap();
    file.write_all(bytes).unwrap();
    file.terminate().unwrap();
}

const PAGE: usize = 4096;

fn cache_of(pages: usize) -> PageCache {
    let builder = PageCache::builder().capacity_bytes((pages * PAGE) as u64).page_bytes(PAGE);
    builder.wait_max(Duration::from_millis(1)).build().unwrap()
}

/// One directory for each way to read.
fn directories(path: &Path) -> [NowaitDirectory; 3] {
    [
        NowaitDirectory::open(path).unwrap(),
        NowaitDirectory::open_copying(Nowait::shared(), path).unwrap(),
        NowaitDirectory::open_cached(Nowait::shared(), path, &cache_of(64)).unwrap(),
    ]
}

fn numbered(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8).collect()
}

#[test]
fn ranges_are_those_of_the_file_read_blocking_and_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let directories = directories(dir.path());
    let bytes = numbered(3 << 20);
    let mut file = directories[0].open_write(Path::new("file")).unwrap();
    // Shorter and longer than the buffers on the way.
    for piece in [&bytes[..1], &bytes[1..9000], &bytes[9000..1_000_001], &bytes[1_000_001..]] {
        file.write_all(piece).unwrap();
    }
    file.terminate().unwrap();
    for directory in &directories {
        let file = directory.get_file_handle(Path::new("file")).unwrap();
        assert_eq!(file.len(), bytes.len());
        let end = bytes.len();
        for range in [0..0, 0..1, 4095..4096, 1..4097, 17..1_000_003, 5..90_000, 0..end, end..end] {
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
    let directories = directories(dir.path());
    write(&directories[0], "file", b"12345");
    for directory in directories {
        let file = directory.get_file_handle(Path::new("file")).unwrap();
        #[expect(clippy::reversed_empty_ranges)]
        for range in [0..6, 5..6, 6..6, 3..2, 0..usize::MAX] {
            assert_eq!(file.read_bytes(range.clone()).unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(nowait::block_on(file.read_bytes_async(range)).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn a_cached_range_within_a_page_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(16);
    let directory = NowaitDirectory::open_cached(Nowait::shared(), dir.path(), &cache).unwrap();
    let bytes = numbered(20 * PAGE);
    write(&directory, "file", &bytes);
    let file = directory.get_file_handle(Path::new("file")).unwrap();
    let page = file.read_bytes(PAGE..2 * PAGE).unwrap();
    let part = nowait::block_on(file.read_bytes_async(PAGE + 10..PAGE + 20)).unwrap();
    assert_eq!(page.as_slice()[10..].as_ptr(), part.as_slice().as_ptr());
    assert_eq!(cache.stats().reads, 1);
    // They outlive the file and the directory.
    drop((file, directory));
    assert_eq!(page.as_slice(), &bytes[PAGE..2 * PAGE]);
    assert_eq!(part.as_slice(), &bytes[PAGE + 10..PAGE + 20]);
}

/// tantivy keeps ranges for as long as a searcher exists.
#[test]
fn ranges_that_are_kept_pin_a_quarter_of_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(16);
    let directory = NowaitDirectory::open_cached(Nowait::shared(), dir.path(), &cache).unwrap();
    let bytes = numbered(64 * PAGE);
    write(&directory, "file", &bytes);
    let file = directory.get_file_handle(Path::new("file")).unwrap();
    let range = |page: usize| page * PAGE + 1..page * PAGE + 100;
    for _ in 0..3 {
        let mut kept = Vec::new();
        for page in 0..64 {
            kept.push(file.read_bytes(range(page)).unwrap());
            kept.push(nowait::block_on(file.read_bytes_async(range(page))).unwrap());
        }
        assert!(kept.iter().enumerate().all(|(number, read)| *read.as_slice() == bytes[range(number / 2)]));
        assert!(cache.stats().pinned > 0);
        // A read that has ended may pin its page for a moment longer.
        let deadline = Instant::now() + Duration::from_secs(10);
        while cache.stats().pinned > 4 {
            assert!(Instant::now() < deadline, "{:?}", cache.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Also of many threads, which would otherwise wait for each other's pages.
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| drop((0..64).map(|page| file.read_bytes(range(page)).unwrap()).collect::<Vec<_>>()));
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(5));
    // They are counted until they are dropped.
    let (one, two) = (file.read_bytes(range(7)).unwrap(), file.read_bytes(range(7)).unwrap());
    assert_eq!(one.as_slice().as_ptr(), two.as_slice().as_ptr());
}

#[test]
fn a_cache_whose_pages_others_pin_is_passed_by() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(2);
    let directory = NowaitDirectory::open_cached(Nowait::shared(), dir.path(), &cache).unwrap();
    let bytes = numbered(8 * PAGE);
    write(&directory, "other", &bytes);
    write(&directory, "file", &bytes);
    let other = OpenOptions::new().read(true).open(dir.path().join("other")).wait().unwrap();
    let other = cache.open(&other, Access::Immutable).unwrap();
    let held: Vec<_> = [0, 5].map(|page| other.get(page * PAGE as u64..page * PAGE as u64 + 1).wait().unwrap()).into();
    let file = directory.get_file_handle(Path::new("file")).unwrap();
    for range in [0..1, 4000..5000, 1..8 * PAGE] {
        assert_eq!(file.read_bytes(range.clone()).unwrap().as_slice(), &bytes[range.clone()]);
        let awaited = nowait::block_on(file.read_bytes_async(range.clone())).unwrap();
        assert_eq!(awaited.as_slice(), &bytes[range]);
    }
    drop(held);
    assert_eq!(file.read_bytes(3..5).unwrap().as_slice(), &bytes[3..5]);
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
    for directory in directories(dir.path()) {
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
        directory.delete(path).unwrap();
    }
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

/// A cache of 32 pages serves an index of many more, to several threads.
#[test]
fn a_search_through_a_small_cache_finds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut schema = Schema::builder();
    let text = schema.add_text_field("text", TEXT | STORED);
    let number = schema.add_u64_field("number", FAST | STORED);
    let plain = NowaitDirectory::open(dir.path()).unwrap();
    let index = Index::create(plain, schema.build(), Default::default()).unwrap();
    let mut writer: IndexWriter = index.writer_with_num_threads(1, 15_000_000).unwrap();
    for commit in 0..3_u64 {
        for at in 0..3000_u64 {
            let random = (commit * 3000 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let words = format!("word{} common{} {random:x}", random >> 54, random >> 61);
            writer.add_document(doc!(text => words, number => random >> 8)).unwrap();
        }
        writer.commit().unwrap();
    }
    writer.wait_merging_threads().unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(files.sum::<u64>() > 4 * 32 * PAGE as u64);

    let cache = cache_of(32);
    let through = NowaitDirectory::open_cached(Nowait::shared(), dir.path(), &cache).unwrap();
    let cached = Index::open(through).unwrap();
    assert!(cached.validate_checksum().unwrap().is_empty());
    let searchers = [&index, &cached].map(|index| index.reader().unwrap().searcher());
    let parser = QueryParser::for_index(&index, vec![text]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (searchers, parser) = (&searchers, &parser);
            scope.spawn(move || {
                for at in 0..60 {
                    let words = format!("word{} common{}", (thread * 997 + at * 31) % 1024, at % 8);
                    let query = parser.parse_query(&words).unwrap();
                    let [expected, found] = searchers.each_ref().map(|searcher| {
                        let order = TopDocs::with_limit(20).order_by_fast_field::<u64>("number", Order::Desc);
                        let (top, count) = searcher.search(&query, &(order, Count)).unwrap();
                        let docs = top.iter().map(|(_, at)| searcher.doc::<TantivyDocument>(*at).unwrap());
                        let numbers = docs.map(|doc| doc.get_first(number).and_then(|value| value.as_u64()).unwrap());
                        (numbers.collect::<Vec<_>>(), top, count)
                    });
                    assert!(expected.2 > 0);
                    assert_eq!(found, expected);
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.hits > 0 && stats.evictions > 0, "{stats:?}");
}
