//! Cached reads of one file, which is made, into memory at several distances from the start of a page:
//! `buffer_alignment FILE`. By `pread`, whole pages, at random; interleaved, nine rounds.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use std::{env, process};

use nowait::Buf;
use nowait_bench::random::Random;
use nowait_bench::stats::{median, spread};

const PAGE: usize = 4 << 10;
const PAGES: u64 = 16 << 10;
const READS: usize = 20_000;
const ROUNDS: usize = 9;
const LENGTHS: [usize; 3] = [4 << 10, 16 << 10, 128 << 10];
/// A `Vec` of some 128 KiB or more begins 16 bytes into a page, with the allocator of glibc.
const DISTANCES: [usize; 6] = [0, 16, 32, 48, 64, 512];

fn main() -> process::ExitCode {
    let [path] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: buffer_alignment FILE");
        return process::ExitCode::from(2);
    };
    let measured = measure(Path::new(path));
    let _ = fs::remove_file(path);
    match measured {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("buffer_alignment {path}: {error}");
            process::ExitCode::FAILURE
        }
    }
}

fn measure(path: &Path) -> io::Result<()> {
    fs::write(path, vec![7; PAGES as usize * PAGE])?;
    let file = File::open(path)?;
    for length in LENGTHS {
        let mut memory = Buf::zeroed(length + PAGE);
        memory.fill(1);
        let reads = READS * PAGE / length;
        let mut times_ns = DISTANCES.map(|_| Vec::new());
        for round in 0..ROUNDS {
            for turn in 0..DISTANCES.len() {
                let which = (round + turn) % DISTANCES.len();
                let block = &mut memory[DISTANCES[which]..][..length];
                let mut random = Random::new(round as u64);
                let began = Instant::now();
                for _ in 0..reads {
                    let page = random.below(PAGES - (length / PAGE) as u64);
                    file.read_exact_at(block, page * PAGE as u64)?;
                }
                times_ns[which].push(began.elapsed().as_nanos() as f64 / reads as f64);
            }
        }
        for (distance, times_ns) in DISTANCES.iter().zip(&times_ns) {
            let (least, most) = spread(times_ns, 1.0);
            println!(
                "{:3} KiB, {distance:3} bytes into a page: {:6.0} ns ({least:.0} to {most:.0})",
                length >> 10,
                median(times_ns)
            );
        }
    }
    Ok(())
}
