//! `nowait log verify`, `stat` and `repair`: what they say of a log, and of what is none.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nowait_log::{Log, Options};
use rustix::process::{Pid, Signal, kill_process};

fn run(command: &str, dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nowait")).args(["log", command]).arg(dir).output().unwrap()
}

/// Output of a command that finds no fault with a log.
fn said(command: &str, dir: &Path) -> String {
    let output = run(command, dir);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn append(log: &Log, record: &[u8]) {
    log.append(record).wait().unwrap().wait().unwrap();
}

#[test]
fn a_log_that_is_open_and_one_that_is_closed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &Options::new().create(true).segment_bytes(1 << 20)).wait().unwrap();
    assert!(said("verify", &path).contains("no records, the next is 1; "), "{}", said("verify", &path));
    append(&log, b"one");
    let text = said("verify", &path);
    assert!(text.contains("record 1 in 1 segment, ") && text.contains("  not closed"), "{text}");
    append(&log, b"two");
    log.close().wait().unwrap();
    let text = said("stat", &path);
    assert!(text.contains("records 1 to 2 in ") && text.contains("\n  closed"), "{text}");
    assert!(text.contains("segments of up to 1.0 MiB") && !text.contains("Write"), "{text}");
    assert!(said("repair", &path).contains("nothing to repair"));
}

#[test]
fn what_is_no_log() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"no log").unwrap();
    let missing = dir.path().join("missing");
    for (path, why) in [(dir.path(), "contains no log"), (&missing, "contains no log"), (&file, "is not a directory")] {
        for command in ["verify", "stat", "repair", "dump", "tail", "truncate --before 1"] {
            let mut nowait = Command::new(env!("CARGO_BIN_EXE_nowait"));
            let output = nowait.arg("log").args(command.split(' ')).arg(path).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(5), "{command}: {error}");
            assert!(error.contains(why) && error.contains(&*path.to_string_lossy()), "{command}: {error}");
        }
    }
}

/// Damage in the first block, and nothing is kept.
#[test]
fn a_repair_that_keeps_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &Options::new().create(true).segment_bytes(1 << 20)).wait().unwrap();
    append(&log, b"a record that is lost");
    log.close().wait().unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let segment = entry.unwrap().path();
        let mut bytes = fs::read(&segment).unwrap();
        if let Some(at) = bytes.windows(21).position(|bytes| bytes == b"a record that is lost") {
            bytes[at] ^= 1;
            fs::write(&segment, bytes).unwrap();
        }
    }
    assert_eq!(run("verify", &path).status.code(), Some(7));
    let text = said("repair", &path);
    assert!(text.contains("done: keep no record; the next is 2"), "{text}");
    let text = said("verify", &path);
    assert!(text.contains("no records, the next is 2; ") && text.contains("left out by a repair: record 1"), "{text}");
}

/// Symptom: a full disk under the output was told as if the log's own were full.
#[test]
fn records_that_cannot_be_printed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &Options::new().create(true).segment_bytes(1 << 20)).wait().unwrap();
    append(&log, b"a record");
    log.close().wait().unwrap();
    for command in ["dump", "tail"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut nowait = Command::new(env!("CARGO_BIN_EXE_nowait"));
        let output = nowait.args(["log", command]).arg(&path).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {error}");
        assert!(error.contains("cannot print the records"), "{command}: {error}");
    }
}

/// By the command, and of a log that another process has open.
#[test]
fn the_oldest_records_are_removed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let options = Options::new().create(true).segment_bytes(64 << 10).first_segment_bytes(16 << 10);
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    (0..100).for_each(|_| append(&log, &[b'x'; 3000]));
    let truncate = |before: &str| {
        let mut nowait = Command::new(env!("CARGO_BIN_EXE_nowait"));
        nowait.args(["log", "truncate", "--before", before]).arg(&path).output().unwrap()
    };
    assert_eq!(truncate("50").status.code(), Some(8), "it is open");
    log.close().wait().unwrap();
    for (before, text) in [("1", "no record removed"), ("50", "removed: records 1 to "), ("50", "no record removed")] {
        let output = truncate(before);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains(text) && told.contains(" to 100 in "), "{output:?}");
    }
    let left = said("verify", &path);
    assert!(left.contains(" to 100 in ") && !left.contains("records 1 to"), "{left}");
    // Symptom: a number beyond the log, such as one with a digit too many, removed all segments but one.
    let output = truncate("102");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("the last record is 100; name 101 at most"), "{told}");
    assert_eq!(said("verify", &path).lines().next(), left.lines().next());
    assert!(truncate("101").status.success());
}

/// Symptom: after a repair that left out the last records, `verify` and `stat` counted them as present.
#[test]
fn records_that_a_repair_left_out_are_not_counted() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let options = Options::new().create(true).segment_bytes(1 << 20);
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    (0..9).for_each(|number| append(&log, format!("record {number}").as_bytes()));
    log.close().wait().unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let segment = entry.unwrap().path();
        let mut bytes = fs::read(&segment).unwrap();
        if let Some(at) = bytes.windows(8).position(|bytes| bytes == b"record 5") {
            bytes[at] ^= 1;
            fs::write(&segment, bytes).unwrap();
        }
    }
    said("repair", &path);
    for command in ["verify", "stat"] {
        let text = said(command, &path);
        assert!(text.contains("records 1 to 5; the next is 10; "), "{text}");
        assert!(text.contains("left out by a repair: records 6 to 9"), "{text}");
    }
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    append(&log, b"after the repair");
    log.close().wait().unwrap();
    let text = said("verify", &path);
    assert!(text.contains("records 1 to 10 in ") && text.contains("left out by a repair: records 6 to 9"), "{text}");
}

/// Symptom: after a signal the directory stayed, and the writer printed "Broken pipe".
#[test]
fn an_interrupted_torture_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut nowait = Command::new(env!("CARGO_BIN_EXE_nowait"));
        nowait.args(["log", "torture", "--kills", "1000000"]).arg(dir.path());
        let child = nowait.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let has_log = || {
            let log = fs::read_dir(dir.path()).unwrap().next()?.unwrap().path();
            fs::read_dir(log).ok()?.next()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while has_log().is_none() {
            assert!(Instant::now() < deadline, "it has not begun");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert!(told.lines().count() == 1 && told.starts_with("nowait: interrupted after "), "{told}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_torture_tells_what_the_retention_removed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nowait"))
        .args(["log", "torture", "--kills", "2"])
        .arg(dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains(" records were acknowledged; all are present"), "{output:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Of a log that this process has open.
#[test]
fn a_log_is_backed_up_while_it_is_written() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, copy) = (dir.path().join("log"), dir.path().join("copy"));
    let (log, _) = Log::open(&path, &Options::new().create(true).segment_bytes(1 << 20)).wait().unwrap();
    append(&log, b"one");
    append(&log, b"two");
    let back_up = |dir: &Path, dest: &Path| {
        let mut nowait = Command::new(env!("CARGO_BIN_EXE_nowait"));
        nowait.args(["log", "backup"]).arg(dir).arg(dest).output().unwrap()
    };
    let output = back_up(&path, &copy);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("records 1 to 2 in "), "{output:?}");
    assert!(said("verify", &copy).contains("records 1 to 2 in "));
    assert_eq!(back_up(&path, &copy).status.code(), Some(2), "it is there");
    assert_eq!(back_up(&copy.join("none"), &dir.path().join("other")).status.code(), Some(5));
    let output = back_up(&path, &dir.path().join("none/copy"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(5) && error.contains("none/"), "{output:?}");
    assert_eq!(back_up(&path, &path.join("control/copy")).status.code(), Some(5), "below a file");
    log.close().wait().unwrap();
}
