//! Gather against the plainest oracle: each range by itself, sliced from the file's contents.

use std::pin::Pin;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::rng::Rng;
use crate::common::{Sample, Watchdog, assert_settled, cold, contents, expected, has_memory, open, poll_once};
use nowait::sim::{Faults, Sim};
use nowait::{Engine, Error, ErrorKind, File, Gathered, Nowait, Route};

type Extent = (u64, usize);

/// Checks what came back, range by range and as a whole.
fn assert_right<B: AsRef<[u8]>>(gathered: Gathered<B>, bytes: &[u8], ranges: &[Extent]) {
    assert_eq!((gathered.len(), gathered.is_empty()), (ranges.len(), ranges.is_empty()));
    assert!(gathered.errors().is_empty(), "{:?}", gathered.errors());
    assert!(gathered.iter().count() == ranges.len());
    for (i, (offset, len)) in ranges.iter().enumerate() {
        assert!(*gathered.get(i).unwrap() == *expected(bytes, *offset, *len), "range {i}: {len} bytes at {offset}");
    }
    assert!(gathered.into_buffer().as_ref().starts_with(&packed(bytes, ranges)));
}

/// The ranges one after the other, zero where the file has nothing.
fn packed(bytes: &[u8], ranges: &[Extent]) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut end = 0;
    for (offset, len) in ranges {
        packed.extend_from_slice(expected(bytes, *offset, *len));
        end += len;
        packed.resize(end, 0);
    }
    packed
}

/// Ranges of all kinds, in any order: near and far, adjacent, overlapping, equal, empty, across the
/// end and past it.
fn random_ranges(rng: &mut Rng, count: usize, size: usize) -> Vec<Extent> {
    let mut ranges: Vec<Extent> = Vec::new();
    let longest = [16, 300, 9000][rng.below(3)];
    while ranges.len() < count {
        let (offset, len) = *ranges.last().unwrap_or(&(0, 0));
        let new = rng.below(longest);
        ranges.push(match rng.below(10) {
            0 => (offset + len as u64, new),
            1 => (offset + len as u64 / 2, new),
            2 => (offset.saturating_sub(new as u64), new),
            3 if !ranges.is_empty() => ranges[rng.below(ranges.len())],
            4 => (rng.below(size) as u64, 0),
            5 => (size as u64 - rng.below(longest.min(size)) as u64, new),
            6 => ((size + rng.below(10_000)) as u64, new),
            7 => (offset + (len + rng.below(5000)) as u64, new),
            _ => (rng.below(size) as u64, new),
        });
    }
    ranges
}

/// Each way of gathering, on one set of ranges.
fn gather_in_every_way(file: &File, bytes: &[u8], ranges: &[Extent], rng: &mut Rng, cool: &dyn Fn()) {
    let (gap, depth) = ([0, 64, 4096][rng.below(3)], [1, 7, 128][rng.below(3)]);
    let amplification = [1.0, 2.0, 100.0][rng.below(3)];
    let gather = || file.gather(ranges).gap_bytes(gap).depth(depth).amplification(amplification);
    cool();
    assert_right(futures::executor::block_on(gather()).unwrap(), bytes, ranges);
    cool();
    assert_right(nowait::block_on(gather()).unwrap(), bytes, ranges);
    cool();
    assert_right(gather().wait().unwrap(), bytes, ranges);

    let packed = packed(bytes, ranges);
    assert_right(gather().into_buffer(vec![0xaa; packed.len()]).wait().unwrap(), bytes, ranges);
    cool();
    let mut output = vec![0xaa; packed.len() + 3];
    let exceptions = file.gather_into(ranges, &mut output).unwrap();
    assert!(output[..packed.len()] == packed && output[packed.len()..] == [0xaa; 3]);
    assert!(exceptions.errors().is_empty());
    let short = ranges.iter().enumerate().map(|(i, (offset, len))| (i, expected(bytes, *offset, *len).len(), *len));
    let short: Vec<_> = short.filter(|(_, there, len)| there < len).map(|(i, there, _)| (i, there)).collect();
    assert_eq!(exceptions.short(), short);

    let mut seen = vec![0; ranges.len()];
    cool();
    let each = gather().each(|i, result| {
        assert!(*result.unwrap() == *expected(bytes, ranges[i].0, ranges[i].1), "range {i}: {:?}", ranges[i]);
        seen[i] += 1;
    });
    if rng.below(2) == 0 { each.wait() } else { futures::executor::block_on(each) }.unwrap();
    assert!(seen.iter().all(|times| *times == 1), "each range is handed over once");
}

const COUNTS: [usize; 12] = [0, 1, 2, 3, 5, 10, 30, 100, 300, 1000, 2000, 5000];

fn on_real_files(builder: nowait::Builder) {
    let _watchdog = Watchdog::new("gather on real files", 100);
    let mut rng = Rng::for_test();
    let nowait = builder.build().unwrap();
    let sample = Sample::new(1_234_567);
    for count in COUNTS {
        let file = sample.open(&nowait);
        let ranges = random_ranges(&mut rng, count, sample.bytes.len());
        gather_in_every_way(&file, &sample.bytes, &ranges, &mut rng, &|| cold::drop_pages(&sample.path));
        gather_in_every_way(&file, &sample.bytes, &ranges, &mut rng, &|| {});
        assert_settled(&nowait);
    }
}

fn on_simulator(builder: nowait::Builder, set: impl Fn(&mut Faults)) {
    let _watchdog = Watchdog::new("gather on a simulator", 100);
    let mut rng = Rng::for_test();
    for round in 0..60 {
        let (sim, nowait) = simulator(builder.clone(), rng.next(), &set);
        let bytes = contents(1 + rng.below(100_000), round);
        sim.create("a", bytes.clone());
        let file = open(&nowait, "a".as_ref());
        let count = 1 + rng.below(300);
        let ranges = random_ranges(&mut rng, count, bytes.len());
        gather_in_every_way(&file, &bytes, &ranges, &mut rng, &|| {});
        assert_settled(&nowait);
    }
}

fn simulator(builder: nowait::Builder, seed: u64, set: &impl Fn(&mut Faults)) -> (Sim, Nowait) {
    let sim = Sim::new(seed);
    let mut faults = Faults::default();
    set(&mut faults);
    sim.set_faults(faults);
    let nowait = builder.engine(Engine::Sim(sim.clone())).build().unwrap();
    (sim, nowait)
}

#[test]
fn auto() {
    on_real_files(Nowait::builder());
}

#[test]
fn strict() {
    on_real_files(Nowait::builder().strict(true));
}

#[test]
fn ring_for_all() {
    on_real_files(Nowait::builder().route(Some(Route::Ring)));
}

#[test]
fn pool() {
    on_real_files(Nowait::builder().engine(Engine::Pool));
}

#[test]
fn pool_for_all() {
    on_real_files(Nowait::builder().route(Some(Route::Pool)));
}

#[test]
fn simulator_without_faults() {
    on_simulator(Nowait::builder(), |_| {});
}

fn many_faults(faults: &mut Faults) {
    (faults.not_now, faults.empty_now, faults.short_now) = (0.3, 0.2, 0.3);
    (faults.short, faults.interrupted) = (0.3, 0.2);
}

#[test]
fn simulator_with_faults() {
    on_simulator(Nowait::builder(), many_faults);
}

#[test]
fn simulator_with_faults_and_no_attempts() {
    on_simulator(Nowait::builder().route(Some(Route::Ring)), many_faults);
    on_simulator(Nowait::builder(), |faults| (faults.nowait_refused, faults.short) = (true, 0.4));
}

#[test]
fn simulator_where_nothing_is_cached() {
    on_simulator(Nowait::builder(), |faults| faults.not_now = 1.0);
    on_simulator(Nowait::builder(), |faults| faults.empty_now = 1.0);
    on_simulator(Nowait::builder(), |faults| faults.short_now = 1.0);
}

/// Every range is either right or has an error of its own.
#[test]
fn errors_belong_to_the_ranges_that_they_hit() {
    let _watchdog = Watchdog::new("errors_belong_to_the_ranges_that_they_hit", 60);
    let mut rng = Rng::for_test();
    let (mut failed, mut fine) = (0, 0);
    for round in 0..100 {
        let (sim, nowait) = simulator(Nowait::builder(), rng.next(), &|faults: &mut Faults| {
            many_faults(faults);
            faults.io_error = 0.1;
        });
        let bytes = contents(50_000, round);
        sim.create("a", bytes.clone());
        let file = open(&nowait, "a".as_ref());
        let ranges = random_ranges(&mut rng, 100, bytes.len());
        let check = |i: usize, result: Result<&[u8], &Error>| match result {
            Ok(range) => assert!(*range == *expected(&bytes, ranges[i].0, ranges[i].1), "range {i}"),
            Err(error) => {
                assert_eq!((error.kind(), error.range_index()), (ErrorKind::Io, Some(i)));
                assert_eq!((error.offset(), error.length()), (Some(ranges[i].0), Some(ranges[i].1 as u64)));
            }
        };
        for gathered in [
            futures::executor::block_on(file.gather(&ranges[..]).gap_bytes(64)).unwrap(),
            file.gather(&ranges[..]).gap_bytes(4096).amplification(50.0).wait().unwrap(),
        ] {
            gathered.iter().enumerate().for_each(|(i, result)| check(i, result));
            let errors: Vec<_> = (0..ranges.len()).filter(|i| gathered.get(*i).is_err()).map(Some).collect();
            assert_eq!(gathered.errors().iter().map(Error::range_index).collect::<Vec<_>>(), errors);
            (failed, fine) = (failed + errors.len(), fine + ranges.len() - errors.len());
        }
        let mut seen = vec![0; ranges.len()];
        let each = file.gather(&ranges[..]).each(|i, result| {
            check(i, result);
            seen[i] += 1;
        });
        futures::executor::block_on(each).unwrap();
        assert!(seen.iter().all(|times| *times == 1), "each range is handed over once");
        assert_settled(&nowait);
    }
    assert!(failed > 100 && fine > 1000, "{failed} failed, {fine} did not");
}

/// In every form, exactly or not, and as `Bytes`.
#[test]
fn ranges_have_the_forms_of_their_callers() {
    let sample = Sample::new(10_000);
    let file = sample.open(&Nowait::builder().build().unwrap());
    let pairs = [(5, 10), (4000, 5000), (7, 0)];
    // The last ends before it starts.
    #[allow(clippy::reversed_empty_ranges)]
    let ranges = [5..15, 4000..9000, 7..3];
    let right = |gathered: Gathered| assert_right(gathered, sample.expected(0, 10_000), &pairs);
    right(file.gather(pairs).wait().unwrap());
    right(file.gather(pairs).wait().unwrap());
    right(file.gather(pairs.to_vec()).wait().unwrap());
    right(file.gather(pairs.to_vec()).wait().unwrap());
    right(file.gather(std::borrow::Cow::from(&pairs[..])).wait().unwrap());
    right(file.gather(ranges.clone()).wait().unwrap());
    right(file.gather(&ranges).wait().unwrap());
    right(file.gather(&ranges[..]).wait().unwrap());
    right(file.gather(ranges.to_vec()).wait().unwrap());
    right(file.gather(ranges.to_vec()).wait().unwrap());
    right(file.gather_exact(&ranges).wait().unwrap());
    right(futures::executor::block_on(file.gather_exact(pairs)).unwrap());

    let short = file.gather_exact([0..10, 9990..10_001, 20_000..20_001]).wait().unwrap_err();
    assert_eq!((short.kind(), short.range_index()), (ErrorKind::UnexpectedEof, Some(1)));
    assert_eq!((short.offset(), short.length()), (Some(9990), Some(11)));
    let bad = file.gather_exact([(0, 10), (u64::MAX, 5), (9999, 5)]).wait().unwrap_err();
    assert_eq!((bad.kind(), bad.range_index()), (ErrorKind::InvalidRange, Some(1)));

    #[cfg(feature = "bytes")]
    {
        let all = file.gather([5..15, 9990..10_010]).wait().unwrap().into_bytes().unwrap();
        assert!(all[0] == sample.expected(5, 10) && all[1] == sample.expected(9990, 10) && all.len() == 2);
        let error = file.gather([(0, 10), (u64::MAX, 5)]).wait().unwrap().into_bytes().unwrap_err();
        assert_eq!(error.range_index(), Some(1));
    }
}

#[test]
fn impossible_ranges_fail_by_themselves() {
    let sample = Sample::new(10_000);
    let largest = i64::MAX as u64;
    let ranges = [(0, 10), (u64::MAX - 5, 10), (largest, 1), (9995, 10), (u64::MAX, 1), (largest - 1, 1), (5, 5)];
    for route in [None, Some(Route::Ring), Some(Route::Pool)] {
        let file = sample.open(&Nowait::builder().route(route).build().unwrap());
        let mut output = [0xaa; 42];
        let exceptions = file.gather_into(&ranges, &mut output).unwrap();
        let failed = |errors: &[Error]| {
            let kinds: Vec<_> = errors.iter().map(|error| (error.range_index(), error.kind())).collect();
            assert_eq!(kinds, [1, 2, 4].map(|i| (Some(i), ErrorKind::InvalidRange)), "{route:?}");
        };
        failed(exceptions.errors());
        assert_eq!(exceptions.short(), [(3, 5), (5, 0)]);
        for gathered in [
            file.gather(ranges).wait().unwrap(),
            file.gather(ranges).gap_bytes(100).wait().unwrap(),
            futures::executor::block_on(file.gather(ranges)).unwrap(),
        ] {
            failed(gathered.errors());
            for i in [0, 3, 5, 6] {
                assert!(*gathered.get(i).unwrap() == *sample.expected(ranges[i].0, ranges[i].1), "range {i}");
            }
        }
    }
}

#[test]
fn calls_that_cannot_be_served() {
    let sample = Sample::new(1000);
    let file = sample.open(Nowait::shared());
    let ranges = vec![(0, 100), (500, 100)];
    assert_eq!(file.gather_into(&ranges, &mut [0; 199]).unwrap_err().kind(), ErrorKind::BufferTooSmall);
    let error = file.gather(&ranges).into_buffer(vec![7; 199]).wait().unwrap_err();
    assert_eq!((error.error.kind(), error.buffer), (ErrorKind::BufferTooSmall, vec![7; 199]));
    let error = futures::executor::block_on(file.gather(&ranges).into_buffer(vec![7; 199])).unwrap_err();
    assert_eq!((error.error.kind(), error.buffer), (ErrorKind::BufferTooSmall, vec![7; 199]));
    for huge in [vec![(0, usize::MAX), (0, usize::MAX)], vec![(0, isize::MAX as usize)], vec![(0, 1 << 60)]] {
        let kind = file.gather(huge).wait().unwrap_err().error.kind();
        assert!(matches!(kind, ErrorKind::OutOfMemory | ErrorKind::InvalidRange), "{kind:?}");
    }
    let clone = file.clone();
    file.close().unwrap();
    assert_eq!(clone.gather(&ranges).wait().unwrap_err().error.kind(), ErrorKind::Closed);
    assert_eq!(futures::executor::block_on(clone.gather(&ranges)).unwrap_err().error.kind(), ErrorKind::Closed);
    assert_eq!(clone.gather_into(&ranges, &mut [0; 200]).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_million_tiny_ranges() {
    if !has_memory(300 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("a_million_tiny_ranges", 60);
    let mut rng = Rng::for_test();
    let sample = Sample::new(1 << 20);
    let file = sample.open(Nowait::shared());
    let ranges: Vec<_> = (0..1_000_000).map(|_| (rng.below(1 << 20) as u64, rng.below(9))).collect();
    assert_right(file.gather(&ranges).wait().unwrap(), &sample.bytes, &ranges);
    sample.cool();
    assert_right(futures::executor::block_on(file.gather(&ranges).gap_bytes(4096)).unwrap(), &sample.bytes, &ranges);
}

/// Much of what is cached is copied by several threads; some of it may be cold, and others gather
/// at the same time.
#[test]
fn threads_that_gather_much_at_a_time() {
    if !has_memory(160 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("threads that gather", 120);
    let sample = Sample::new(8 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let file = open(&nowait, &sample.path);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (file, sample) = (&file, &sample);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..40 {
                    if thread == 0 && round % 8 == 7 {
                        sample.cool();
                    }
                    let count = 300 + rng.below(700);
                    let longest = if round % 2 == 0 { 4096 } else { 16_000 };
                    let ranges: Vec<Extent> =
                        (0..count).map(|_| (rng.below(sample.bytes.len()) as u64, rng.below(longest))).collect();
                    let mut output = vec![1; ranges.iter().map(|range| range.1).sum()];
                    let exceptions = file.gather_into(&ranges, &mut output).unwrap();
                    assert!(exceptions.errors().is_empty(), "{exceptions:?}");
                    assert!(output == packed(&sample.bytes, &ranges), "thread {thread} round {round}");
                }
            });
        }
    });
    drop(file);
    // Helpers keep nothing of it.
    assert_settled(&nowait);
}

/// A sample in the page cache, whose reads have hit so often that large gathers are shared.
fn trusted(nowait: &Nowait, bytes: usize) -> (Sample, File) {
    let sample = Sample::new(bytes);
    let file = open(nowait, &sample.path);
    futures::executor::block_on(async {
        for number in 0..2000 {
            file.read_at(vec![0; 16], number % 1000 * 4096).await.unwrap();
        }
    });
    (sample, file)
}

/// Two threads copy a large gather, also if parts of it are cold. The file closes at once after it.
#[cfg(target_os = "linux")]
#[test]
fn two_threads_copy_a_large_gather() {
    let _watchdog = Watchdog::new("two_threads_copy_a_large_gather", 60);
    let mut rng = Rng::for_test();
    let nowait = Nowait::builder().build().unwrap();
    let (sample, file) = trusted(&nowait, 4 << 20);
    let before = nowait.stats().pool;
    let cool = |rng: &mut Rng| {
        let (offset, length) = (rng.below(4 << 20) as u64 & !4095, std::num::NonZeroU64::new(64 << 10));
        let file = std::fs::File::open(&sample.path).unwrap();
        rustix::fs::fadvise(&file, offset, length, rustix::fs::Advice::DontNeed).unwrap();
    };
    for round in 0..40 {
        let mut ranges: Vec<Extent> =
            (0..300).map(|_| (rng.below(sample.bytes.len()) as u64, rng.below(5000))).collect();
        if round % 4 == 1 {
            ranges.push((i64::MAX as u64, 0));
            ranges.insert(rng.below(ranges.len()), (sample.bytes.len() as u64 - 10, 5000));
        }
        if round % 2 == 0 {
            gather_in_every_way(&file, &sample.bytes, &ranges, &mut rng, &|| {});
        } else {
            let rng = std::cell::RefCell::new(Rng::new(rng.below(1 << 30) as u64));
            gather_in_every_way(&file, &sample.bytes, &ranges, &mut Rng::for_test(), &|| cool(&mut rng.borrow_mut()));
        }
    }
    assert!(nowait.stats().pool > before, "another thread took part");
    drop(file.gather([(0, 1 << 20), (1 << 20, 1 << 20)]).wait().unwrap());
    assert!(matches!(file.close().unwrap(), nowait::Closed::Now), "the other thread keeps the file");
    assert_settled(&nowait);
}

/// The other thread's part of a gather that is dropped, or leaked, ends too.
#[test]
fn a_large_gather_may_be_dropped_at_any_time() {
    let _watchdog = Watchdog::new("a_large_gather_may_be_dropped_at_any_time", 60);
    let mut rng = Rng::for_test();
    let nowait = Nowait::builder().build().unwrap();
    let (sample, file) = trusted(&nowait, 4 << 20);
    let ranges: Vec<Extent> = (0..400).map(|_| (rng.below(4 << 20) as u64, 4096)).collect();
    for round in 0..200 {
        let mut gather = Box::pin(file.gather(&ranges).into_buffer(vec![0; 400 * 4096]));
        for _ in 0..rng.below(30) {
            if poll_once(gather.as_mut()).is_ready() {
                break;
            }
        }
        if round % 10 == 0 { std::mem::forget(gather) } else { drop(gather) }
    }
    assert_settled(&nowait);
    assert_right(nowait::block_on(file.gather(&ranges)).unwrap(), &sample.bytes, &ranges);
}

#[test]
fn large_ranges() {
    if !has_memory(160 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("large_ranges", 60);
    let mut rng = Rng::for_test();
    let sample = Sample::new(24 << 20);
    let ranges = [(5, 3 << 20), (20 << 20, 7 << 20), (1 << 20, 1 << 20), (1, 1), (2 << 20, 9 << 20)];
    for route in [None, Some(Route::Ring), Some(Route::Pool)] {
        let file = sample.open(&Nowait::builder().route(route).build().unwrap());
        gather_in_every_way(&file, &sample.bytes, &ranges, &mut rng, &|| cold::drop_pages(&sample.path));
        gather_in_every_way(&file, &sample.bytes, &ranges, &mut rng, &|| {});
    }
}

#[test]
fn dropped_half_way() {
    let _watchdog = Watchdog::new("dropped_half_way", 60);
    let mut rng = Rng::for_test();
    let sample = Sample::new(8 << 20);
    for round in 0..60 {
        let nowait = Nowait::builder().route([None, Some(Route::Ring), Some(Route::Pool)][round % 3]).build().unwrap();
        let file = sample.cool().open(&nowait);
        let ranges: Vec<_> = (0..200).map(|_| (rng.below(8 << 20) as u64, 4096)).collect();
        let polls = rng.below(4);
        let half = async {
            let mut gather = Box::pin(file.gather(&ranges).into_buffer(vec![0; 200 * 4096]));
            for _ in 0..polls {
                if poll_once(gather.as_mut()).is_ready() {
                    break;
                }
            }
            if round % 5 == 0 { std::mem::forget(gather) } else { drop(gather) }
        };
        match round % 2 {
            0 => futures::executor::block_on(half),
            _ => std::thread::scope(|scope| scope.spawn(|| nowait::block_on(half)).join().unwrap()),
        }
        let canary = vec![0x5a; 200 * 4096];
        assert_settled(&nowait);
        assert!(canary.iter().all(|byte| *byte == 0x5a), "round {round}");
        assert_right(file.gather(&ranges).wait().unwrap(), &sample.bytes, &ranges);
    }
}

#[test]
fn dropped_at_every_step_of_a_simulator() {
    let mut rng = Rng::for_test();
    let bytes = contents(5000, 1);
    for round in 0..500 {
        let sim = Sim::manual(rng.next());
        let mut faults = Faults::default();
        many_faults(&mut faults);
        faults.io_error = 0.1;
        sim.set_faults(faults);
        sim.create("a", bytes.clone());
        let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let file = open(&nowait, "a".as_ref());
        let ranges = random_ranges(&mut rng, 20, bytes.len());
        let mut gather = Box::pin(file.gather(&ranges).depth(1 + rng.below(5)).gap_bytes(64));
        for _ in 0..rng.below(40) {
            if rng.below(2) == 0 {
                sim.step();
            } else if poll_once(gather.as_mut()).is_ready() {
                break;
            }
        }
        if rng.below(4) == 0 {
            std::mem::forget(gather)
        } else {
            drop(gather)
        }
        assert_settled(&nowait);
        assert_eq!(sim.pending(), 0, "round {round}");
    }
}

/// A taker that panics half-way: what is in flight stays safe, and the instance works on.
#[test]
fn panic_in_a_taker() {
    let _watchdog = Watchdog::new("panic_in_a_taker", 60);
    let sample = Sample::new(8 << 20);
    for route in [None, Some(Route::Ring), Some(Route::Pool)] {
        let nowait = Nowait::builder().route(route).build().unwrap();
        let file = sample.cool().open(&nowait);
        let ranges: Vec<_> = (0..200).map(|i| (i * 40_000, 4096)).collect();
        let each = file.gather(&ranges).each(|i, _| assert!(i != 70, "on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(|| each.wait())).is_err());
        let canary = vec![0x5a; 200 * 4096];
        assert_right(file.gather(&ranges).wait().unwrap(), &sample.bytes, &ranges);
        assert_settled(&nowait);
        assert!(canary.iter().all(|byte| *byte == 0x5a));
    }
}

/// Of a file that is closed meanwhile, ranges fail as such, and not as ranges that no file can have.
#[test]
fn closed_by_a_taker() {
    let _watchdog = Watchdog::new("closed_by_a_taker", 60);
    let sample = Sample::new(1 << 20);
    let file = sample.open(&Nowait::builder().build().unwrap());
    let ranges: Vec<_> = (0..100).map(|i| (i * 8192, 100)).collect();
    let (mut open, mut errors) = (Some(file.clone()), Vec::new());
    let each = file.gather(&ranges).each(|_, result| {
        errors.extend(result.err().map(Error::kind));
        if let Some(file) = open.take() {
            file.close().unwrap();
        }
    });
    each.wait().unwrap();
    // On other systems, threads may have read some before the close.
    assert!(errors.len() == 99 || cfg!(not(target_os = "linux")), "{}", errors.len());
    assert!(errors.iter().all(|kind| *kind == ErrorKind::Closed), "{errors:?}");
}

/// A gather that was begun as a future can be waited for.
#[test]
fn waited_for_after_a_poll() {
    let _watchdog = Watchdog::new("waited_for_after_a_poll", 60);
    let sample = Sample::new(4 << 20);
    for route in [None, Some(Route::Ring), Some(Route::Pool)] {
        let file = sample.cool().open(&Nowait::builder().route(route).build().unwrap());
        let ranges: Vec<_> = (0..600u64).map(|i| (i * 6011, 5000)).collect();
        let mut gather = Box::pin(file.gather(&ranges));
        if poll_once(gather.as_mut()).is_pending() {
            assert_right(Pin::into_inner(gather).wait().unwrap(), &sample.bytes, &ranges);
        }
    }
}

/// One huge cached range does not hold up what others wait for.
#[test]
fn huge_range_takes_many_polls() {
    if !has_memory(160 << 20) {
        return;
    }
    let sample = Sample::new(32 << 20);
    let file = sample.open(&Nowait::builder().build().unwrap());
    let ranges = [(0, 32 << 20)];
    let mut gather = Box::pin(file.gather(ranges));
    assert!(poll_once(gather.as_mut()).is_pending());
    assert_right(futures::executor::block_on(gather).unwrap(), &sample.bytes, &ranges);
}

#[test]
fn range_that_no_file_can_have_fails_alone() {
    let sample = Sample::new(4096);
    let file = sample.open(&Nowait::builder().build().unwrap());
    let end = i64::MAX as u64;
    let gathered = file.gather([(end - 8, 4), (end - 4, 8), (0, 10)]).wait().unwrap();
    assert_eq!(gathered.get(0).unwrap(), b"");
    assert_eq!(gathered.get(1).unwrap_err().range_index(), Some(1));
    assert_eq!(gathered.get(2).unwrap(), &sample.bytes[..10]);
}

#[test]
#[should_panic(expected = "after a panic in it")]
fn polled_after_a_panic_of_its_taker() {
    let sample = Sample::new(1 << 20);
    let file = sample.open(&Nowait::builder().build().unwrap());
    let mut each = Box::pin(file.gather([(0, 10), (5000, 10)]).each(|_, _| panic!("on purpose")));
    let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll_once(each.as_mut()).is_pending()));
    assert!(first.is_err());
    let _ = poll_once(each.as_mut());
}
