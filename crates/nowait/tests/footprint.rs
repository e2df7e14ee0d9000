//! What streams cost a server beside time: the memory of readers whose clients stall, and what a
//! short range reads from the device. Each in a process of its own, whose counters it reads.

mod common;

use std::fs;

use common::{Sample, child, cold};
use futures::future::join_all;
use nowait::stream::Reader;
use nowait::{Buf, Nowait};

/// A figure of a file in /proc/self, in the file's unit.
fn figure(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_ascii_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

#[test]
fn readers_whose_clients_stall() {
    child::play("stalled clients");
}

#[test]
fn a_short_range() {
    child::play("short range");
}

#[test]
fn child() {
    match child::role().as_deref() {
        Some("stalled clients") => stalled_clients(),
        Some("short range") => short_range(),
        _ => {}
    }
}

/// Each sends a part of the same file, and then holds what it would send next.
fn stalled_clients() {
    const CLIENTS: usize = 300;
    const LEN: usize = 16 << 20;
    let sample = Sample::new(LEN);
    let nowait = Nowait::builder().build().unwrap();
    let file = sample.open(&nowait);
    for (sent, kib_max) in [(0, 80), (1 << 20, 600)] {
        let before = figure("status", "RssAnon:");
        let client = async || {
            let mut reader = Reader::new(&file, 0);
            let mut held: Option<Buf> = None;
            let mut given = 0;
            while held.is_none() || given < sent {
                held = reader.chunk().await.unwrap();
                given += held.as_ref().unwrap().len();
            }
            (reader, held)
        };
        let held = nowait::block_on(join_all((0..CLIENTS).map(|_| client())));
        let each = (figure("status", "RssAnon:").saturating_sub(before)) / CLIENTS as u64;
        println!("a client that stalled after {sent} bytes holds {each} KiB");
        assert!(each <= kib_max, "{each} KiB of {kib_max}, after {sent} bytes");
        drop(held);
        nowait.drain();
    }
}

fn short_range() {
    const BYTES: u64 = 1000;
    const RANGES: u64 = 20;
    let sample = Sample::new(64 << 20);
    if cold::is_in_memory(&sample.path) {
        return eprintln!("skipped: a file in memory is never cold");
    }
    let nowait = Nowait::builder().build().unwrap();
    let file = sample.open(&nowait);
    sample.cool();
    let before = figure("io", "read_bytes:");
    for i in 0..RANGES {
        let offset = i * 3_000_017;
        let mut reader = Reader::range(&file, offset..offset + BYTES);
        let mut bytes = Vec::new();
        while let Some(chunk) = nowait::block_on(reader.chunk()).unwrap() {
            bytes.extend_from_slice(&chunk);
        }
        assert!(bytes == sample.expected(offset, BYTES as usize));
    }
    let each = (figure("io", "read_bytes:") - before) / RANGES;
    println!("a range of {BYTES} bytes reads {each} bytes from the device");
    assert!(each > 0, "it is cold");
    assert!(each <= 64 << 10, "{each} bytes for a range of {BYTES}");
}
