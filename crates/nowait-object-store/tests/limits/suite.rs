use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::future::join_all;
use nowait_object_store::Options;
use url::Url;

use super::NowaitFileSystem;
use super::object_store::path::Path;
use super::object_store::registry::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use super::object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};

fn store(options: Options) -> (tempfile::TempDir, NowaitFileSystem) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = NowaitFileSystem::with_prefix(dir.path(), options).unwrap();
    (dir, store)
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Byte of each place of the objects here.
fn byte(place: u64) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 13) as u8
}

#[tokio::test]
async fn a_hundred_thousand_ranges_share_one_allocation() {
    let (dir, store) = store(Options::new());
    fs::write(dir.path().join("object"), (0..1 << 20).map(byte).collect::<Vec<_>>()).unwrap();
    let begin = |number: u64| number.wrapping_mul(7919) % ((1 << 20) - 64);
    let ranges: Vec<_> = (0..100_000).map(|number| begin(number)..begin(number) + number % 64).collect();
    let answers = store.get_ranges(&Path::from("object"), &ranges).await.unwrap();
    assert_eq!(answers.len(), ranges.len());
    for (range, answer) in ranges.iter().zip(&answers) {
        assert!(answer.iter().copied().eq(range.clone().map(byte)), "{range:?}");
    }
    // Each begins where the one before it ends.
    for two in answers.windows(2).filter(|two| !two[0].is_empty() && !two[1].is_empty()) {
        assert_eq!(two[0].as_ptr().wrapping_add(two[0].len()), two[1].as_ptr());
    }
}

#[tokio::test]
#[allow(clippy::reversed_empty_ranges, clippy::single_range_in_vec_init)]
async fn ranges_that_are_none_are_errors_that_name_them() {
    let (dir, store) = store(Options::new());
    fs::write(dir.path().join("object"), [1; 1000]).unwrap();
    let object = Path::from("object");
    for (ranges, text) in [
        (vec![0..10, 20..10], "20..10"),
        (vec![0..10, 990..1001], "10 bytes"),
        (vec![5000..5001], "0 bytes"),
        (vec![0..10, u64::MAX - 1..u64::MAX], ""),
    ] {
        let error = store.get_ranges(&object, &ranges).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }) && error.to_string().contains(text), "{error}");
        assert!(error.to_string().contains("object"), "{error}");
    }
    assert!(store.get_ranges(&object, &[0..1 << 62]).await.is_err());
    assert!(store.get_ranges(&object, &[]).await.unwrap().is_empty());
    assert_eq!(store.get_ranges(&object, &[3..3, 990..1000]).await.unwrap()[1].len(), 10);
}

#[tokio::test]
async fn an_object_that_shrinks_under_a_get_is_an_error_and_one_that_vanishes_is_read() {
    for piece_bytes_max in [0, 16 << 20] {
        let (dir, store) = store(Options::new().piece_bytes_max(piece_bytes_max));
        let path = dir.path().join("object");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let got = store.get(&Path::from("object")).await.unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(300_000).unwrap();
        let mut stream = got.into_stream();
        let (mut bytes, mut errors) = (0, 0);
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => bytes += piece.len(),
                Err(_) => errors += 1,
            }
        }
        assert!(bytes <= 300_000 && errors == 1, "{bytes} bytes, {errors} errors");
        let got = store.get(&Path::from("object")).await.unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(got.bytes().await.unwrap().len(), 300_000);
    }
}

/// Symptom: a file of the kernel, which reports a size of zero, was got as an empty object.
#[tokio::test]
async fn an_object_that_reports_no_size_is_got_in_full() {
    let store = NowaitFileSystem::with_prefix("/proc/sys/kernel", Options::new()).unwrap();
    let (location, expected) = (Path::from("ostype"), fs::read("/proc/sys/kernel/ostype").unwrap());
    assert!(!expected.is_empty());
    let got = store.get(&location).await.unwrap();
    assert_eq!(
        (got.meta.size, got.meta.e_tag.clone()),
        (expected.len() as u64, store.head(&location).await.unwrap().e_tag)
    );
    assert_eq!(got.bytes().await.unwrap(), expected);
    assert_eq!(store.get_range(&location, 1..3).await.unwrap(), expected[1..3]);
}

#[tokio::test]
async fn locations_cannot_leave_the_root() {
    let (dir, store) = store(Options::new());
    for text in ["../x", "a/../../x", "b/..", "b/.", "a/./b", "a\0b"] {
        assert!(Path::parse(text).is_err(), "{text}");
        let encoded = Path::from(text);
        store.put(&encoded, "inside".into()).await.unwrap();
        assert!(store.path_to_filesystem(&encoded).unwrap().starts_with(dir.path().canonicalize().unwrap()));
        assert_eq!(store.get(&encoded).await.unwrap().bytes().await.unwrap(), "inside");
    }
}

/// Of names that are no locations (bytes that are not UTF-8, control characters) a list says so.
#[tokio::test]
async fn a_list_tells_of_names_that_are_no_locations() {
    use std::os::unix::ffi::OsStrExt;
    for name in [b"\xff".as_slice(), b"a\nb"] {
        let (dir, store) = store(Options::new());
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        fs::write(dir.path().join("good"), "").unwrap();
        let found: Vec<_> = store.list(None).collect().await;
        assert_eq!(found.iter().filter(|object| object.is_ok()).count(), 1);
        assert!(found.iter().any(|object| matches!(object, Err(Error::InvalidPath { .. }))), "{found:?}");
    }
}

#[tokio::test]
async fn more_objects_than_a_batch_are_listed_and_deleted() {
    let (dir, store) = store(Options::new().automatic_cleanup(true));
    for number in 0..2500 {
        fs::create_dir_all(dir.path().join(format!("{}", number % 50))).unwrap();
        fs::write(dir.path().join(format!("{}/{number}", number % 50)), "").unwrap();
    }
    let found: Vec<_> = store.list(None).map(|object| object.unwrap().location).collect().await;
    assert_eq!(found.len(), 2500);
    let deleted = store.delete_stream(futures::stream::iter(found).map(Ok).boxed());
    assert_eq!(deleted.filter(|path| std::future::ready(path.is_ok())).count().await, 2500);
    assert!(names(dir.path()).is_empty(), "directories that became empty are gone, and the root is not");
}

/// A circle of symbolic links ends, with an error.
#[tokio::test]
async fn a_circle_of_links_ends() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/one"), "").unwrap();
    std::os::unix::fs::symlink("..", dir.path().join("d/up")).unwrap();
    let found: Vec<_> = store.list(None).collect().await;
    assert!(found.iter().any(|object| object.as_ref().is_ok_and(|object| object.location.as_ref() == "d/one")));
    assert_eq!(found.iter().filter(|object| object.is_err()).count(), 1, "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_create_one_wins_and_nothing_partial_is_seen() {
    let (dir, store) = store(Options::new());
    let object = Path::from("new/object");
    let contents = |number: u8| vec![number; 100_000 + usize::from(number)];
    let puts = (0..32).map(|number| {
        let (store, object) = (store.clone(), object.clone());
        tokio::spawn(async move { store.put_opts(&object, contents(number).into(), PutMode::Create.into()).await })
    });
    let results: Vec<_> = join_all(puts).await.into_iter().map(|put| put.unwrap()).collect();
    let winners: Vec<_> = results.iter().enumerate().filter(|(_, put)| put.is_ok()).collect();
    assert_eq!(winners.len(), 1);
    for error in results.iter().filter_map(|put| put.as_ref().err()) {
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    }
    assert_eq!(store.get(&object).await.unwrap().bytes().await.unwrap(), contents(winners[0].0 as u8));
    // Readers of an object that is replaced see one or the other.
    let writer = tokio::spawn({
        let (store, object) = (store.clone(), object.clone());
        async move {
            for number in 0..100 {
                store.put(&object, contents(number).into()).await.unwrap();
            }
        }
    });
    while !writer.is_finished() {
        let bytes = store.get(&object).await.unwrap().bytes().await.unwrap();
        assert!(bytes == contents(bytes[0]));
    }
    writer.await.unwrap();
    assert_eq!(names(&dir.path().join("new")), ["object"]);
}

/// Symptom: an upload's error named its staged file, which a user of the store does not know.
#[tokio::test]
async fn a_failed_upload_names_its_object() {
    for options in [Options::new(), Options::new().direct(true)] {
        let (dir, store) = store(options);
        store.put(&Path::from("object"), "".into()).await.unwrap();
        // A name of 255 bytes at most: the staged name is cut, the object's is not.
        for name in ["object/below".to_owned(), "x".repeat(256)] {
            let object = Path::from(name.as_str());
            let complete = async {
                let mut upload = store.put_multipart(&object).await?;
                upload.put_part("some".into()).await?;
                upload.complete().await
            };
            let error = complete.await.unwrap_err();
            let path = dir.path().join(&name);
            assert!(error.to_string().contains(path.to_str().unwrap()) && !error.to_string().contains('#'), "{error}");
        }
    }
}

#[tokio::test]
async fn an_upload_is_seen_when_complete_and_leaves_nothing_otherwise() {
    let (dir, store) = store(Options::new());
    let object = Path::from("object");
    let mut upload = store.put_multipart(&object).await.unwrap();
    upload.put_part("some".into()).await.unwrap();
    assert!(matches!(store.head(&object).await, Err(Error::NotFound { .. })));
    assert_eq!(store.list(None).count().await, 0);
    upload.abort().await.unwrap();
    assert!(upload.complete().await.is_err() && upload.put_part("more".into()).await.is_err());
    assert!(names(dir.path()).is_empty());

    let mut upload = store.put_multipart(&object).await.unwrap();
    drop(upload.put_part("never polled".into()));
    assert!(upload.complete().await.unwrap_err().to_string().contains("await every part"));
    drop(store.put_multipart(&object).await.unwrap());
    // Those are removed in the background.
    for _ in 0..500 {
        if names(dir.path()).is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{:?}", names(dir.path()));
}

/// Returns a time of the file system's clock, which advances in ticks, after the last change of
/// `path`. All files that change from now on have this time or a later one.
fn later_than(path: &std::path::Path) -> SystemTime {
    let changed = |path: &std::path::Path| {
        let metadata = fs::metadata(path).unwrap();
        UNIX_EPOCH + Duration::new(metadata.ctime() as u64, metadata.ctime_nsec() as u32)
    };
    let before = changed(path);
    loop {
        let probe = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        if changed(probe.path()) > before {
            return changed(probe.path());
        }
    }
}

#[tokio::test]
async fn leftovers_are_removed_when_they_are_old_and_nothing_else_is() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("dir")).unwrap();
    for name in ["killed#12", "dir/killed#7", "dir/name#a", "plain"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    std::os::unix::fs::symlink("plain", dir.path().join("link#1")).unwrap();
    let since = later_than(&dir.path().join("dir/killed#7"));
    let object = Path::from("dir/object");
    let mut upload = store.put_multipart(&object).await.unwrap();
    upload.put_part("some".into()).await.unwrap();
    store.put(&object, "whole".into()).await.unwrap();
    // As a copy under way of an object that was written long ago.
    let plain = fs::File::options().write(true).open(dir.path().join("plain")).unwrap();
    plain.set_modified(UNIX_EPOCH).unwrap();
    fs::hard_link(dir.path().join("plain"), dir.path().join("copy#5")).unwrap();
    assert_eq!(store.remove_leftovers(Some(&Path::from("dir")), since).await.unwrap(), 1);
    assert_eq!(store.remove_leftovers(None, since).await.unwrap(), 1);
    assert_eq!(store.remove_leftovers(Some(&Path::from("none")), since).await.unwrap(), 0);
    assert_eq!(names(dir.path()), ["copy#5", "dir", "link#1", "plain"]);
    assert_eq!(names(&dir.path().join("dir")).len(), 3);
    // An upload under way is young.
    upload.complete().await.unwrap();
    assert_eq!(store.get(&object).await.unwrap().bytes().await.unwrap(), "some");
}

#[tokio::test]
async fn a_copy_does_not_share_what_is_written_later_through_the_store() {
    let (dir, store) = store(Options::new());
    let (from, to) = (Path::from("from"), Path::from("to"));
    store.put(&from, "old".into()).await.unwrap();
    std::os::unix::fs::symlink("from", dir.path().join("link")).unwrap();
    store.copy(&Path::from("link"), &Path::from("deep/er")).await.unwrap();
    store.copy(&from, &to).await.unwrap();
    store.copy(&from, &from).await.unwrap();
    store.copy(&from, &Path::from("moved")).await.unwrap();
    store.rename(&Path::from("moved"), &to).await.unwrap();
    store.put(&from, "new".into()).await.unwrap();
    for (location, contents) in [("from", "new"), ("to", "old"), ("deep/er", "old")] {
        assert_eq!(store.get(&Path::from(location)).await.unwrap().bytes().await.unwrap(), contents);
    }
    assert_eq!(names(dir.path()), ["deep", "from", "link", "to"]);
}

/// Each would keep a thread of the pool.
#[tokio::test]
async fn a_copy_of_a_fifo_is_refused_and_does_not_wait() {
    let nowait = nowait::Nowait::builder().pool_threads_max(1).build().unwrap();
    let (dir, store) = store(Options::new().instance(&nowait));
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("fifo"), rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero")).unwrap();
    for name in ["fifo", "zero"] {
        let (from, to) = (Path::from(name), Path::from("copy"));
        let requests = async { (store.copy(&from, &to).await, store.get_range(&from, 0..1).await) };
        let (copy, get) = tokio::time::timeout(Duration::from_secs(20), requests).await.expect("it does not wait");
        let error = copy.unwrap_err();
        assert!(error.to_string().contains("special file"), "{error}");
        assert!(get.is_err());
    }
    assert_eq!(names(dir.path()), ["fifo", "zero"]);
}

/// Each removes directories that others are about to use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_a_delete_removes_are_made_again() {
    for durable in [false, true] {
        let (_dir, store) = store(Options::new().automatic_cleanup(true).durable(durable));
        let tasks = (0..8).map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let (from, to) = (Path::from(format!("{number}")), Path::from(format!("d/e/f/{number}")));
                for _ in 0..if durable { 3 } else { 300 } {
                    store.put(&from, "here".into()).await.unwrap();
                    store.copy(&from, &to).await.unwrap();
                    store.delete(&to).await.unwrap();
                    store.rename(&from, &to).await.unwrap();
                    store.delete(&to).await.unwrap();
                    store.put(&to, "here".into()).await.unwrap();
                    store.delete(&to).await.unwrap();
                }
            })
        });
        join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
    }
}

/// The object is another link to its copy's file, and both locations are one name of it.
#[tokio::test]
async fn directories_that_deletes_left_empty_give_way_to_an_object() {
    let (dir, store) = store(Options::new());
    let (from, to, below) = (Path::from("from"), Path::from("a/c"), Path::from("a/c/d/0"));
    // Each way to make an object, with a file of another in the directory, and with empty directories.
    for way in ["put", "create", "upload", "copy", "copy_if_not_exists", "rename", "rename_if_not_exists"] {
        for is_empty in [false, true] {
            store.put(&from, "new".into()).await.unwrap();
            store.put(&below, "below".into()).await.unwrap();
            fs::create_dir_all(dir.path().join("a/c/e/f")).unwrap();
            if is_empty {
                store.delete(&below).await.unwrap();
            }
            let made = match way {
                "put" => store.put(&to, "new".into()).await.map(drop),
                "create" => store.put_opts(&to, "new".into(), PutMode::Create.into()).await.map(drop),
                "upload" => {
                    let mut upload = store.put_multipart(&to).await.unwrap();
                    upload.put_part("new".into()).await.unwrap();
                    upload.complete().await.map(drop)
                }
                "copy" => store.copy(&from, &to).await,
                "copy_if_not_exists" => store.copy_if_not_exists(&from, &to).await,
                "rename" => store.rename(&from, &to).await,
                _ => store.rename_if_not_exists(&from, &to).await,
            };
            assert_eq!(made.is_ok(), is_empty, "{way}: {made:?}");
            if is_empty {
                assert_eq!(store.get(&to).await.unwrap().bytes().await.unwrap(), "new", "{way}");
                store.delete(&to).await.unwrap();
            } else {
                assert_eq!(names(&dir.path().join("a/c")), ["d", "e"], "{way}");
                assert_eq!(names(&dir.path().join("a/c/e")), ["f"], "{way}");
                assert_eq!(store.get(&below).await.unwrap().bytes().await.unwrap(), "below", "{way}");
            }
            assert!(names(dir.path()).iter().all(|name| name == "a" || name == "from"), "{way}");
        }
    }
}

/// A link to an empty directory is a name like any other: the directory stays.
#[tokio::test]
async fn a_link_to_an_empty_directory_is_replaced_and_the_directory_stays() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("empty")).unwrap();
    std::os::unix::fs::symlink("empty", dir.path().join("link")).unwrap();
    store.put_opts(&Path::from("link"), "1".into(), PutMode::Create.into()).await.unwrap_err();
    store.put(&Path::from("link"), "1".into()).await.unwrap();
    assert!(dir.path().join("empty").is_dir() && dir.path().join("link").is_file());
}

#[tokio::test]
async fn a_rename_onto_itself_by_another_path_keeps_the_object() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("dir")).unwrap();
    std::os::unix::fs::symlink("dir", dir.path().join("linked")).unwrap();
    store.put(&Path::from("dir/object"), "here".into()).await.unwrap();
    fs::hard_link(dir.path().join("dir/object"), dir.path().join("copy")).unwrap();
    store.rename(&Path::from("dir/object"), &Path::from("linked/object")).await.unwrap();
    assert_eq!(names(&dir.path().join("dir")), ["object"]);
    // Of two names of the file one goes.
    store.rename(&Path::from("copy"), &Path::from("linked/object")).await.unwrap();
    assert_eq!(names(dir.path()), ["dir", "linked"]);
    assert_eq!(store.get(&Path::from("dir/object")).await.unwrap().bytes().await.unwrap(), "here");
}

#[tokio::test]
async fn urls_of_both_schemes_lead_to_files() {
    let (dir, _) = store(Options::new());
    let path = dir.path().canonicalize().unwrap().join("object");
    fs::write(&path, "here").unwrap();
    let registry = DefaultObjectStoreRegistry::new();
    NowaitFileSystem::register(Options::new(), |url, store| {
        registry.register(url.clone(), store);
    });
    for scheme in ["file", "nowait"] {
        let url = Url::parse(&format!("{scheme}://{}", path.display())).unwrap();
        let (store, location) = registry.resolve(&url).unwrap();
        assert_eq!(store.to_string(), "NowaitFileSystem(/)");
        assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "here");
    }
}

/// A file system of 1 MiB, which is unmounted when it goes.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Small> {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.path()).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Small(dir));
        }
        assert!(std::env::var_os("NOWAIT_REQUIRE_MOUNTS").is_none(), "mounting failed");
        println!("skipped: mounting needs root");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_leaves_nothing() {
    let Some(small) = Small::mount() else { return };
    let dir = small.0.path().join("dir");
    for direct in [false, true] {
        let store = NowaitFileSystem::with_prefix(small.0.path(), Options::new().direct(direct)).unwrap();
        let object = Path::from("dir/object");
        // The space is there again as soon as the error is: each attempt takes all of it.
        for _ in 0..20 {
            let put = store.put(&object, vec![1; 4 << 20].into()).await.unwrap_err();
            assert!(names(&dir).is_empty(), "{:?}", names(&dir));
            let mut upload = store.put_multipart(&object).await.unwrap();
            let part = upload.put_part(vec![1; 4 << 20].into()).await.unwrap_err();
            for error in [put, part] {
                assert!(matches!(error, Error::Generic { .. }) && error.to_string().contains("space"), "{error}");
            }
            upload.complete().await.unwrap_err();
            assert!(names(&dir).is_empty(), "{:?}", names(&dir));
            // A ring lets go of a file shortly after it has told the result, and the space with it.
            let mut tries = if direct { 500 } else { 1 };
            while let Err(error) = store.put(&object, vec![1; 800 << 10].into()).await {
                tries -= 1;
                assert!(tries > 0, "{error}");
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            store.delete(&object).await.unwrap();
        }
    }
}

#[cfg(feature = "cache")]
#[tokio::test]
async fn a_cached_object_is_read_once_and_again_when_it_was_replaced() {
    let cache = nowait_cache::PageCache::builder().capacity_bytes(16 << 20).build().unwrap();
    let (dir, store) = store(Options::new().cache(&cache));
    fs::write(dir.path().join("object"), (0..1 << 20).map(byte).collect::<Vec<_>>()).unwrap();
    // Younger objects are read at each get.
    tokio::time::sleep(Duration::from_millis(3100)).await;
    let object = Path::from("object");
    for _ in 0..3 {
        let bytes = store.get_range(&object, 100_000..200_000).await.unwrap();
        assert!(bytes.iter().copied().eq((100_000..200_000).map(byte)));
        assert_eq!(store.get(&object).await.unwrap().bytes().await.unwrap().len(), 1 << 20);
    }
    let stats = cache.stats();
    assert!(stats.read_bytes <= 2 << 20 && stats.hits > 100, "{stats:?}");
    store.put(&object, vec![7; 1000].into()).await.unwrap();
    assert_eq!(store.get_range(&object, 10..20).await.unwrap()[..], [7; 10]);
    // Kept bytes pin nothing, when the thread that has completed the last read is done with it.
    let kept = store.get_range(&object, 0..1000).await.unwrap();
    let unpinned = async {
        while cache.stats().pinned > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), unpinned).await.expect("nothing stays pinned");
    assert_eq!(kept.len(), 1000);
}
