//! Closes that fail, and the order of syncs and renames. `strace` injects the failures, and shows the order.
//! Linux only.
#![cfg(all(feature = "object-store-0-14", target_os = "linux"))]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nowait_object_store::Options;
use nowait_object_store::v0_14::NowaitFileSystem;
use object_store_0_14::path::Path as Location;
use object_store_0_14::{ObjectStore, ObjectStoreExt, PutMode};

/// Directory that the traced process works in.
const DIR: &str = "NOWAIT_INJECTED_DIR";
/// Closes of a thread that succeed: the loader makes some.
const CLOSES: usize = 40;

/// Runs a test of this file under `strace`. Returns the trace, or none where there is no `strace`.
fn traced(test: &str, dir: &Path, options: &[&str]) -> Option<String> {
    let trace = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-qq", "-o"]).arg(trace.path()).args(options);
    command.arg(std::env::current_exe().unwrap()).args(["--ignored", "--exact", "--nocapture", test]);
    let output = match command.env(DIR, dir).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: strace (package strace): {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{output:?}");
    Some(fs::read_to_string(trace.path()).unwrap())
}

/// A directory with an object that nobody has made durable, and a link to it.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(dir.path().join("object"), "here").unwrap();
    std::os::unix::fs::symlink("object", dir.path().join("link")).unwrap();
    dir
}

fn store(options: Options) -> NowaitFileSystem {
    NowaitFileSystem::with_prefix(std::env::var_os(DIR).unwrap(), options).unwrap()
}

#[test]
#[ignore = "for `an_error_of_close_is_one_of_the_put`"]
fn puts_whose_closes_fail() {
    let nowait = nowait::Nowait::builder().pool_threads_max(1).build().unwrap();
    nowait::block_on(async {
        let store = store(Options::new().instance(&nowait));
        let mut put = Ok(());
        for _ in 0..2 * CLOSES {
            put = put.and(store.put(&Location::from("put"), "some".into()).await.map(drop));
        }
        let created = store.put_opts(&Location::from("new"), "some".into(), PutMode::Create.into()).await.map(drop);
        // A copy of a link is one of bytes, where it is no clone.
        let copied = store.copy(&Location::from("link"), &Location::from("copy")).await;
        let mut upload = store.put_multipart(&Location::from("upload")).await.unwrap();
        let completed = upload.complete().await.map(drop);
        for error in [put, created, copied, completed].map(Result::unwrap_err) {
            assert!(error.to_string().contains("close"), "{error}");
        }
    });
}

/// File systems over a network write when a file is closed, and then tell that they are full.
#[test]
fn an_error_of_close_is_one_of_the_put() {
    let dir = directory();
    let fault = ["-e", "trace=close", "-e", &format!("inject=close:error=EDQUOT:when={CLOSES}+")];
    if traced("puts_whose_closes_fail", dir.path(), &fault).is_some() {
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["link", "object", "put"]);
    }
}

#[test]
#[ignore = "for `an_upload_that_cannot_be_made_durable_is_gone_with_the_error`"]
fn uploads_whose_syncs_fail() {
    nowait::block_on(async {
        let store = store(Options::new().durable(true));
        for _ in 0..100 {
            let mut upload = store.put_multipart(&Location::from("upload")).await.unwrap();
            upload.put_part("some".into()).await.unwrap();
            upload.complete().await.unwrap_err();
            assert_eq!(fs::read_dir(std::env::var_os(DIR).unwrap()).unwrap().count(), 2);
        }
    });
}

#[test]
fn an_upload_that_cannot_be_made_durable_is_gone_with_the_error() {
    let dir = directory();
    traced("uploads_whose_syncs_fail", dir.path(), &["-e", "trace=fsync", "-e", "inject=fsync:error=EIO"]);
}

#[test]
#[ignore = "for `an_object_is_synced_before_its_new_name_and_the_directory_after`"]
fn durable_changes() {
    nowait::block_on(async {
        let store = store(Options::new().durable(true));
        store.put(&Location::from("put"), "some".into()).await.unwrap();
        store.copy(&Location::from("object"), &Location::from("copied")).await.unwrap();
        fs::write(Path::new(&std::env::var_os(DIR).unwrap()).join("other"), "here").unwrap();
        store.rename(&Location::from("other"), &Location::from("new/renamed")).await.unwrap();
    });
}

#[test]
fn an_object_is_synced_before_its_new_name_and_the_directory_after() {
    let dir = directory();
    let calls = ["-e", "trace=fsync,rename,renameat,renameat2"];
    let Some(trace) = traced("durable_changes", dir.path(), &calls) else { return };
    let name = dir.path().file_name().unwrap().to_str().unwrap();
    let mut lines = trace.lines();
    // A copy is a clone, with data of its own, or a link.
    for (synced, new, parent) in [
        (["/put#", "/put#"], "put\"", format!("{name}>")),
        (["/object>", "/copied#"], "copied\"", format!("{name}>")),
        (["/other>", "/other>"], "new/renamed\"", format!("{name}/new>")),
    ] {
        let is_synced = |line: &str, paths: &[&str]| line.contains("fsync(") && paths.iter().any(|p| line.contains(p));
        assert!(lines.any(|line| is_synced(line, &synced)), "no sync before {new}: {trace}");
        assert!(lines.any(|line| line.contains("rename") && line.contains(new)), "no rename to {new}: {trace}");
        assert!(lines.any(|line| is_synced(line, &[&parent])), "no sync of the directory of {new}: {trace}");
    }
}

#[test]
#[ignore = "for `a_copy_is_its_owners_only_until_it_is_complete`"]
fn copies_bytes() {
    // A copy of a link is one of bytes, where it is no clone.
    let copied = async { store(Options::new()).copy(&Location::from("link"), &Location::from("copy")).await };
    nowait::block_on(copied).unwrap();
}

/// Symptom: the copy of an object with mode 600 had mode 644 until its contents were complete.
#[test]
fn a_copy_is_its_owners_only_until_it_is_complete() {
    let dir = directory();
    fs::set_permissions(dir.path().join("object"), fs::Permissions::from_mode(0o640)).unwrap();
    let Some(trace) = traced("copies_bytes", dir.path(), &["-e", "trace=open,openat"]) else { return };
    let created: Vec<_> = trace.lines().filter(|line| line.contains("/copy#") && line.contains("O_EXCL")).collect();
    assert!(!created.is_empty() && created.iter().all(|line| line.contains("0600")), "{trace}");
    assert_eq!(fs::metadata(dir.path().join("copy")).unwrap().permissions().mode() & 0o7777, 0o640);
}
