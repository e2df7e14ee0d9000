//! A direct read of 1 MiB beside 2 ms of computing: `overlap FILE`, a file of which nothing need be
//! cached, of 64 MiB at least. One after the other; by a thread that reads meanwhile; by a ring by
//! hand, submitted before and waited for afterwards; and as `join!` of the library's future and one
//! that computes, on `nowait::block_on` and on tokio. Interleaved; the first round is not counted.
//!
//! `unsafe` here: the ring's entry, whose memory outlives its completion.

use std::future::Future;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{env, fs, io, process, thread};

use futures_util::future::join;
use io_uring::{IoUring, opcode, types};
use nowait::{Buf, File, Nowait, OpenOptions};
use nowait_bench::random::Random;
use nowait_bench::stats::median;
use nowait_bench::sys::Usage;

const BYTES: usize = 1 << 20;
const WORK: Duration = Duration::from_millis(2);
const TIMES: u64 = 200;
const ROUNDS: usize = 8;

fn main() -> process::ExitCode {
    let [path] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: overlap FILE");
        return process::ExitCode::from(2);
    };
    match measure(Path::new(path)) {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overlap {path}: {error}");
            process::ExitCode::FAILURE
        }
    }
}

/// Computes as long as [`WORK`] takes alone, whatever else has the processor.
fn compute(steps: u64) {
    black_box((0..steps).fold(1_u64, |sum, step| black_box(sum.wrapping_mul(6364136223846793005).wrapping_add(step))));
}

fn steps_of_work() -> u64 {
    let steps = 1 << 20;
    let begun = Instant::now();
    compute(steps);
    (steps as f64 * WORK.as_secs_f64() / begun.elapsed().as_secs_f64()) as u64
}

/// Reads and computes once.
type Way<'a> = (&'static str, Box<dyn FnMut(u64) -> io::Result<()> + 'a>);

fn measure(path: &Path) -> io::Result<()> {
    let plain = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let places = plain.metadata()?.len() / BYTES as u64;
    if places < 64 {
        return Err(io::Error::other("the file is too small: give one of 64 MiB at least"));
    }
    let nowait = Nowait::builder().build()?;
    let file = OpenOptions::new().read(true).direct(true).open_in(&nowait, path).wait()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { nowait.attach_tokio() })?;
    let steps = steps_of_work();

    let mut block = Buf::zeroed(BYTES);
    let (asks, answers) = reader(plain.try_clone()?);
    let mut ring = IoUring::new(8)?;
    let mut memory = Buf::zeroed(BYTES);
    let mut ways: [Way<'_>; 5] = [
        ("after", {
            let plain = &plain;
            Box::new(move |offset| {
                plain.read_exact_at(&mut block, offset)?;
                compute(steps);
                Ok(())
            })
        }),
        (
            "thread",
            Box::new(move |offset| {
                asks.send(offset).map_err(io::Error::other)?;
                compute(steps);
                answers.recv().map_err(io::Error::other)?
            }),
        ),
        ("ring", {
            let fd = types::Fd(plain.as_raw_fd());
            Box::new(move |offset| {
                let entry = opcode::Read::new(fd, memory.as_mut_ptr(), BYTES as u32).offset(offset).build();
                // SAFETY: `memory` and the file outlive the completion, which is waited for below.
                unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
                ring.submit()?;
                compute(steps);
                ring.submit_and_wait(1)?;
                match ring.completion().next().map(|entry| entry.result()) {
                    Some(n) if n == BYTES as i32 => Ok(()),
                    answer => Err(io::Error::other(format!("read: {answer:?}"))),
                }
            })
        }),
        ("nowait", Box::new(|offset| nowait::block_on(both(&file, offset, steps)))),
        (
            "nowait-tokio",
            Box::new(|offset| {
                let file = file.clone();
                runtime.block_on(runtime.spawn(async move { both(&file, offset, steps).await }))?
            }),
        ),
    ];

    let mut figures = [const { (Vec::new(), Vec::new()) }; 5];
    let count = ways.len();
    for round in 0..ROUNDS {
        for turn in 0..count {
            let which = (round + turn) % count;
            let mut random = Random::new(round as u64);
            let (before, began) = (Usage::of_process(), Instant::now());
            for _ in 0..TIMES {
                ways[which].1(random.below(places) * BYTES as u64)?;
            }
            let seconds = began.elapsed().as_secs_f64();
            if round > 0 {
                figures[which].0.push(seconds * 1e6 / TIMES as f64);
                figures[which].1.push(Usage::of_process().since(&before).cpu_us() / TIMES as f64);
            }
        }
    }
    for ((name, _), (wall_us, cpu_us)) in ways.iter().zip(&figures) {
        let least = wall_us.iter().copied().fold(f64::MAX, f64::min);
        let most = wall_us.iter().copied().fold(0.0, f64::max);
        let (wall, cpu) = (median(wall_us), median(cpu_us));
        println!("{name:12} {wall:6.0} µs ({least:.0} to {most:.0}), CPU {cpu:.0} µs");
    }
    Ok(())
}

fn both(file: &File, offset: u64, steps: u64) -> impl Future<Output = io::Result<()>> {
    let (read, work) = (file.read_range(offset, BYTES), async move { compute(steps) });
    async move { Ok(join(read, work).await.0.map(drop)?) }
}

/// A thread that reads what it is asked for.
fn reader(file: fs::File) -> (Sender<u64>, Receiver<io::Result<()>>) {
    let ((asks, asked), (answer, answers)) = (channel::<u64>(), channel());
    thread::spawn(move || {
        let mut block = Buf::zeroed(BYTES);
        for offset in asked {
            if answer.send(file.read_exact_at(&mut block, offset)).is_err() {
                return;
            }
        }
    });
    (asks, answers)
}
