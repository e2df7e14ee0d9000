//! Cached reads of 4 KiB by calls, futures and gathers, in one program: `cached_calls FILE`, which is
//! made. Prints the time and the processor time of a read. Nine rounds, interleaved.

use std::fs::{self, File as StdFile};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use std::{env, process};

use nowait::{Buf, File, Nowait};
use nowait_bench::random::Random;
use nowait_bench::stats::{median, spread};
use nowait_bench::sys::Usage;
use rustix::io::ReadWriteFlags;

const PAGE: usize = 4 << 10;
const PAGES: u64 = 32 << 10;
const READS: usize = 100_000;
const ROUNDS: usize = 9;
const BATCHES: [usize; 3] = [8, 64, 512];
const WAYS: [&str; 8] = [
    "pread",
    "preadv2, RWF_NOWAIT",
    "read_into",
    "read_at, block_on",
    "read_at, tokio",
    "gather_into",
    "gather, block_on",
    "gather, tokio",
];

fn main() -> process::ExitCode {
    let [path] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: cached_calls FILE");
        return process::ExitCode::from(2);
    };
    let measured = measure(Path::new(path));
    let _ = fs::remove_file(path);
    match measured {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cached_calls {path}: {error}");
            process::ExitCode::FAILURE
        }
    }
}

fn measure(path: &Path) -> io::Result<()> {
    fs::write(path, vec![7; PAGES as usize * PAGE])?;
    let plain = StdFile::open(path)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _entered = runtime.enter();
    Nowait::shared().attach_tokio()?;
    let file = File::from_std(Nowait::shared(), plain.try_clone()?, path)?;
    for count in BATCHES {
        let mut figures = WAYS.map(|_| (Vec::new(), Vec::new()));
        for round in 0..ROUNDS {
            let mut random = Random::new(round as u64);
            let mut extent = || (random.below(PAGES) * PAGE as u64, PAGE);
            let batches: Vec<Vec<_>> = (0..READS / count).map(|_| (0..count).map(|_| extent()).collect()).collect();
            for turn in 0..WAYS.len() {
                let which = (round + turn) % WAYS.len();
                let mut buffer = Buf::zeroed(count * PAGE);
                buffer.fill(1);
                let (batches, file) = (batches.clone(), file.clone());
                let (before, began) = (Usage::of_process(), Instant::now());
                match WAYS[which] {
                    "gather, tokio" => runtime.block_on(runtime.spawn(gather(file, batches, buffer)))??,
                    "read_at, tokio" => runtime.block_on(runtime.spawn(read(file, batches)))??,
                    "gather, block_on" => nowait::block_on(gather(file, batches, buffer))?,
                    "read_at, block_on" => nowait::block_on(read(file, batches))?,
                    way => call(way, &plain, &file, &batches, &mut buffer)?,
                }
                let reads = (READS / count * count) as f64;
                figures[which].0.push(began.elapsed().as_nanos() as f64 / reads);
                figures[which].1.push(Usage::of_process().since(&before).cpu_us() * 1e3 / reads);
            }
        }
        for (name, (times_ns, cpu_ns)) in WAYS.iter().zip(&figures) {
            let (least, most) = spread(times_ns, 1.0);
            let ratios: Vec<f64> = figures[0].0.iter().zip(times_ns).map(|(pread, own)| pread / own).collect();
            println!(
                "{count:3} in a batch, {name:20} {:5.0} ns ({least:.0} to {most:.0}), {:.2} of pread, CPU {:5.0} ns",
                median(times_ns),
                median(&ratios),
                median(cpu_ns)
            );
        }
    }
    Ok(())
}

type Batches = Vec<Vec<(u64, usize)>>;

async fn gather(file: File, batches: Batches, mut buffer: Buf) -> io::Result<()> {
    for batch in &batches {
        buffer = file.gather(batch).into_buffer(buffer).await?.into_buffer();
    }
    Ok(())
}

async fn read(file: File, batches: Batches) -> io::Result<()> {
    let mut buffer = Buf::zeroed(PAGE);
    for (offset, _) in batches.iter().flatten() {
        (_, buffer) = file.read_at(buffer, *offset).await?;
    }
    Ok(())
}

fn call(way: &str, plain: &StdFile, file: &File, batches: &Batches, buffer: &mut Buf) -> io::Result<()> {
    for batch in batches {
        if way == "gather_into" {
            file.gather_into(batch, buffer)?;
            continue;
        }
        for (&(offset, _), block) in batch.iter().zip(buffer.chunks_mut(PAGE)) {
            let length = match way {
                "pread" => plain.read_at(block, offset)?,
                "read_into" => file.read_into(block, offset)?,
                _ => rustix::io::preadv2(plain, &mut [IoSliceMut::new(block)], offset, ReadWriteFlags::NOWAIT)?,
            };
            if length < PAGE {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    Ok(())
}
