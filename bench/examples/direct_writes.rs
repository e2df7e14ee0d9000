//! Direct writes of 4 KiB: `direct_writes FILE`, which is made. Over what has been written, into a
//! file of holes, and behind the end of one that grows. By a ring whatever it does with them, by
//! the pool, and as the library chooses; interleaved, eight rounds of which the first is not
//! counted.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;
use std::{env, fs, process};

use futures_util::future::join_all;
use nowait::{Buf, Nowait, OpenOptions, block_on};
use nowait_bench::random::Random;
use nowait_bench::stats::{median, spread};
use nowait_bench::sys::Usage;

const BLOCK: usize = 4 << 10;
const BLOCKS: u64 = 16 << 10;
const WRITES: u64 = 4000;
const ROUNDS: usize = 8;
const DEPTHS: [u64; 3] = [1, 4, 16];

fn main() -> process::ExitCode {
    let [path] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: direct_writes FILE");
        return process::ExitCode::from(2);
    };
    let measured = measure(Path::new(path));
    let _ = fs::remove_file(path);
    match measured {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("direct_writes {path}: {error}");
            process::ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Written,
    Holes,
    Empty,
}

impl Before {
    fn make(self, path: &Path) -> io::Result<()> {
        let mut file = fs::File::create(path)?;
        match self {
            Before::Written => (0..BLOCKS).try_for_each(|_| file.write_all(&[7; BLOCK]))?,
            Before::Holes => file.set_len(BLOCKS * BLOCK as u64)?,
            Before::Empty => {}
        }
        file.sync_all()
    }
}

fn measure(path: &Path) -> io::Result<()> {
    let cases = [Before::Written, Before::Holes, Before::Empty];
    for (before, depth) in cases.into_iter().flat_map(|before| DEPTHS.map(|depth| (before, depth))) {
        before.make(path)?;
        let ways = [("ring", Some(nowait::Route::Ring)), ("pool", Some(nowait::Route::Pool)), ("nowait", None)];
        let mut figures = ways.map(|_| (Vec::new(), Vec::new()));
        for round in 0..ROUNDS {
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                if before != Before::Written {
                    before.make(path)?;
                }
                let (per_second, cpu_us) = write(path, before, ways[which].1, depth, round as u64)?;
                if round > 0 {
                    figures[which].0.push(per_second);
                    figures[which].1.push(cpu_us);
                }
            }
        }
        for ((name, _), (speeds, cpu_us)) in ways.iter().zip(&figures) {
            let (least, most) = spread(speeds, 1.0);
            println!(
                "{before:?} depth {depth:2} {name:6} {:7.0}/s ({least:.0} to {most:.0}), CPU {:.1} µs",
                median(speeds),
                median(cpu_us)
            );
        }
    }
    Ok(())
}

/// Writes a second, and the process's processor time for each.
fn write(path: &Path, before: Before, way: Option<nowait::Route>, depth: u64, seed: u64) -> io::Result<(f64, f64)> {
    let nowait = Nowait::builder().route(way).build()?;
    let file = OpenOptions::new().read(true).write(true).direct(true).open_in(&nowait, path).wait()?;
    let places = match before {
        Before::Empty => (0..BLOCKS).collect(),
        Before::Written | Before::Holes => Random::new(seed).permutation(BLOCKS),
    };
    let next = Cell::new(0);
    let write = async || {
        let mut block = Buf::zeroed(BLOCK);
        while next.get() < WRITES {
            let number = next.replace(next.get() + 1);
            let offset = places[number as usize] * BLOCK as u64;
            block = file.write_all_at(block, offset).await?;
        }
        io::Result::Ok(())
    };
    let (before, began) = (Usage::of_process(), Instant::now());
    block_on(join_all((0..depth).map(|_| write()))).into_iter().collect::<io::Result<()>>()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok((WRITES as f64 / seconds, Usage::of_process().since(&before).cpu_us() / WRITES as f64))
}
