//! `nowait-cache` under many tasks, in bounded memory, and its writes.
//!
//! `cargo run --release --example cache_tasks -- DIR [tasks|writes]`. Makes a file in DIR and removes
//! it. The ways of a case take turns. A line shows the medians of a way's rounds and their spread.
//!
//! `tasks` runs each way as a separate process in a memory cgroup, so it needs root. 64 tasks on two
//! tokio workers read random pages of a file twice as large as the cache. 90 % of the reads go to a hot
//! set of 80 % of the cache's size. `pread` and `mmap` run under the same memory limit.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hdrhistogram::Histogram;
use memmap2::{Advice, Mmap};
use nowait::OpenOptions;
use nowait_bench::random::Random;
use nowait_bench::stats::median;
use nowait_cache::{Access, CachedFile, PageCache};

const PAGE: usize = 4096;
const CACHE: u64 = 128 << 20;
const FILE: u64 = 2 * CACHE;
/// Memory of a process beside its cache: program, stacks, metadata, tables of the kernel.
const BESIDE: u64 = 48 << 20;
const ROUNDS: usize = 5;
const TASKS: u64 = 64;
/// Bytes of a page that a task looks at.
const SEEN: usize = 64;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--child", way, path, group] => child(way, Path::new(path), Path::new(group)),
        [dir, only @ ..] if only.len() <= 1 => {
            let file = tempfile::NamedTempFile::new_in(dir)?;
            let (mut random, mut block) = (Random::of(1, 0), vec![0_u8; 1 << 20]);
            for offset in (0..FILE).step_by(block.len()) {
                block.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.number().to_le_bytes()));
                file.as_file().write_all_at(&block, offset)?;
            }
            file.as_file().sync_all()?;
            if only.iter().all(|only| *only == "tasks") {
                tasks(file.path())?;
            }
            if only.iter().all(|only| *only == "writes") {
                writes(file.path())?;
            }
            Ok(())
        }
        _ => Err("usage: cache_tasks DIR [tasks|writes]".into()),
    }
}

/// Memory cgroup, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let is_second = root.join("cgroup.controllers").exists();
        let (parent, limit) = match is_second {
            true => (root.to_path_buf(), "memory.max"),
            false => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let group = Group(parent.join(format!("nowait-cache-{}", std::process::id())));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join(limit), (CACHE + BESIDE).to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn tasks(path: &Path) -> Result<()> {
    let mut figures = BTreeMap::<String, BTreeMap<String, Vec<f64>>>::new();
    for _ in 0..ROUNDS {
        for way in ["lease", "pread", "mmap"] {
            fs::write("/proc/sys/vm/drop_caches", "1")?;
            let group = Group::new()?;
            let program = std::env::current_exe()?;
            let output = Command::new(program).args(["--child", way]).arg(path).arg(&group.0).output()?;
            if !output.status.success() {
                return Err(format!("{way}: {}", String::from_utf8_lossy(&output.stderr)).into());
            }
            for line in String::from_utf8(output.stdout)?.lines() {
                let (name, value) = line.split_once(": ").ok_or("a line without a value")?;
                figures.entry(name.into()).or_default().entry(way.into()).or_default().push(value.parse()?);
            }
        }
    }
    for (name, ways) in figures {
        print(&format!("{TASKS} tasks: {name}"), &ways);
    }
    Ok(())
}

fn print(case: &str, ways: &BTreeMap<String, Vec<f64>>) {
    println!("{case}");
    for (way, rounds) in ways {
        let middle = median(rounds);
        let (low, high) =
            rounds.iter().fold((f64::MAX, 0_f64), |(low, high), value| (low.min(*value), high.max(*value)));
        println!("  {way:<32} {middle:10.1} ({:.2}–{:.2})", low / middle, high / middle);
    }
}

/// Bytes of a page in each way.
#[derive(Clone)]
enum Way {
    Lease(CachedFile),
    Pread(Arc<File>),
    Map(Arc<Mmap>),
}

impl Way {
    /// Reads a page; returns true if it was found without a read of the device.
    async fn read(&self, offset: u64) -> Result<bool> {
        let see = |page: &[u8]| {
            black_box(<[u8; SEEN]>::try_from(&page[..SEEN]).expect("a page is longer"));
        };
        // A read of the device takes longer on this machine, a cached one less.
        let is_quick = |begun: Instant| begun.elapsed() < Duration::from_micros(20);
        match self {
            Way::Lease(file) => {
                let range = offset..offset + PAGE as u64;
                if let Some(lease) = file.try_get(range.clone()) {
                    see(&lease);
                    return Ok(true);
                }
                see(&file.get(range).await?);
                Ok(false)
            }
            Way::Pread(file) => {
                let (begun, mut page) = (Instant::now(), [0; PAGE]);
                file.read_exact_at(&mut page, offset)?;
                see(&page);
                Ok(is_quick(begun))
            }
            Way::Map(map) => {
                let begun = Instant::now();
                see(&map[offset as usize..][..PAGE]);
                Ok(is_quick(begun))
            }
        }
    }
}

/// Times of up to a minute, in ns.
fn new_times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are allowed")
}

/// Joins the cgroup, lets the tasks read, and prints the figures.
fn child(way: &str, path: &Path, group: &Path) -> Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    let way = match way {
        "lease" => {
            let file = OpenOptions::new().read(true).direct(true).open(path).wait()?;
            let cache = PageCache::builder().capacity_bytes(CACHE).page_bytes(PAGE).read_ahead_bytes_max(0);
            Way::Lease(cache.build()?.open(&file, Access::Immutable)?)
        }
        "pread" => {
            let file = File::open(path)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
            Way::Pread(Arc::new(file))
        }
        _ => {
            // SAFETY: the file belongs to the parent, and nothing changes it.
            let map = unsafe { Mmap::map(&File::open(path)?)? };
            map.advise(Advice::Random)?;
            Way::Map(Arc::new(map))
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // As a program on tokio does (docs/guide/tokio.md): its workers notice completions themselves.
    if let Way::Lease(_) = way {
        runtime.block_on(async { nowait::Nowait::shared().attach_tokio() })?;
    }
    let begun = Instant::now();
    let (from, until) = (begun + Duration::from_secs(3), begun + Duration::from_secs(8));
    let (pages, hot) = (Random::of(7, 0).permutation(FILE / PAGE as u64), CACHE / PAGE as u64 * 4 / 5);
    let pages = Arc::new(pages);
    let (reads, found) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let all = (0..TASKS).map(|task| {
        let (way, pages, reads, found) = (way.clone(), pages.clone(), reads.clone(), found.clone());
        runtime.spawn(async move {
            let mut random = Random::of(11, task);
            let mut times = new_times();
            loop {
                let place = match random.below(10) {
                    0 => hot + random.below(pages.len() as u64 - hot),
                    _ => random.below(hot),
                };
                // From the moment at which the task could run: it includes the wait for a worker.
                let begun = Instant::now();
                tokio::task::yield_now().await;
                let is_found = way.read(pages[place as usize] * PAGE as u64).await?;
                let ended = Instant::now();
                if ended >= until {
                    return Result::Ok(times);
                }
                if begun >= from {
                    reads.fetch_add(1, Ordering::Relaxed);
                    found.fetch_add(is_found.into(), Ordering::Relaxed);
                    if is_found {
                        times.saturating_record((ended - begun).as_nanos() as u64);
                    }
                }
            }
        })
    });
    let all: Vec<_> = all.collect();
    let mut times = new_times();
    for task in all {
        times.add(runtime.block_on(task)??)?;
    }
    let reads = reads.load(Ordering::Relaxed) as f64;
    println!("thousand reads a second: {}", reads / 1e3 / (until - from).as_secs_f64());
    println!("found, %: {}", found.load(Ordering::Relaxed) as f64 * 100.0 / reads);
    println!("p99.9 of a page that was found, us: {}", times.value_at_quantile(0.999) as f64 / 1e3);
    let status = fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    println!("anonymous memory, MiB: {}", resident.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0);
    Ok(())
}

/// Random pages, 32 writes at a time, in allocated space.
fn writes(path: &Path) -> Result<()> {
    const BATCHES: usize = 150;
    let file = OpenOptions::new().read(true).write(true).direct(true).open(path).wait()?;
    let open = |capacity: u64| -> Result<CachedFile> {
        let cache = PageCache::builder().capacity_bytes(capacity).page_bytes(PAGE).read_ahead_bytes_max(0);
        Ok(cache.build()?.open(&file, Access::Exclusive)?)
    };
    // One that contains no page that is written, and one that contains all.
    let (small, large) = (open(4 << 20)?, open(FILE + CACHE)?);
    for offset in (0..FILE).step_by(1 << 20) {
        drop(large.get(offset..offset + (1 << 20)).wait()?);
    }
    let mut figures = BTreeMap::<String, Vec<f64>>::new();
    let mut random = Random::of(3, 0);
    let mut workers = 0;
    for round in 0..=7 {
        for way in ["writes of the file", "of pages that are not cached", "of cached pages"] {
            let begun = Instant::now();
            for _ in 0..BATCHES {
                let writes = (0..32).map(|_| {
                    let offset = random.below(FILE / PAGE as u64) * PAGE as u64;
                    (offset, nowait::Buf::zeroed(PAGE))
                });
                let writes: Vec<_> = writes.collect();
                let written: Vec<_> = match way {
                    "writes of the file" => nowait::block_on(join_all(
                        writes.into_iter().map(|(offset, page)| file.write_all_at(page, offset)),
                    )),
                    way => {
                        let cached = if way == "of cached pages" { &large } else { &small };
                        nowait::block_on(join_all(
                            writes.into_iter().map(|(offset, page)| cached.write_all_at(page, offset)),
                        ))
                    }
                };
                for result in written {
                    result?;
                }
            }
            let elapsed = begun.elapsed();
            workers += kernel_workers()?;
            // The first round warms up.
            if round > 0 {
                let per_s = (BATCHES * 32) as f64 / 1e3 / elapsed.as_secs_f64();
                figures.entry(way.into()).or_default().push(per_s);
            }
        }
    }
    print("writes, 32 at a time, k/s", &figures);
    println!("  kernel workers of io_uring: {workers}");
    Ok(())
}

/// Number of the kernel's worker threads that this process has.
fn kernel_workers() -> Result<usize> {
    let mut workers = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        workers += usize::from(name.starts_with("iou-wrk"));
    }
    Ok(workers)
}
