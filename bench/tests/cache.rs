//! The tables of pages in memory: every way caches the right bytes, misses where it should, and
//! reports what it found.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::cache::{HitRate, Hits, PageSet, Trace};
use nowait_bench::measure::meter::{Round, Sample, Tally};
use nowait_bench::measure::options::Options;
use nowait_bench::measure::progress::Course;
use nowait_bench::measure::work::{Buffer, Reads, Target};
use nowait_bench::report::notes::Code;
use nowait_bench::report::{Report, Row};
use nowait_bench::sys::PAGE;
use nowait_bench::table::cache::{HITS, MISSES, POLICY};
use nowait_bench::table::{Phase, Run, Table, plan};
use nowait_bench::ways::{self, CacheWay, CachedPages, Does, PolicyWay, WAYS, Way};
use nowait_bench::{ErrorKind, Result};

const SIZE: u64 = SMALLEST + 1234;
const SEED: u64 = 42;

/// On the disk of the build, because the system's temporary directory may be in memory, where
/// direct I/O may be refused.
fn small_file() -> TestFile {
    let dir = env!("CARGO_TARGET_TMPDIR").as_ref();
    TestFile::make(dir, SIZE, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn tiny() -> Options {
    Options {
        rounds: Some(2),
        round_time: Duration::from_millis(1),
        dir: env!("CARGO_TARGET_TMPDIR").into(),
        ..Options::new(true, SEED)
    }
}

fn measure(table: &'static Table, options: &Options, file: Option<&TestFile>, stop: bool) -> (Result<()>, Report) {
    let (mut report, cancel) = (Report::default(), AtomicBool::new(stop));
    let mut course = Course::new(plan(&[table], options, None), indicatif::ProgressBar::hidden());
    let mut run = Run { options, file, cancel: &cancel, course: &mut course, report: &mut report };
    let result = run.measure(&[table], &Phase::ALL);
    (result, report)
}

fn rows(table: &'static Table, file: Option<&TestFile>) -> (Vec<Row>, Report) {
    let (result, report) = measure(table, &tiny(), file, false);
    result.unwrap();
    (report.rows.clone(), report)
}

#[test]
fn cached_pages_have_a_row_for_each_way_without_latencies() {
    let (rows, report) = rows(&HITS, Some(&small_file()));
    let (hitters, copiers) = (ways::hitters(WAYS).len(), ways::copiers(WAYS).len());
    assert_eq!(rows.len(), 2 * hitters + 6 * copiers);
    for row in &rows {
        assert!(row.ops_per_s > 0.0 && row.latency_ns.is_none() && row.rounds.len() == 2, "{row:?}");
        assert!(row.figure("ns_per_read").is_some_and(|time| time > 0.0), "{row:?}");
    }
    let of_threads = |threads: &str| report.rows.iter().filter(|row| row.case.ends_with(threads)).count();
    assert_eq!(of_threads("threads=1"), of_threads("threads=2"));
}

#[test]
fn a_full_run_has_the_set_of_the_file_too() {
    let options = Options::new(false, SEED);
    let names: Vec<String> = (HITS.cases)(&options).into_iter().map(|case| case.name).collect();
    assert_eq!(names.len(), 16);
    assert!(names.contains(&"copy=4K set=1G threads=2".to_owned()), "{names:?}");
    let small = Options { size: Some(8 << 20), ..options };
    assert_eq!((HITS.cases)(&small).len(), 8);
}

#[test]
fn pages_that_are_missing_are_read_and_none_is_found() {
    let (rows, report) = rows(&MISSES, Some(&small_file()));
    if report.notes.iter().any(|note| note.code == Code::DirectRefused) {
        return println!("skipped: the file system of the build refuses O_DIRECT");
    }
    let found: Vec<(&str, &str)> = rows.iter().map(|row| (row.case.as_str(), row.way.as_str())).collect();
    let all = [("get", "nowait"), ("get", "nowait-cache"), ("gather", "nowait"), ("gather", "nowait-cache")];
    assert_eq!(found, all);
    assert!(rows.iter().all(|row| row.latency_ns.is_some()));
}

/// The cache of a round is full of pages that the round does not read.
#[test]
fn a_round_that_leaves_too_few_pages_is_an_error() {
    let file = small_file();
    let (cancel, gate) = (AtomicBool::new(false), Barrier::new(1));
    let offsets: Vec<u64> = (0..SIZE / PAGE).map(|page| page * PAGE).collect();
    let target = Target { direct: true, ..Target::of(&file) };
    let job = Reads { target, block: PAGE as usize, depth: 8, offsets: &offsets, pace: None, cancel: &cancel };
    let cache = ways::missers(WAYS).into_iter().find(|way| way.name() == ways::CACHE).unwrap();
    let error = cache.reads(&job, &mut [], &mut Round::new(&gate, None)).unwrap_err();
    assert_eq!(error.to_string(), "the round leaves too few pages to fill the cache");
}

#[test]
fn hit_rates_are_compared_and_no_speeds_ranked() {
    let (rows, report) = rows(&POLICY, None);
    assert_eq!(rows.len(), 4 * ways::policies(WAYS).len());
    let rate = |case: &str| rows.iter().find(|row| row.case == case && row.way == ways::CACHE).unwrap();
    for (case, least, most) in
        [("zipf=0.8", 0.5, 0.6), ("zipf=0.8 scans", 0.5, 0.6), ("zipf=1.0 scans", 0.7, 0.8), ("loop=1.1", 0.3, 0.91)]
    {
        let rate = rate(case).figure("hit_rate").unwrap();
        assert!((least..most).contains(&rate), "{case}: {rate}");
    }
    assert!(nowait_bench::report::verdict::standings(&report).is_empty());
}

#[test]
fn a_run_stops_when_told() {
    let file = small_file();
    for (table, file) in [(&HITS, Some(&file)), (&MISSES, Some(&file)), (&POLICY, None)] {
        let error = measure(table, &tiny(), file, true).0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{}: {error}", table.name);
    }
}

/// Returns zeros, and in rounds that are compared the bytes of the file.
struct Forgetful;

impl CacheWay for Forgetful {
    fn open(&self, set: &PageSet<'_>) -> io::Result<Box<dyn CachedPages>> {
        Ok(Box::new(Half(ways::hitters(WAYS)[0].open(set)?)))
    }
}

struct Half(Box<dyn CachedPages>);

impl CachedPages for Half {
    fn words(&self, job: &Hits<'_>, tally: &mut Tally<'_>) -> io::Result<()> {
        if tally.verifies() { self.0.words(job, tally) } else { job.words(tally, |_| Ok(0)) }
    }

    fn copies(&self, job: &Hits<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
        if tally.verifies() { self.0.copies(job, buffer, tally) } else { job.copies(buffer, tally, |_, _| Ok(())) }
    }
}

#[test]
fn a_way_that_returns_other_bytes_fails_in_a_timed_round() {
    static FORGETFUL: Way = Way::new("forgetful", "", &[Does::Hits(&Forgetful), Does::Copies(&Forgetful)]);
    let file = small_file();
    for case in ["read=8 set=16M threads=2", "copy=64 set=16M threads=1"] {
        let options = Options { roster: vec![&FORGETFUL].leak(), cases: vec![case.to_owned()], ..tiny() };
        let error = measure(&HITS, &options, Some(&file), false).0.unwrap_err().to_string();
        assert!(error.contains("forgetful") && error.contains("a timed round returned wrong bytes"), "{error}");
    }
}

#[test]
fn wrong_bytes_are_noticed_in_every_way() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    let pages = SIZE / PAGE;
    let set = PageSet { target: Target::of(&file), pages, cancel: &cancel };
    let check = |offset: u64, bytes: &[u8]| offset / PAGE != 3 && file.matches(offset, bytes);
    for (way, copies) in ways::hitters(WAYS)
        .into_iter()
        .map(|way| (way, false))
        .chain(ways::copiers(WAYS).into_iter().map(|way| (way, true)))
    {
        let cache = way.open(&set).unwrap();
        let job = Hits { pages, bytes: if copies { 100 } else { 8 }, count: 5000, seed: SEED, cancel: &cancel };
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, Some(&check));
        round.start();
        if copies {
            cache.copies(&job, Buffer::new(PAGE as usize).bytes(), &mut round.tally).unwrap();
        } else {
            cache.words(&job, &mut round.tally).unwrap();
        }
        round.stop();
        let sample = Sample::of(&[round]).unwrap();
        assert_eq!((sample.operations, sample.wrong.map(|offset| offset / PAGE)), (5000, Some(3)), "{}", way.name());
    }
}

/// A cache of one page, whose hit rate is known.
struct Last;

impl PolicyWay for Last {
    fn replay(&self, trace: &Trace<'_>, round: &mut Round<'_>) -> io::Result<HitRate> {
        let mut last = None;
        trace.replay(round, |page, _| Ok(last.replace(page) == Some(page)))
    }
}

#[test]
fn a_loop_is_never_found_by_a_cache_of_one_page() {
    static LAST: Way = Way::new("last", "", &[Does::Policies(&Last)]);
    let options = Options { roster: vec![&LAST].leak(), cases: vec!["loop=1.1".to_owned()], ..tiny() };
    let (result, report) = measure(&POLICY, &options, None, false);
    result.unwrap();
    assert_eq!(report.rows[0].figure("hit_rate"), Some(0.0));
}
