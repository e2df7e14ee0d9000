//! Signals and forks. Linux only: only there are promises made for a forked child, and only `/proc` shows the
//! signals that a thread blocks.
#![cfg(target_os = "linux")]

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::{child, eventually, mounts};
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy};

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Ring, depth: 2 };
    Options::new().create(true).segment_bytes(128 << 10).sync(SyncPolicy::Fixed(strategy))
}

fn record(lsn: u64) -> Vec<u8> {
    vec![lsn as u8; 100 + lsn as usize]
}

/// Symptom: SIGTERM ended a program that reads its signals from a descriptor, since a thread of a log received it.
#[test]
fn threads_of_a_log_block_signals() {
    const TERM: i32 = libc::SIGTERM;
    let dir = mounts::temp_dir();
    let (log, _) = Log::open(dir.path(), &options()).wait().unwrap();
    let blocks = || {
        let of = |task: &Path| {
            let name = fs::read_to_string(task.join("comm")).ok().filter(|name| name.starts_with("nowait-log"))?;
            let status = fs::read_to_string(task.join("status")).ok()?;
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
            Some((name, u64::from_str_radix(mask.trim(), 16).unwrap() >> (TERM - 1) & 1 == 1))
        };
        fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(|task| of(&task.path())).collect::<Vec<_>>()
    };
    let has_writer = || {
        let tickets = [0; 20].map(|_| log.append(b"one of many").wait().unwrap());
        tickets.into_iter().for_each(|ticket| ticket.on_durable(|answer| _ = answer.unwrap()));
        log.append(b"the last").wait().unwrap().wait().unwrap();
        // The kernel keeps 15 bytes of a name.
        blocks().iter().any(|(name, _)| name.trim() == "nowait-log-writ")
    };
    assert!(eventually(has_writer), "the log has threads");
    assert!(blocks().iter().all(|(_, blocks)| *blocks), "{:?}", blocks());
    log.close().wait().unwrap();
}

#[test]
fn a_fork_leaves_the_log_to_the_parent() {
    let dir = mounts::temp_dir();
    child::play_at("fork", dir.path());
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("fork") => fork(&child::path().join("log")),
        Some(other) => unreachable!("{other}"),
    }
}

fn fork(path: &Path) {
    let (log, _) = Log::open(path, &options()).wait().unwrap();
    log.append(&record(1)).wait().unwrap().wait().unwrap();
    let pending = log.append(&record(2)).wait().unwrap();
    // SAFETY: the child makes only calls that the library permits in a forked child.
    let id = unsafe { libc::fork() };
    if id == 0 {
        // No call takes a lock that a thread of the parent may have held at the fork: the child lacks
        // that thread, so such a lock would stay held.
        let refused = log.append(b"the child's").wait().is_err()
            && pending.wait().is_err()
            && log.reader(1).next().wait().is_err()
            && log.wait_durable(1).wait().is_err();
        drop(log);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made; the status is ours.
    assert_eq!(unsafe { libc::waitpid(id, &mut status, 0) }, id);
    assert_eq!(status, 0, "the child was refused");
    pending.wait().unwrap();
    log.append(&record(3)).wait().unwrap().wait().unwrap();
    let mut reader = log.reader(1);
    for lsn in 1..=3 {
        assert_eq!(reader.next().wait().unwrap().unwrap().bytes, record(lsn));
    }
    log.close().wait().unwrap();
}
