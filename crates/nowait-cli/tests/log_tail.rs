//! `nowait log tail`, beside a log that this process writes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
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
    assert!(String::from_utf8_lossy(&output.stderr).contains("contains no log"), "{output:?}");
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

/// A closed log of 25 records in one segment, each in a block, and the bytes of `victim` changed
/// at `at` of its block.
fn damaged(path: &Path, victim: u64, at: usize) {
    let log = open(path);
    append(&log, 25);
    log.close().wait().unwrap();
    for entry in fs::read_dir(path).unwrap() {
        let file = entry.unwrap().path();
        let mut bytes = fs::read(&file).unwrap();
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let is_it = |at: &usize| bytes[*at..].starts_with(b"nwbk") && bytes[at + 44] > 0 && number(at + 24) == victim;
        let found = (0..bytes.len()).step_by(4096).find(is_it);
        if let Some(block) = found {
            bytes[block + at] ^= 1;
            fs::write(&file, bytes).unwrap();
            return;
        }
    }
    panic!("record {victim} is in no file");
}

/// Symptom: `tail` printed nothing of a damaged log, and its exit code was 0.
#[test]
fn damage_is_told_and_the_exit_code_is_that_of_verify() {
    // The block's header, and the record.
    for at in [24, 75] {
        for victim in [1, 20, 25] {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let path = dir.path().join("log");
            damaged(&path, victim, at);
            for arguments in [&[][..], &["-f"], &["-n", "1000", "--skip-damage"], &["-n", "1000"]] {
                let output = run(arguments, &path);
                let told = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(7), "{victim} {at} {arguments:?}: {output:?}");
                assert!(told.contains(&format!("record {victim} is lost")), "{victim} {at} {arguments:?}: {told}");
                assert!(told.contains("the log is damaged"), "{told}");
                let printed = lines(&output.stdout).len() as u64;
                match arguments.last() {
                    Some(&"--skip-damage") => assert_eq!(printed, 24, "{victim} {at}: {told}"),
                    Some(&"1000") => assert_eq!(printed, victim - 1, "{victim} {at}: {told}"),
                    _ => assert!(printed <= 10, "{output:?}"),
                }
            }
        }
    }
}

/// Symptom: `tail -n N` of a log with damage in a block of many records printed N records and those
/// before the damage in its block; with damage in an older segment, it printed fewer than N.
#[test]
fn the_last_records_before_damage_are_printed() {
    for (victim, is_batch, segments) in [(30, true, 1), (38, true, 1), (30, false, 1), (38, false, 2), (22, true, 2)] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("log");
        let log = open(&path);
        append(&log, 20);
        // Records 21 to 40, in a block or in a block each.
        let records: Vec<String> = (21..=40).map(|lsn| format!("record {lsn}")).collect();
        match is_batch {
            true => drop(log.append_batch(records.iter().map(String::as_bytes)).wait().unwrap().wait().unwrap()),
            false => append(&log, 20),
        }
        log.close().wait().unwrap();
        if segments == 2 {
            let log = open(&path);
            append(&log, 3);
            log.close().wait().unwrap();
        }
        let last = if segments == 2 { 43 } else { 40 };
        let text = format!("record {victim}");
        let hit = fs::read_dir(&path).unwrap().find_map(|entry| {
            let file = entry.unwrap().path();
            let bytes = fs::read(&file).unwrap();
            let at = bytes.windows(text.len()).position(|bytes| bytes == text.as_bytes())?;
            Some((file, at as u64))
        });
        let (file, at) = hit.unwrap();
        fs::File::options().write(true).open(file).unwrap().write_all_at(b"R", at).unwrap();

        let case = format!("{victim} {is_batch} {segments}");
        let numbers = |output: &Output| -> Vec<u64> {
            let number = |line: String| line.split(' ').next().unwrap().parse().unwrap();
            lines(&output.stdout).into_iter().map(number).collect()
        };
        for count in [7, 25] {
            let output = run(&["-n", &count.to_string()], &path);
            // The last three records are intact, and so is the block of the damaged one.
            let begin = if victim == 22 && count == 7 && segments == 2 { 37 } else { victim - count.min(victim - 1) };
            let end = if begin == 37 { last + 1 } else { victim };
            assert_eq!(numbers(&output), Vec::from_iter(begin..end), "{case} -n {count}: {output:?}");
        }
        let output = run(&["-n", "25", "--skip-damage"], &path);
        let expected: Vec<u64> = (last - 24..=last).filter(|lsn| *lsn != victim).collect();
        assert_eq!(numbers(&output), expected, "{case}: {output:?}");
        assert_eq!(output.status.code(), Some(7), "{case}");
    }
}

/// The newest segment without a header, the control file, and a segment between, that is missing.
#[test]
fn damage_without_a_block_is_told() {
    for case in 0..3 {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("log");
        for _ in 0..3 {
            let log = open(&path);
            append(&log, 25);
            log.close().wait().unwrap();
        }
        let mut files: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|e| e == "seg"));
        files.retain(|file| fs::read(file).unwrap().iter().any(|byte| *byte != 0));
        files.sort();
        match case {
            0 => fs::write(files.last().unwrap(), vec![7; 1 << 20]).unwrap(),
            1 => fs::write(path.join("control"), b"no control file").unwrap(),
            _ => fs::remove_file(&files[1]).unwrap(),
        }
        for arguments in [&[][..], &["-f"], &["--skip-damage"]] {
            let output = run(arguments, &path);
            assert_eq!(output.status.code(), Some(7), "{case} {arguments:?}: {output:?}");
            assert!(!output.stderr.is_empty(), "{output:?}");
        }
    }
}

/// Damage that comes while it is followed.
#[test]
fn damage_is_told_while_a_log_is_followed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    append(&log, 3);
    let mut tail = Running(command(&["--follow"], &path).spawn().unwrap());
    let mut printed = BufReader::new(tail.0.stdout.take().unwrap()).lines();
    for lsn in 1..=3 {
        assert!(printed.next().unwrap().unwrap().ends_with(&format!("record {lsn}")));
    }
    // Stopped, so that the record is damaged before it is read.
    let pid = Pid::from_raw(i32::try_from(tail.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let is_stopped = || fs::read_to_string(format!("/proc/{}/stat", tail.0.id())).unwrap().contains(") T ");
    while !is_stopped() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    append(&log, 1);
    let files = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let hit = files.filter(|file| file.extension().is_some_and(|e| e == "seg")).find_map(|file| {
        let bytes = fs::read(&file).unwrap();
        let at = bytes.windows(8).position(|bytes| bytes == b"record 4")?;
        Some((file, at as u64))
    });
    let (file, at) = hit.unwrap();
    fs::File::options().write(true).open(file).unwrap().write_all_at(b"R", at).unwrap();
    append(&log, 2);
    kill_process(pid, Signal::CONT).unwrap();
    let mut told = String::new();
    tail.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(tail.0.wait().unwrap().code(), Some(7), "{told}");
    assert!(told.contains("record 4 is lost"), "{told}");
    log.close().wait().unwrap();
}

/// Symptom: `tail -f` continued to watch a directory that was removed.
#[test]
fn a_directory_that_is_replaced_ends_it() {
    for case in ["removed", "renamed", "replaced", "made anew inside"] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("log");
        let log = open(&path);
        append(&log, 2);
        log.close().wait().unwrap();
        let mut tail = Running(command(&["-f"], &path).spawn().unwrap());
        let mut output = BufReader::new(tail.0.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        // A look between two removals would find damage.
        let process = Pid::from_child(&tail.0);
        kill_process(process, Signal::STOP).unwrap();
        match case {
            "removed" => fs::remove_dir_all(&path).unwrap(),
            "renamed" => fs::rename(&path, dir.path().join("other")).unwrap(),
            "replaced" => {
                fs::rename(&path, dir.path().join("other")).unwrap();
                open(&path).close().wait().unwrap();
            }
            _ => {
                for entry in fs::read_dir(&path).unwrap() {
                    fs::remove_file(entry.unwrap().path()).unwrap();
                }
                open(&path).close().wait().unwrap();
            }
        }
        kill_process(process, Signal::CONT).unwrap();
        let mut told = String::new();
        tail.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(tail.0.wait().unwrap().code(), Some(5), "{case}: {told}");
        assert!(told.contains("removed, renamed or replaced"), "{case}: {told}");
    }
}
