//! What a process keeps: memory of readers whose clients stall, what a short range reads from the
//! device, and descriptors and threads after runtimes, instances and threads have ended. Each in a
//! process of its own, whose counters it reads.

use std::fs;

use crate::common::{Sample, child, cold, eventually, poll_once, resources};
use crate::promises::mix::*;
use futures::future::join_all;
use nowait::stream::Reader;
use nowait::{Buf, Engine, File, Nowait, Route};
use tokio::runtime;

const PAGE: usize = 4096;

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

/// Symptom: a runtime without I/O was found out by the panic of a task, which every process
/// printed, and which ended those with `panic = "abort"`.
#[test]
fn tokio_without_io() {
    child::play("without io");
}

fn without_io() {
    // As with `panic = "abort"`, whoever would catch it.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    on_each_instance("tokio_without_io", |file, sample, _| {
        for time in [false, true] {
            for mut builder in [runtime::Builder::new_multi_thread(), runtime::Builder::new_current_thread()] {
                if time {
                    builder.enable_time();
                }
                let runtime = builder.build().unwrap();
                read_mix_in(&runtime, &file, sample, 2);
            }
        }
    });
}

/// Queues without an owner have a watcher; a reactor makes it superfluous.
#[test]
fn attached_runtimes_need_no_thread_of_ours() {
    child::play("attached");
}

fn attached() {
    let nowait = match Nowait::builder().engine(Engine::Uring).route(Some(Route::Ring)).build() {
        Ok(nowait) => nowait,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let sample = Sample::leaked(LEN);
    let file = sample.open(&nowait);
    let watcher_runs = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.into_iter().any(|name| name.trim() == "nowait-watch-2")
    };
    for attached in [true, false] {
        let runtime = Runtimes(attached.then(|| nowait.clone())).multi_thread();
        let clone = file.clone();
        runtime.block_on(runtime.spawn(async move { read_mix(&clone, sample).await })).unwrap();
        assert_eq!(watcher_runs(), !(attached && cfg!(feature = "tokio")), "attached: {attached}");
    }
    std::fs::remove_dir_all(sample.path.parent().unwrap()).unwrap();
}

#[test]
fn short_lived_runtimes_leave_nothing_behind() {
    child::play("runtimes");
}

/// Their watching tasks never run.
#[test]
fn runtimes_that_end_at_once_leave_nothing_behind() {
    child::play("unwatched");
}

#[test]
fn short_lived_instances_leave_nothing_behind() {
    child::play("instances");
}

#[test]
fn short_lived_threads_leave_nothing_behind() {
    child::play("threads");
}

#[test]
fn a_thread_that_reads_cached_pages_has_no_descriptors() {
    child::play("cached");
}

fn read_cached() {
    let sample = Sample::new(LEN);
    let file = sample.open(Nowait::shared());
    let makes_none = |_| {
        std::fs::read(&sample.path).unwrap();
        let before = resources().0;
        let read = || {
            nowait::block_on(file.read_range(8192, PAGE)).unwrap();
            file.read_range(0, PAGE).wait().unwrap();
            resources().0 == before
        };
        std::thread::scope(|scope| scope.spawn(read).join().unwrap())
    };
    // The kernel may take pages away between two calls.
    assert!((0..10).any(makes_none));
}

async fn few(file: &File) {
    let reads = join_all((0..20).map(|i| file.read_range(i * 50_000, PAGE))).await;
    reads.into_iter().for_each(|read| assert_eq!(read.unwrap().len(), PAGE));
}

#[test]
fn child() {
    let Some(role) = child::role() else { return };
    match role.as_str() {
        "stalled clients" => return stalled_clients(),
        "short range" => return short_range(),
        "without io" => return without_io(),
        "attached" => return attached(),
        "cached" => return read_cached(),
        _ => {}
    }
    let sample = Sample::new(LEN);
    let file = sample.open(Nowait::shared());
    let round = |i: usize| match role.as_str() {
        "runtimes" => {
            sample.cool();
            let runtimes = &Runtimes::of(Nowait::shared())[i / 2 % 2];
            let runtime = if i % 2 == 0 { runtimes.multi_thread() } else { runtimes.current_thread() };
            let file = file.clone();
            runtime.block_on(runtime.spawn(async move { few(&file).await })).unwrap();
        }
        "unwatched" => {
            sample.cool();
            let file = file.clone();
            let begin = async move { poll_once(Box::pin(few(&file)).as_mut()).is_ready() };
            let runtimes = &Runtimes::of(Nowait::shared())[i % 2];
            let runtime = runtimes.make(runtime::Builder::new_current_thread().enable_all().event_interval(1));
            runtime.block_on(runtime.spawn(begin)).unwrap();
        }
        "instances" => {
            let nowait = Nowait::builder().route([None, Some(Route::Ring)][i % 2]).build().unwrap();
            let file = sample.cool().open(&nowait);
            futures::executor::block_on(few(&file));
            // Dropped with reads in flight.
            sample.cool();
            let _ = poll_once(Box::pin(few(&file)).as_mut());
        }
        "threads" => std::thread::scope(|scope| {
            scope.spawn(|| {
                sample.cool();
                nowait::block_on(few(&file));
                futures::executor::block_on(few(&file));
            });
        }),
        other => unreachable!("{other}"),
    };
    (0..4).for_each(round);
    let before = resources();
    (0..50).for_each(round);
    // A few may be on their way out; threads of a pool stay for seconds, and are bounded.
    let pool = std::thread::available_parallelism().map_or(1, |n| n.get());
    let kept = || resources().0 < before.0 + 5 + pool && resources().1 < before.1 + 5 + pool;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| std::fs::read_link(fd.path()));
    assert!(
        eventually(kept),
        "descriptors and threads: {before:?} before, {:?} after: {:?}",
        resources(),
        open().collect::<Vec<_>>()
    );
}
