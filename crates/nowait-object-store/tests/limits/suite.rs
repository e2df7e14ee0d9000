use std::fs;

use futures::StreamExt;
use futures::future::join_all;
use nowait_object_store::Options;
use url::Url;

use super::NowaitFileSystem;
use super::object_store::path::Path;
use super::object_store::registry::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use super::object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};
use super::objects::{byte, names, store};
use crate::common::is_lacking_in_wine;

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
                if let Err(error) = store.put(&object, contents(number).into()).await {
                    return assert!(is_lacking_in_wine("replacements of open files"), "{error}");
                }
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
        let (_dir, store) = store(options);
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
            let path = store.path_to_filesystem(&object).unwrap();
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

#[tokio::test]
async fn a_copy_does_not_share_what_is_written_later_through_the_store() {
    let (dir, store) = store(Options::new());
    let (from, to) = (Path::from("from"), Path::from("to"));
    store.put(&from, "old".into()).await.unwrap();
    store.copy(&from, &to).await.unwrap();
    store.copy(&from, &from).await.unwrap();
    store.copy(&from, &Path::from("moved")).await.unwrap();
    store.rename(&Path::from("moved"), &to).await.unwrap();
    store.put(&from, "new".into()).await.unwrap();
    for (location, contents) in [("from", "new"), ("to", "old")] {
        assert_eq!(store.get(&Path::from(location)).await.unwrap().bytes().await.unwrap(), contents);
    }
    assert_eq!(names(dir.path()), ["from", "to"]);
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

#[tokio::test]
async fn urls_of_both_schemes_lead_to_files() {
    let (dir, _) = store(Options::new());
    let path = dir.path().canonicalize().unwrap().join("object");
    fs::write(&path, "here").unwrap();
    let registry = DefaultObjectStoreRegistry::new();
    NowaitFileSystem::register(Options::new(), |url, store| {
        registry.register(url.clone(), store);
    });
    let url = Url::from_file_path(&path).unwrap();
    for scheme in ["file", "nowait"] {
        let url = Url::parse(&url.as_str().replacen("file", scheme, 1)).unwrap();
        let (store, location) = registry.resolve(&url).unwrap();
        assert_eq!(store.to_string(), "NowaitFileSystem(/)");
        assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "here");
    }
}
