//! Linux only: files of the kernel, names that are not text, special files, and a mount. (rustix has no
//! `mkfifoat` for macOS, where names are always text.)

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use futures::StreamExt;
use nowait_object_store::Options;

use super::NowaitFileSystem;
use super::object_store::path::Path;
use super::object_store::{Error, ObjectStore, ObjectStoreExt};
#[cfg(feature = "cache")]
use super::objects::byte;
use super::objects::{names, store};

/// Symptom: a file of the kernel, which reports a size of zero, was returned as an empty object.
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

/// A list returns an error for a name that is not a location: bytes that are not UTF-8, control characters.
#[tokio::test]
async fn a_list_tells_of_names_that_are_no_locations() {
    for name in [b"\xff".as_slice(), b"a\nb"] {
        let (dir, store) = store(Options::new());
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        fs::write(dir.path().join("good"), "").unwrap();
        let found: Vec<_> = store.list(None).collect().await;
        assert_eq!(found.iter().filter(|object| object.is_ok()).count(), 1);
        assert!(found.iter().any(|object| matches!(object, Err(Error::InvalidPath { .. }))), "{found:?}");
    }
}

/// A copy that waited would keep a pool thread.
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

/// A file system of 1 MiB, which is unmounted on drop.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Small> {
        let dir = crate::common::temp_dir();
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
        // Space is free again when the error is returned. Each attempt fills the file system.
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
            // A ring releases a file, and its space, shortly after it has returned the result.
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
    // Every get reads a younger object again.
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
    // Kept bytes pin nothing, once the thread that completed the last read has released it.
    let kept = store.get_range(&object, 0..1000).await.unwrap();
    let unpinned = async {
        while cache.stats().pinned > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), unpinned).await.expect("nothing stays pinned");
    assert_eq!(kept.len(), 1000);
}
