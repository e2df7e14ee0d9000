//! Windows only: locations that Windows would take for other paths, streams or devices; names without case,
//! long paths, files that other programs have open.

use std::fs;
use std::os::windows::fs::OpenOptionsExt;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use nowait_object_store::Options;

use super::NowaitFileSystem;
use super::object_store::path::Path;
use super::object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};
use super::objects::{names, store};
use crate::common::is_lacking_in_wine;

async fn contents(store: &NowaitFileSystem, object: &Path) -> Vec<u8> {
    store.get(object).await.unwrap().bytes().await.unwrap().to_vec()
}

/// Windows separates names at backslashes, also `..`.
#[tokio::test]
async fn locations_with_backslashes_are_refused() {
    let (dir, store) = store(Options::new());
    let here = Path::from("here");
    store.put(&here, "here".into()).await.unwrap();
    for text in [r"..\x", r"a\..\..\x", r"\x", r"C:\x", r"d/..\..\x", r"\\server\share\x"] {
        let location = Path::parse(text).unwrap();
        for error in [
            store.put(&location, "outside".into()).await.map(drop).unwrap_err(),
            store.put_multipart(&location).await.map(drop).unwrap_err(),
            store.get(&location).await.map(drop).unwrap_err(),
            store.copy(&here, &location).await.unwrap_err(),
            store.rename(&here, &location).await.unwrap_err(),
            store.delete(&location).await.unwrap_err(),
            store.list(Some(&location)).next().await.unwrap().map(drop).unwrap_err(),
            store.list_with_delimiter(Some(&location)).await.map(drop).unwrap_err(),
            store.remove_leftovers(Some(&location), SystemTime::now()).await.map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains("backslash"), "{text}: {error}");
        }
    }
    assert_eq!(names(dir.path()), ["here"]);
}

/// On Windows, a colon precedes the name of a stream, or ends that of a drive.
#[tokio::test]
async fn colons_are_part_of_a_name() {
    let (dir, store) = store(Options::new());
    for text in ["C:/x", "C:x", "C:", "a:b", "a::$DATA", "d/a:b:$DATA"] {
        let object = Path::parse(text).unwrap();
        store.put(&object, text.to_owned().into()).await.unwrap();
        assert!(store.path_to_filesystem(&object).unwrap().starts_with(dir.path().canonicalize().unwrap()));
        assert_eq!(contents(&store, &object).await, text.as_bytes(), "{text}");
        store.delete(&object).await.unwrap();
    }
    store.put(&Path::parse("a:b").unwrap(), "stock".into()).await.unwrap();
    let stock = super::object_store::local::LocalFileSystem::new_with_prefix(dir.path()).unwrap();
    let found = stock.get(&Path::parse("a:b").unwrap()).await.unwrap().bytes().await.unwrap();
    assert_eq!(found, "stock");
}

/// The paths of a store with a prefix are verbatim. In other stores these names lead to devices, which are
/// not objects.
#[tokio::test]
async fn names_of_devices_are_those_of_objects() {
    let (dir, store) = store(Options::new());
    for name in ["NUL", "COM1", "con.txt", "d/aux", "lpt1"] {
        let (object, other) = (Path::from(name), Path::from("other"));
        store.put(&object, name.to_owned().into()).await.unwrap();
        assert_eq!(contents(&store, &object).await, name.as_bytes());
        store.copy(&object, &other).await.unwrap();
        store.rename(&other, &object).await.unwrap();
        let listed: Vec<_> = store.list(None).map(|found| found.unwrap().location).collect().await;
        assert_eq!(listed, [object.clone()]);
        store.delete(&object).await.unwrap();
    }
    let plain = dir.path().join("NUL").to_str().unwrap().replace('\\', "/");
    let all = NowaitFileSystem::new(Options::new());
    all.get(&Path::parse(plain).unwrap()).await.map(drop).unwrap_err();
}

/// Symptom: in the store of all files, `a.` and `a` were one object.
#[tokio::test]
async fn dots_and_spaces_at_the_end_of_a_name_tell_objects_apart_or_are_refused() {
    let (dir, store) = store(Options::new());
    let all = NowaitFileSystem::new(Options::new());
    let plain = dir.path().to_str().unwrap().replace('\\', "/");
    store.put(&Path::from("a"), "a".into()).await.unwrap();
    for text in ["a.", "a ", "a. .", "a./b", "a /b"] {
        let location = Path::parse(text).unwrap();
        store.put(&location, text.to_owned().into()).await.unwrap();
        assert_eq!(contents(&store, &location).await, text.as_bytes());
        assert_eq!(contents(&store, &Path::from("a")).await, b"a");
        store.delete(&location).await.unwrap();
        let location = Path::parse(format!("{plain}/{text}")).unwrap();
        for error in [
            all.put(&location, "other".into()).await.map(drop).unwrap_err(),
            all.get(&location).await.map(drop).unwrap_err(),
            all.delete(&location).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("dot or a space"), "{error}");
        }
        if let Some((above, _)) = text.split_once('/') {
            fs::remove_dir(store.path_to_filesystem(&Path::parse(above).unwrap()).unwrap()).unwrap();
        }
    }
    assert_eq!(names(dir.path()), ["a"]);
    let location = Path::parse(format!("{plain}/a")).unwrap();
    assert_eq!(contents(&all, &location).await, b"a");
}

/// Symptom: the file of a copy kept the attribute of its object, and so could not be removed.
#[tokio::test]
async fn a_read_only_object_is_copied_and_leaves_nothing_where_it_cannot_be() {
    let (dir, store) = store(Options::new());
    let [object, copy] = ["object", "copy"].map(Path::from);
    store.put(&object, "here".into()).await.unwrap();
    let mut permissions = fs::metadata(dir.path().join("object")).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(dir.path().join("object"), permissions).unwrap();
    store.copy(&object, &copy).await.unwrap();
    assert!(matches!(store.copy_if_not_exists(&object, &copy).await, Err(Error::AlreadyExists { .. })));
    assert_eq!(names(dir.path()), ["copy", "object"]);
    // Windows does not replace a file that may only be read; Wine does.
    if let Err(error) = store.copy(&object, &copy).await {
        assert!(matches!(error, Error::Generic { .. }), "{error}");
    }
    assert_eq!(names(dir.path()), ["copy", "object"]);
    for object in [object, copy] {
        store.delete(&object).await.unwrap();
    }
    assert!(names(dir.path()).is_empty());
}

/// Each name is short enough, but the path is longer than `MAX_PATH`.
#[tokio::test]
async fn locations_may_be_long() {
    for options in [Options::new(), Options::new().durable(true)] {
        let (dir, store) = store(options.automatic_cleanup(true));
        let deep = format!("{}/{}", "d".repeat(200), "e".repeat(200));
        let [object, other] = ["object", "other"].map(|name| Path::from(format!("{deep}/{name}")));
        let mut upload = store.put_multipart(&object).await.unwrap();
        upload.put_part("contents".into()).await.unwrap();
        upload.complete().await.unwrap();
        store.copy(&object, &other).await.unwrap();
        store.rename_if_not_exists(&other, &object).await.unwrap_err();
        store.rename(&other, &object).await.unwrap();
        assert_eq!(contents(&store, &object).await, b"contents");
        let listed: Vec<_> = store.list(None).map(|found| found.unwrap().location).collect().await;
        assert_eq!(listed, [object.clone()]);
        store.delete(&object).await.unwrap();
        assert!(names(dir.path()).is_empty());
    }
}

#[tokio::test]
async fn names_that_are_none_are_refused_and_leave_nothing() {
    let (dir, store) = store(Options::new());
    for name in ["a<b", "a>b", "a\"b", "a|b", "a?b", "a*b"] {
        let error = store.put(&Path::parse(name).unwrap(), "contents".into()).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }) && error.to_string().contains(name), "{error}");
    }
    assert!(names(dir.path()).is_empty());
}

/// Two locations that differ only in case are one object.
#[tokio::test]
async fn case_does_not_tell_objects_apart() {
    let (dir, store) = store(Options::new());
    let [object, same] = ["Object", "oBJECT"].map(Path::from);
    store.put(&object, "first".into()).await.unwrap();
    assert_eq!(contents(&store, &same).await, b"first");
    for error in [
        store.put_opts(&same, "second".into(), PutMode::Create.into()).await.map(drop).unwrap_err(),
        store.copy_if_not_exists(&object, &same).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    }
    store.copy(&object, &same).await.unwrap();
    store.rename(&object, &same).await.unwrap();
    store.rename_if_not_exists(&same, &object).await.unwrap();
    assert_eq!(contents(&store, &object).await, b"first");
    store.put(&same, "second".into()).await.unwrap();
    assert_eq!(contents(&store, &object).await, b"second");
    assert_eq!(names(dir.path()).len(), 1);
    store.delete(&object).await.unwrap();
    assert!(matches!(store.head(&same).await, Err(Error::NotFound { .. })));
}

/// Another program may open a file without sharing it.
#[tokio::test]
async fn an_object_that_is_not_shared_is_busy_and_stays() {
    let (dir, store) = store(Options::new());
    let [object, other] = ["object", "other"].map(Path::from);
    store.put(&object, "here".into()).await.unwrap();
    store.put(&other, "other".into()).await.unwrap();
    let alone = fs::File::options().read(true).share_mode(0).open(dir.path().join("object")).unwrap();
    for error in [
        store.get(&object).await.map(drop).unwrap_err(),
        store.put(&object, "new".into()).await.map(drop).unwrap_err(),
        store.copy(&object, &other).await.unwrap_err(),
        store.copy(&other, &object).await.unwrap_err(),
        store.rename(&object, &Path::from("new")).await.unwrap_err(),
        store.rename(&other, &object).await.unwrap_err(),
        store.delete(&object).await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(matches!(error, Error::Generic { .. }) && text.contains(r"\o"), "{text}");
        assert!(["it is in use", "permission denied"].iter().any(|what| text.contains(what)), "{text}");
    }
    assert_eq!(names(dir.path()), ["object", "other"]);
    drop(alone);
    assert_eq!(contents(&store, &object).await, b"here");
    assert_eq!(contents(&store, &other).await, b"other");
    store.delete(&object).await.unwrap();
}

/// The store's own handles let others rename and remove the file.
#[tokio::test]
async fn an_object_that_is_read_is_renamed_replaced_and_deleted() {
    let (dir, store) = store(Options::new().piece_bytes_max(4096));
    let [object, new] = ["object", "new"].map(Path::from);
    store.put(&object, vec![1; 1 << 20].into()).await.unwrap();
    let got = store.get(&object).await.unwrap();
    store.rename(&object, &new).await.unwrap();
    assert!(got.bytes().await.unwrap() == vec![1; 1 << 20]);
    let got = store.get(&new).await.unwrap();
    match store.put(&new, "second".into()).await {
        Ok(_) => assert_eq!(contents(&store, &new).await, b"second"),
        Err(error) => assert!(is_lacking_in_wine("replacements of open files"), "{error}"),
    }
    match store.delete(&new).await {
        Ok(()) if names(dir.path()).is_empty() => {}
        left => assert!(is_lacking_in_wine("POSIX semantics of removals"), "{left:?}"),
    }
    assert!(got.bytes().await.unwrap() == vec![1; 1 << 20]);
}

/// Errors of a full and of a read-only drive. `make platforms-run` mounts both.
#[tokio::test]
async fn full_and_read_only_drives_refuse_and_keep_nothing() {
    for (variable, texts) in
        [("NOWAIT_TEST_FULL_DRIVE", &["space"][..]), ("NOWAIT_TEST_READ_ONLY_DRIVE", &["read-only", "write-protected"])]
    {
        let Some(drive) = std::env::var_os(variable) else {
            eprintln!("skipped: {variable} names no drive");
            continue;
        };
        let store = NowaitFileSystem::with_prefix(&drive, Options::new()).unwrap();
        let before = names(drive.as_ref());
        let object = Path::from("object");
        let put = store.put(&object, vec![1; 4 << 20].into()).await.unwrap_err();
        let upload = async {
            let mut upload = store.put_multipart(&object).await?;
            upload.put_part(vec![1; 4 << 20].into()).await
        };
        for error in [put, upload.await.unwrap_err()] {
            let text = error.to_string().to_lowercase();
            if text.contains("permission denied") && is_lacking_in_wine("errors of read-only drives") {
                continue;
            }
            assert!(matches!(error, Error::Generic { .. }) && texts.iter().any(|what| text.contains(what)), "{error}");
        }
        // The upload's file is removed in the background.
        for _ in 0..500 {
            if names(drive.as_ref()) == before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(names(drive.as_ref()), before);
    }
}

/// Tests the files of an upload in progress, and of one that was killed long ago.
#[tokio::test]
async fn leftovers_are_removed_when_they_are_old_and_nothing_else_is() {
    let (dir, store) = store(Options::new());
    fs::create_dir(dir.path().join("dir")).unwrap();
    for name in ["killed#12", "dir/killed#7", "dir/name#a", "plain"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let since = SystemTime::now();
    std::thread::sleep(Duration::from_millis(50));
    let object = Path::from("dir/object");
    let mut upload = store.put_multipart(&object).await.unwrap();
    upload.put_part("some".into()).await.unwrap();
    assert_eq!(store.remove_leftovers(Some(&Path::from("dir")), since).await.unwrap(), 1);
    assert_eq!(store.remove_leftovers(None, since).await.unwrap(), 1);
    assert_eq!(names(dir.path()), ["dir", "plain"]);
    upload.complete().await.unwrap();
    assert_eq!(contents(&store, &object).await, b"some");
    assert_eq!(names(&dir.path().join("dir")), ["name#a", "object"]);
}

/// Symptom: an upload lost its file. A directory has old times of a file that is still open for writing.
#[tokio::test]
async fn an_upload_that_looks_old_is_no_leftover() {
    let (dir, store) = store(Options::new());
    let object = Path::from("object");
    let mut upload = store.put_multipart(&object).await.unwrap();
    upload.put_part("some".into()).await.unwrap();
    let staged = dir.path().join(&names(dir.path())[0]);
    let later = SystemTime::now() + Duration::from_secs(1000);
    assert_eq!(store.remove_leftovers(None, later).await.unwrap(), 0);
    assert!(staged.exists());
    upload.complete().await.unwrap();
    assert_eq!(contents(&store, &object).await, b"some");
    fs::write(dir.path().join("killed#12"), "").unwrap();
    assert_eq!(store.remove_leftovers(None, later).await.unwrap(), 1);
    assert_eq!(names(dir.path()), ["object"]);
}

/// Symptom: the rename opened the file for writing, to flush it.
#[tokio::test]
async fn a_durable_store_renames_a_read_only_object() {
    let (dir, store) = store(Options::new().durable(true));
    let [object, new] = ["object", "new"].map(Path::from);
    store.put(&object, "here".into()).await.unwrap();
    let mut permissions = fs::metadata(dir.path().join("object")).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(dir.path().join("object"), permissions).unwrap();
    store.rename(&object, &new).await.unwrap();
    assert_eq!(contents(&store, &new).await, b"here");
    store.delete(&new).await.unwrap();
}

/// Symptom: Windows set another time of modification when the file was closed.
#[tokio::test]
async fn the_tag_of_a_put_is_that_of_the_object() {
    let (_dir, store) = store(Options::new());
    let object = Path::from("object");
    for _ in 0..20 {
        let put = store.put(&object, vec![1; 1 << 20].into()).await.unwrap();
        assert_eq!(put.e_tag, store.head(&object).await.unwrap().e_tag);
        let mut upload = store.put_multipart(&object).await.unwrap();
        upload.put_part("some".into()).await.unwrap();
        let put = upload.complete().await.unwrap();
        assert_eq!(put.e_tag, store.head(&object).await.unwrap().e_tag);
    }
}
