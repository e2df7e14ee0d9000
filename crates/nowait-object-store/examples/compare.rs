//! Measures this store beside `object_store`'s `LocalFileSystem`, in the same process and in turns.
//!
//! `cargo run --release --example compare -- [DIR [MIB [ROUNDS]]]`; by default the current directory,
//! 1024 MiB and 9 rounds. It makes a directory of its own in DIR and removes it. Times are medians,
//! with the processor time of the whole process; `x` is the time of `stock` in this row's case,
//! divided by the row's.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use nowait_object_store::Options;
use nowait_object_store::v0_14::NowaitFileSystem;
use object_store_0_14::local::LocalFileSystem;
use object_store_0_14::path::Path;
use object_store_0_14::{DynObjectStore, ObjectStoreExt, PutPayload};
use rustix::time::{ClockId, clock_gettime};

const RANGES: u64 = 4000;
const RANGE_BYTES: u64 = 4096;
const SMALL_OBJECTS: usize = 10_000;
const AT_A_TIME: usize = 32;

/// What is done with a store.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Ranges,
    /// One call for each range, many at a time.
    RangeByRange,
    Stream,
    PutLarge,
    PutSmall,
}

struct Bench {
    dir: PathBuf,
    size: u64,
    runtime: tokio::runtime::Runtime,
    /// A block of a large object, which has many.
    block: Bytes,
}

impl Bench {
    fn object(&self) -> PathBuf {
        self.dir.join("object")
    }

    fn make_cold(&self) {
        let file = fs::File::open(self.object()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    fn make_hot(&self) {
        let mut file = fs::File::open(self.object()).unwrap();
        let mut buffer = vec![0; 1 << 20];
        while std::io::Read::read(&mut file, &mut buffer).unwrap() > 0 {}
    }

    fn large(&self) -> PutPayload {
        (0..self.size / self.block.len() as u64).map(|_| self.block.clone()).collect()
    }

    /// Does the work once; returns its time, and that of the processors.
    fn once(&self, store: &Arc<DynObjectStore>, work: Work, round: u64) -> (Duration, Duration) {
        let object = Path::from("object");
        let places = (0..RANGES).map(|number| (number + round * RANGES).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20);
        let pages = self.size / RANGE_BYTES;
        let ranges: Vec<_> = places.map(|place| place % pages * RANGE_BYTES).map(|at| at..at + RANGE_BYTES).collect();
        let large = if work == Work::PutLarge { self.large() } else { PutPayload::default() };
        let store = store.clone();
        let task = async move {
            match work {
                Work::Ranges => {
                    store.get_ranges(&object, &ranges).await.unwrap().iter().map(|range| range.len() as u64).sum()
                }
                Work::RangeByRange => {
                    let ranges = futures::stream::iter(ranges);
                    let get = |range| {
                        let (store, object) = (store.clone(), object.clone());
                        async move { store.get_range(&object, range).await.unwrap().len() as u64 }
                    };
                    ranges.map(get).buffer_unordered(AT_A_TIME).fold(0, async |sum, length| sum + length).await
                }
                Work::Stream => {
                    let pieces = store.get(&object).await.unwrap().into_stream();
                    pieces.try_fold(0, async |sum, piece| Ok(sum + piece.len() as u64)).await.unwrap()
                }
                Work::PutLarge => {
                    let length = large.content_length() as u64;
                    store.put(&Path::from("large"), large).await.unwrap();
                    length
                }
                Work::PutSmall => {
                    let put = |number| {
                        let store = store.clone();
                        async move {
                            store.put(&Path::from(format!("small/{number}")), vec![7; 4096].into()).await.unwrap();
                            4096
                        }
                    };
                    futures::stream::iter(0..SMALL_OBJECTS)
                        .map(put)
                        .buffer_unordered(AT_A_TIME)
                        .fold(0, async |sum, length| sum + length)
                        .await
                }
            }
        };
        let (begin, processors) = (Instant::now(), processors());
        let bytes: u64 = self.runtime.block_on(async { self.runtime.spawn(task).await.unwrap() });
        let took = (begin.elapsed(), self::processors() - processors);
        let expected = match work {
            Work::Ranges | Work::RangeByRange => RANGES * RANGE_BYTES,
            Work::Stream | Work::PutLarge => self.size,
            Work::PutSmall => SMALL_OBJECTS as u64 * 4096,
        };
        assert_eq!(bytes, expected);
        took
    }
}

fn processors() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or(".".into());
    let size = arguments.next().map_or(1024, |mib| mib.parse().expect("MIB is a number")) << 20;
    let rounds: u64 = arguments.next().map_or(9, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let dir = tempfile::Builder::new().prefix("nowait-compare-").tempdir_in(dir).unwrap();
    let mut block = vec![0u8; 16 << 20];
    for (place, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let bench = Bench { dir: dir.path().to_path_buf(), size, runtime, block: block.into() };
    let mut object = fs::File::create(bench.object()).unwrap();
    for part in bench.large().iter() {
        std::io::Write::write_all(&mut object, part).unwrap();
    }
    let stock = |durable| -> Arc<DynObjectStore> {
        Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap().with_fsync(durable))
    };
    let ours =
        |options| -> Arc<DynObjectStore> { Arc::new(NowaitFileSystem::with_prefix(dir.path(), options).unwrap()) };
    let plain = [
        ("stock", stock(false)),
        ("nowait", ours(Options::new())),
        ("nowait direct", ours(Options::new().direct(true))),
    ];
    let durable = [("stock", stock(true)), ("nowait", ours(Options::new().durable(true)))];

    type Ways = Vec<(String, Arc<DynObjectStore>, Work)>;
    let ways = |stores: &[(&str, Arc<DynObjectStore>)], work: Work| -> Ways {
        stores.iter().map(|(name, store)| (name.to_string(), store.clone(), work)).collect()
    };
    let mut ranges = ways(&plain, Work::Ranges);
    for (name, store) in &plain[..2] {
        ranges.push((format!("{name}, {AT_A_TIME} get_range"), store.clone(), Work::RangeByRange));
    }
    let cases: [(&str, Option<bool>, Ways); 7] = [
        ("4,000 random ranges of 4 KiB, cold", Some(false), ranges.clone()),
        ("4,000 random ranges of 4 KiB, hot", Some(true), ranges),
        ("streaming get, cold", Some(false), ways(&plain, Work::Stream)),
        ("streaming get, hot", Some(true), ways(&plain[..2], Work::Stream)),
        ("put of a large object", None, ways(&plain[..2], Work::PutLarge)),
        ("puts of 10,000 objects of 4 KiB", None, ways(&plain[..2], Work::PutSmall)),
        ("put of a large object, durable", None, ways(&durable, Work::PutLarge)),
    ];
    println!("{} MiB, {rounds} rounds, {AT_A_TIME} at a time where many are", size >> 20);
    for (name, hot, ways) in cases {
        let mut times = vec![(Vec::new(), Vec::new()); ways.len()];
        // The first round warms up.
        for round in 0..=rounds {
            for turn in 0..ways.len() {
                let way = (turn + round as usize) % ways.len();
                match hot {
                    Some(true) => bench.make_hot(),
                    Some(false) => bench.make_cold(),
                    None => {
                        let _ = fs::remove_file(dir.path().join("large"));
                        let _ = fs::remove_dir_all(dir.path().join("small"));
                        rustix::fs::sync();
                    }
                }
                let (took, processors) = bench.once(&ways[way].1, ways[way].2, round);
                if round > 0 {
                    times[way].0.push(took);
                    times[way].1.push(processors);
                }
            }
        }
        println!("\n{name}\n  {:<24} {:>10} {:>10} {:>7} {:>7}", "", "ms", "cpu ms", "x", "cpu x");
        let medians: Vec<_> = times.into_iter().map(|(took, processors)| (median(took), median(processors))).collect();
        for ((way, ..), (took, processors)) in ways.iter().zip(&medians) {
            let (x, cpu) = (medians[0].0 / took, medians[0].1 / processors);
            println!("  {way:<24} {took:>10.1} {processors:>10.1} {x:>7.2} {cpu:>7.2}");
        }
    }
}
