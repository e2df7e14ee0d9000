//! `block_on` of a future that is ready: by the library on a thread without a ring, and on one that
//! has made its ring; and by smol. Interleaved; the first round is not counted.

use std::hint::black_box;
use std::time::Instant;
use std::{io, process};

use nowait::{Nowait, OpenOptions};
use nowait_bench::stats::median;

const TIMES: u32 = 1_000_000;
const ROUNDS: usize = 12;

fn main() -> process::ExitCode {
    match measure() {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ready: {error}");
            process::ExitCode::FAILURE
        }
    }
}

/// Nanoseconds of one call.
fn time(call: impl Fn(u32) -> u32) -> f64 {
    let begun = Instant::now();
    for number in 0..TIMES {
        black_box(call(black_box(number)));
    }
    begun.elapsed().as_nanos() as f64 / f64::from(TIMES)
}

fn nowait_ready(number: u32) -> u32 {
    nowait::block_on(async { number })
}

/// Has this thread make its ring: a page that is not cached is read.
fn make_ring() -> io::Result<()> {
    let nowait = Nowait::builder().build()?;
    let mut program = OpenOptions::new();
    let file = program.read(true).direct(true).open_in(&nowait, std::env::current_exe()?).wait()?;
    nowait::block_on(async { file.read_range(0, 4096).await })?;
    if nowait.stats().ring == 0 {
        eprintln!("no operation went to a ring: the second row has none");
    }
    Ok(())
}

fn measure() -> io::Result<()> {
    let mut figures: [(&str, Vec<f64>); 3] = [("nowait", vec![]), ("nowait, with a ring", vec![]), ("smol", vec![])];
    for round in 0..ROUNDS {
        // A thread that ends gives its ring back.
        let with_ring = || make_ring().map(|()| time(nowait_ready));
        let one_thread = |call: &(dyn Fn() -> io::Result<f64> + Sync)| {
            std::thread::scope(|scope| scope.spawn(call).join()).map_err(|_| io::Error::other("a thread panicked"))?
        };
        let times = [
            one_thread(&|| Ok(time(nowait_ready)))?,
            one_thread(&with_ring)?,
            time(|number| smol::block_on(async { number })),
        ];
        if round > 0 {
            figures.iter_mut().zip(times).for_each(|((_, all), time)| all.push(time));
        }
    }
    for (name, all) in &figures {
        let least = all.iter().copied().fold(f64::MAX, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        println!("{name:20} {:6.1} ns ({least:.1} to {most:.1})", median(all));
    }
    Ok(())
}
