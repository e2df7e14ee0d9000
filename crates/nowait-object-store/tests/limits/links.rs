//! Symbolic and hard links. Not on Windows, where symbolic links need a privilege, and std does not report
//! hard links.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use nowait_object_store::Options;

use super::object_store::path::Path;
use super::object_store::{ObjectStore, ObjectStoreExt, PutMode};
use super::objects::{names, store};

/// A circle of symbolic links is an error.
#[tokio::test]
async fn a_circle_of_links_ends() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/one"), "").unwrap();
    symlink("..", dir.path().join("d/up")).unwrap();
    let found: Vec<_> = store.list(None).collect().await;
    assert!(found.iter().any(|object| object.as_ref().is_ok_and(|object| object.location.as_ref() == "d/one")));
    assert_eq!(found.iter().filter(|object| object.is_err()).count(), 1, "{found:?}");
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
    symlink("plain", dir.path().join("link#1")).unwrap();
    let since = later_than(&dir.path().join("dir/killed#7"));
    let object = Path::from("dir/object");
    let mut upload = store.put_multipart(&object).await.unwrap();
    upload.put_part("some".into()).await.unwrap();
    store.put(&object, "whole".into()).await.unwrap();
    // The state of a copy in progress, of an object that was written long ago.
    let plain = fs::File::options().write(true).open(dir.path().join("plain")).unwrap();
    plain.set_modified(UNIX_EPOCH).unwrap();
    fs::hard_link(dir.path().join("plain"), dir.path().join("copy#5")).unwrap();
    assert_eq!(store.remove_leftovers(Some(&Path::from("dir")), since).await.unwrap(), 1);
    assert_eq!(store.remove_leftovers(None, since).await.unwrap(), 1);
    assert_eq!(store.remove_leftovers(Some(&Path::from("none")), since).await.unwrap(), 0);
    assert_eq!(names(dir.path()), ["copy#5", "dir", "link#1", "plain"]);
    assert_eq!(names(&dir.path().join("dir")).len(), 3);
    // The upload in progress is younger, and stays.
    upload.complete().await.unwrap();
    assert_eq!(store.get(&object).await.unwrap().bytes().await.unwrap(), "some");
}

/// A link to an empty directory is a name like any other: the directory stays.
#[tokio::test]
async fn a_link_to_an_empty_directory_is_replaced_and_the_directory_stays() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("empty")).unwrap();
    symlink("empty", dir.path().join("link")).unwrap();
    store.put_opts(&Path::from("link"), "1".into(), PutMode::Create.into()).await.unwrap_err();
    store.put(&Path::from("link"), "1".into()).await.unwrap();
    assert!(dir.path().join("empty").is_dir() && dir.path().join("link").is_file());
}

#[tokio::test]
async fn a_rename_onto_itself_by_another_path_keeps_the_object() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("dir")).unwrap();
    symlink("dir", dir.path().join("linked")).unwrap();
    store.put(&Path::from("dir/object"), "here".into()).await.unwrap();
    fs::hard_link(dir.path().join("dir/object"), dir.path().join("copy")).unwrap();
    store.rename(&Path::from("dir/object"), &Path::from("linked/object")).await.unwrap();
    assert_eq!(names(&dir.path().join("dir")), ["object"]);
    // One of the file's two names is removed.
    store.rename(&Path::from("copy"), &Path::from("linked/object")).await.unwrap();
    assert_eq!(names(dir.path()), ["dir", "linked"]);
    assert_eq!(store.get(&Path::from("dir/object")).await.unwrap().bytes().await.unwrap(), "here");
}

#[tokio::test]
async fn a_copy_of_a_link_is_one_of_its_target() {
    let (dir, store) = store(Options::new());
    let from = Path::from("from");
    store.put(&from, "old".into()).await.unwrap();
    symlink("from", dir.path().join("link")).unwrap();
    store.copy(&Path::from("link"), &Path::from("deep/er")).await.unwrap();
    store.put(&from, "new".into()).await.unwrap();
    assert_eq!(store.get(&Path::from("deep/er")).await.unwrap().bytes().await.unwrap(), "old");
    assert_eq!(names(dir.path()), ["deep", "from", "link"]);
}
