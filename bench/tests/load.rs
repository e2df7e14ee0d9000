//! The table `load`: every way does each operation once, none before it arrives, and its latency
//! counts from there; what it does wrong is noticed.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nowait_bench::machine::testfile::TestFile;
use nowait_bench::measure::meter::{Check, Round, Sample};
use nowait_bench::measure::options::{Arriving, Options};
use nowait_bench::measure::pace::{Pace, Schedule};
use nowait_bench::measure::progress::Course;
use nowait_bench::measure::work::{Buffer, Commits, Gathers, Reads, Records, Target};
use nowait_bench::random::Random;
use nowait_bench::report::Report;
use nowait_bench::report::notes::Code;
use nowait_bench::report::page::page;
use nowait_bench::table::load::LOAD;
use nowait_bench::table::{Phase, Run, plan};
use nowait_bench::ways::{self, Does, Part, ReadWay, Roster, WAYS, Way};
use nowait_bench::{ErrorKind, Result};

const SEED: u64 = 42;

fn file() -> TestFile {
    let dir = env!("CARGO_TARGET_TMPDIR").as_ref();
    TestFile::make(dir, 2 << 20, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn usable<W: ?Sized>(ways: Vec<Part<W>>) -> Vec<Part<W>> {
    ways.into_iter().filter(|part| (part.way.refused)().is_none()).collect()
}

/// Does work on the clock, whose bytes are checked by this.
fn on_the_clock<T>(check: &Check<'_>, work: impl FnOnce(&mut Round<'_>) -> io::Result<T>) -> io::Result<(Sample, T)> {
    let gate = Barrier::new(1);
    let mut round = Round::new(&gate, Some(check));
    let given = work(&mut round)?;
    Ok((Sample::of(&[round]).unwrap(), given))
}

/// Latencies count from the arrival, and not from the round's start: most are far shorter than it.
fn assert_open(sample: &Sample, pace: &Pace, name: &str) {
    let Pace::At(moments) = pace else { panic!("no moments") };
    let last = moments.last().unwrap().as_secs_f64();
    assert!(sample.seconds >= last, "{name}: {} < {last}", sample.seconds);
    let median = sample.latencies.value_at_quantile(0.5) as f64 / 1e9;
    assert!(median < last / 2.0, "{name}: {median} of {last}");
}

#[test]
fn gathers_are_right_and_each_is_done_once_as_it_arrives() {
    let (file, cancel) = (file(), AtomicBool::new(false));
    let order = Random::new(SEED).permutation(file.size() / 4096);
    let offsets: Vec<u64> = order.into_iter().map(|page| page * 4096).collect();
    let target = Target::of(&file);
    // More at a time than arrive, fewer, and one after the other.
    for (records, depth) in [(8, 64), (4, 3), (16, 1)] {
        let count = offsets.len() / records;
        let pace = Pace::poisson(count as f64, count, &mut Random::new(1));
        let job = Gathers { target, block: 4096, records, depth, offsets: &offsets, pace: &pace, cancel: &cancel };
        for way in usable(ways::load_gatherers(WAYS)) {
            let seen = Mutex::new(Vec::new());
            let check = |offset, bytes: &[u8]| {
                seen.lock().unwrap().push(offset);
                file.matches(offset, bytes)
            };
            let mut buffer = Buffer::new(job.output_len() * depth);
            let (sample, ()) = on_the_clock(&check, |round| way.gathers(&job, buffer.bytes(), round)).unwrap();
            let (name, mut seen) = (way.name(), seen.into_inner().unwrap());
            let told = (sample.operations, sample.bytes, sample.wrong, sample.latencies.len());
            assert_eq!(told, (count as u64, file.size(), None, count as u64), "{name}");
            seen.sort_unstable();
            assert!(seen.into_iter().eq((0..file.size()).step_by(4096)), "{name}");
            assert_open(&sample, &pace, name);
        }
    }
}

#[test]
fn records_are_on_stable_storage_once_each_as_they_arrive() {
    let cancel = AtomicBool::new(false);
    let folder = env!("CARGO_TARGET_TMPDIR").as_ref();
    let (count, size, records) = (200, 100, Records::new(SEED));
    // Two at a time would not keep up with more on a slow disk.
    for (depth, rate) in [(64, 400.0), (2, 100.0)] {
        let pace = Pace::poisson(rate, count, &mut Random::new(2));
        for way in usable(ways::load_appenders(WAYS)) {
            let file = nameless(0);
            let path = &*nowait_bench::sys::path_of(&file);
            let (file, writers, commits, pace, cancel) = (&file, depth, count as u64, Some(&pace), &cancel);
            let job = Commits { file, path, folder, writers, in_flight: 1, size, commits, pace, records, cancel };
            let seen = Mutex::new(Vec::new());
            let check = |number, record: &[u8]| {
                seen.lock().unwrap().push(number);
                records.holds(number, record)
            };
            let (sample, _) = on_the_clock(&check, |round| way.commits(&job, round)).unwrap();
            let (name, mut seen) = (way.name(), seen.into_inner().unwrap());
            let told = (sample.operations, sample.bytes, sample.wrong);
            assert_eq!(told, (count as u64, (count * size) as u64, None), "{name}");
            seen.sort_unstable();
            assert!(seen.into_iter().eq((0..count).map(|index| Records::number(0, index as u64))), "{name}");
            assert_open(&sample, job.pace.unwrap(), name);
        }
    }
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_not_a_hang() {
    let cut = nameless(8 << 10);
    let (cancel, pace) = (AtomicBool::new(false), Pace::At([Duration::ZERO; 4].into()));
    let offsets: Vec<u64> = (0..8).map(|page| page * 4096).collect();
    let target = Target { file: &cut, path: "/dev/null".as_ref(), size: 32 << 10, direct: false };
    let job = Gathers { target, block: 4096, records: 2, depth: 2, offsets: &offsets, pace: &pace, cancel: &cancel };
    for way in usable(ways::load_gatherers(WAYS)) {
        let mut buffer = Buffer::new(job.output_len() * job.depth);
        let result = on_the_clock(&|_, _| true, |round| way.gathers(&job, buffer.bytes(), round));
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::UnexpectedEof), "{}", way.name());
    }
}

/// A file of this length without a name.
fn nameless(size: u64) -> fs::File {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("load-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file.set_len(size).unwrap();
    file
}

fn tiny() -> Options {
    let load_time = Duration::from_millis(100);
    let dir = env!("CARGO_TARGET_TMPDIR").into();
    Options { rounds: Some(2), load_time, rates: vec![200, 400], dir, ..Options::new(false, SEED) }
}

/// Measures the table, in the build's directory; `None` where that is in memory.
fn measure(options: &Options, stop: bool) -> Option<(Result<()>, Report)> {
    let (file, mut report, cancel) = (file(), Report::default(), AtomicBool::new(stop));
    let mut course = Course::new(plan(&[&LOAD], options, None), indicatif::ProgressBar::hidden());
    let (file, course) = (Some(&file), &mut course);
    let mut run = Run { options, file, cancel: &cancel, course, report: &mut report };
    let result = run.measure(&[&LOAD], &Phase::ALL);
    let cold = !result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotCold);
    cold.then_some((result, report))
}

#[test]
fn a_run_of_loads_fills_a_row_for_each_rate_and_way_that_keeps_it() {
    let Some((result, report)) = measure(&tiny(), false) else { return };
    result.unwrap();
    for (kind, all) in [
        ("reads", usable(ways::load_readers(WAYS)).len()),
        ("gather", usable(ways::load_gatherers(WAYS)).len()),
        ("log", usable(ways::load_appenders(WAYS)).len()),
    ] {
        let of = |rate: u32| report.rows.iter().filter(move |row| row.case == format!("{kind} rate={rate}"));
        assert_eq!(of(200).count(), all, "{kind}");
        for row in of(200).chain(of(400)) {
            let offered = row.figure("offered_per_s").unwrap();
            assert!(row.case.ends_with(&format!("={offered}")) && row.rounds.len() == 2, "{row:?}");
            assert!(row.latency_ns.is_some() && row.ops_per_s > 0.0, "{row:?}");
        }
        // A way has a row at the next rate if it has kept this one.
        let kept = of(200).filter(|row| row.ops_per_s >= 0.95 * 200.0).map(|row| &row.way);
        assert!(kept.eq(of(400).map(|row| &row.way)), "{kind}: {:?}", report.notes);
    }
    let page = page(&report);
    for words in ["load by rate: gather", "p50 latency from arrival, µs (logarithmic) by rate"] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("ops/s by rate"));
}

#[test]
fn a_run_of_loads_stops_when_told() {
    let Some((result, _)) = measure(&tiny(), true) else { return };
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted);
}

/// Reads each block when it is due, and once does nothing for a while, or reads something else.
struct Faulty {
    stall: Duration,
    wrong: bool,
}

impl ReadWay for Faulty {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        round.start();
        let schedule = Schedule::new(job.pace);
        for (index, offset) in job.each_offset().enumerate() {
            let block = &mut buffer[..job.block];
            let started = schedule.wait(index);
            if index == 2 {
                thread::sleep(self.stall);
            }
            job.target.file.read_exact_at(block, if self.wrong { 0 } else { offset })?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

static STALLING: Way =
    Way::new("stalling", "", &[Does::LoadReads(&Faulty { stall: Duration::from_millis(60), wrong: false })]);
static WRONG: Way = Way::new("wrong", "", &[Does::LoadReads(&Faulty { stall: Duration::ZERO, wrong: true })]);

fn alone(ways: &[&'static Way]) -> Roster {
    ways.to_vec().leak()
}

#[test]
fn all_that_arrive_during_a_stall_are_slow() {
    let options = Options { loads: vec![Arriving::Reads], rates: vec![1000], ..tiny() };
    let Some((result, report)) = measure(&Options { roster: alone(&[&STALLING]), ..options }, false) else { return };
    result.unwrap();
    // It slept once in 100 reads. A closed loop would tell of one slow read, and of a fast median.
    let latency = report.rows[0].latency_ns.unwrap();
    assert!(latency.p50 > 5_000_000 && latency.max >= 60_000_000, "{latency:?}");
}

#[test]
fn a_way_that_falls_behind_has_no_rows_at_higher_rates_and_wrong_bytes_are_found() {
    static SLOW: Way =
        Way::new("slow", "", &[Does::LoadReads(&Faulty { stall: Duration::from_millis(300), wrong: false })]);
    let options = Options { loads: vec![Arriving::Reads], ..tiny() };
    let Some((result, report)) = measure(&Options { roster: alone(&[&SLOW]), ..options.clone() }, false) else {
        return;
    };
    result.unwrap();
    assert_eq!(report.rows.len(), 1);
    assert!(report.notes.iter().any(|note| note.code == Code::LoadMissed && note.text.contains("slow")));
    let Some((result, _)) = measure(&Options { roster: alone(&[&WRONG]), ..options }, false) else { return };
    assert!(result.unwrap_err().to_string().contains("wrong bytes"));
}

#[test]
fn every_way_of_a_round_has_the_same_arrivals_and_places() {
    /// Lists what each turn was given.
    static GIVEN: Mutex<Vec<(Vec<u64>, Pace)>> = Mutex::new(Vec::new());
    struct Listening;
    impl ReadWay for Listening {
        fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
            GIVEN.lock().unwrap().push((job.offsets.to_vec(), job.pace.unwrap().clone()));
            Faulty { stall: Duration::ZERO, wrong: false }.reads(job, buffer, round)
        }
    }
    static ONE: Way = Way::new("one", "", &[Does::LoadReads(&Listening)]);
    static OTHER: Way = Way::new("other", "", &[Does::LoadReads(&Listening)]);
    let roster = alone(&[&ONE, &OTHER]);
    let options = Options { loads: vec![Arriving::Reads], rates: vec![200], roster, ..tiny() };
    let given = || {
        GIVEN.lock().unwrap().clear();
        let (result, _) = measure(&options, false)?;
        result.unwrap();
        Some(GIVEN.lock().unwrap().clone())
    };
    let Some(first) = given() else { return };
    // Two turns to verify, and three in each of two rounds, of which one way has two.
    let (verified, timed) = first.split_at(2);
    assert!(timed.len() == 6 && verified[0] == verified[1]);
    let (one, other) = timed.split_at(3);
    assert!([one, other].iter().all(|turns| turns.windows(2).all(|pair| pair[0] == pair[1])));
    assert!(one[0] != other[0], "another round has other arrivals");
    assert!(given().unwrap() == first, "the seed repeats them");
}
