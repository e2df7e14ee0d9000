//! `nowait log tail`, beside a log that this process writes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nowait_log::{Log, Options};
use rustix::process::{Pid, Signal, kill_process};

fn open(path: &Path) -> Log {
    Log::open(path, &Options::new().create(true).segment_bytes(1 << 20)).wait().unwrap().0
}

fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let text = format!("record {}", log.last_lsn() + 1);
        log.append(text.as_bytes()).wait().unwrap().wait().unwrap();
    }
}

fn command(arguments: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nowait"));
    command.args(["log", "tail"]).args(arguments).arg(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str], dir: &Path) -> Output {
    command(arguments, dir).output().unwrap()
}

fn lines(output: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(output).lines().map(|line| line.trim().to_owned()).collect()
}

/// Ended, whatever the test does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_last_records_are_printed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    append(&log, 25);
    // While it is open, and when it is closed.
    for closed in [false, true] {
        let output = run(&[], &path);
        assert!(output.status.success(), "{closed}: {output:?}");
        let expected: Vec<String> = (16..=25).map(|lsn| format!("{lsn}        9  record {lsn}")).collect();
        assert_eq!(lines(&output.stdout), expected);
        let output = run(&["-n", "2", "--json"], &path);
        let hex: String = b"record 25".iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(lines(&output.stdout)[1] == format!(r#"{{"bytes":"{hex}","kind":0,"lsn":25}}"#), "{output:?}");
        assert_eq!(lines(&run(&["-n", "0"], &path).stdout).len(), 0);
        assert_eq!(lines(&run(&["-n", "1000"], &path).stdout).len(), 25);
        if !closed {
            log.clone().close().wait().unwrap();
        }
    }
    let output = run(&[], dir.path());
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("holds no log"), "{output:?}");
}

#[test]
fn records_to_come_are_printed_until_it_is_interrupted_and_a_cut_is_told() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    append(&log, 12);
    let mut tail = Running(command(&["--follow", "-n", "3"], &path).spawn().unwrap());
    let mut printed = BufReader::new(tail.0.stdout.take().unwrap()).lines();
    let mut expect = |lsn: u64| {
        let line = printed.next().unwrap().unwrap();
        assert!(
            line.trim_start().starts_with(&format!("{lsn} ")) && line.ends_with(&format!("record {lsn}")),
            "{line}"
        );
    };
    (10..=12).for_each(&mut expect);
    append(&log, 3);
    (13..=15).for_each(&mut expect);
    log.truncate_suffix(14).wait().unwrap();
    append(&log, 2);
    (15..=16).for_each(&mut expect);
    let pid = Pid::from_raw(i32::try_from(tail.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut told = String::new();
    tail.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(tail.0.wait().unwrap().code(), Some(130), "{told}");
    assert!(told.contains("cut off after record 14") && told.contains("interrupted"), "{told}");
    log.close().wait().unwrap();
}

/// Nothing is printed to an idle log's reader that would fail.
#[test]
fn it_ends_when_nobody_reads_what_it_prints() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    append(&log, 2);
    let mut running = Running(command(&["-f"], &path).spawn().unwrap());
    let mut output = BufReader::new(running.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    drop(output);
    assert!(running.0.wait().unwrap().success());
    log.close().wait().unwrap();
}
