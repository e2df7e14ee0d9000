//! Durable buffered writes of 4 KiB to random blocks of one file, which is made: `durable_writes FILE`.
//! By threads with `RWF_DSYNC`, by threads with `fdatasync`, by futures under `block_on`, and by tasks
//! of an attached tokio runtime; interleaved, eight rounds of which the first is not counted.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{env, fs, process, thread};

use futures_util::future::join_all;
use nowait::{Nowait, OpenOptions, block_on};
use nowait_bench::random::Random;
use nowait_bench::stats::{median, spread};
use nowait_bench::sys::Usage;
use rustix::io::ReadWriteFlags;

const BLOCK: usize = 4 << 10;
const BLOCKS: u64 = 16 << 10;
const WRITES: usize = 2000;
const ROUNDS: usize = 8;
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
const WAYS: [&str; 4] = ["threads-dsync", "threads-fdatasync", "nowait", "nowait-tokio"];

fn main() -> process::ExitCode {
    let [path] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: durable_writes FILE");
        return process::ExitCode::from(2);
    };
    let measured = measure(Path::new(path));
    let _ = fs::remove_file(path);
    match measured {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("durable_writes {path}: {error}");
            process::ExitCode::FAILURE
        }
    }
}

fn measure(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    (0..BLOCKS).try_for_each(|_| file.write_all(&[7; BLOCK]))?;
    file.sync_all()?;
    for depth in DEPTHS {
        let mut figures = WAYS.map(|_| (Vec::new(), Vec::new()));
        for round in 0..ROUNDS {
            for turn in 0..WAYS.len() {
                let which = (round + turn) % WAYS.len();
                let places: Arc<[u64]> =
                    Random::new(round as u64).permutation(BLOCKS).into_iter().take(WRITES).collect();
                let (before, began) = (Usage::of_process(), Instant::now());
                write(WAYS[which], path, depth, places)?;
                let seconds = began.elapsed().as_secs_f64();
                if round > 0 {
                    figures[which].0.push(WRITES as f64 / seconds);
                    figures[which].1.push(Usage::of_process().since(&before).cpu_us() / WRITES as f64);
                }
            }
        }
        for (name, (speeds, cpu_us)) in WAYS.iter().zip(&figures) {
            let (least, most) = spread(speeds, 1.0);
            let ratios: Vec<f64> = speeds.iter().zip(&figures[0].0).map(|(one, dsync)| one / dsync).collect();
            println!(
                "depth {depth:2} {name:17} {:7.0}/s ({least:.0} to {most:.0}), {:.2} of {}, CPU {:.1} µs",
                median(speeds),
                median(&ratios),
                WAYS[0],
                median(cpu_us)
            );
        }
    }
    Ok(())
}

fn write(way: &str, path: &Path, depth: usize, places: Arc<[u64]>) -> io::Result<()> {
    match way {
        "nowait" => {
            let (_nowait, file) = open(path)?;
            let next = Cell::new(0);
            let write = async || {
                let mut block = vec![1; BLOCK];
                while let Some(place) = places.get(next.replace(next.get() + 1)) {
                    block = file.write_all_at(block, place * BLOCK as u64).durable().await?;
                }
                io::Result::Ok(())
            };
            block_on(join_all((0..depth).map(|_| write()))).into_iter().collect()
        }
        "nowait-tokio" => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let _entered = runtime.enter();
            let (nowait, file) = open(path)?;
            nowait.attach_tokio()?;
            let next = Arc::new(AtomicUsize::new(0));
            let write = || {
                let (file, next, places) = (file.clone(), next.clone(), places.clone());
                tokio::spawn(async move {
                    let mut block = vec![1; BLOCK];
                    while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                        block = file.write_all_at(block, place * BLOCK as u64).durable().await?;
                    }
                    io::Result::Ok(())
                })
            };
            let tasks: Vec<_> = (0..depth).map(|_| write()).collect();
            runtime.block_on(join_all(tasks)).into_iter().try_for_each(|written| written?)
        }
        threads => {
            let (file, next) = (File::options().write(true).open(path)?, AtomicUsize::new(0));
            let write = || {
                let block = [1; BLOCK];
                while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let offset = place * BLOCK as u64;
                    if threads == "threads-dsync" {
                        let written =
                            rustix::io::pwritev2(&file, &[IoSlice::new(&block)], offset, ReadWriteFlags::DSYNC)?;
                        if written < BLOCK {
                            return Err(io::Error::from(io::ErrorKind::WriteZero));
                        }
                    } else {
                        file.write_all_at(&block, offset)?;
                        file.sync_data()?;
                    }
                }
                Ok(())
            };
            thread::scope(|scope| {
                let all: Vec<_> = (0..depth).map(|_| scope.spawn(write)).collect();
                all.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
            })
        }
    }
}

fn open(path: &Path) -> io::Result<(Nowait, nowait::File)> {
    let nowait = Nowait::builder().build()?;
    let file = OpenOptions::new().write(true).open_in(&nowait, path).wait()?;
    Ok((nowait, file))
}
