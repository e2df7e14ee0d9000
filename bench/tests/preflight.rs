//! Each trap is set, and seen caught.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::meter::Round;
use nowait_bench::measure::options::Options;
use nowait_bench::measure::progress::{Course, Plan};
use nowait_bench::measure::work::Reads;
use nowait_bench::report::Report;
use nowait_bench::report::notes::Code;
use nowait_bench::report::preflight::{look_at_file, look_at_rows, look_at_system};
use nowait_bench::table::reads::READS;
use nowait_bench::table::{Phase, Run};
use nowait_bench::ways::{self, Does, ReadWay, Way};

/// On the disk of the build, with a name of its own; removed at the end.
struct Made(PathBuf);

impl Made {
    fn new(name: &str) -> (Self, File) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preflight-{name}-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        (Self(path), file)
    }

    /// The codes of what is noted of the file.
    fn notes(&self) -> Vec<Code> {
        let mut report = Report::default();
        look_at_file(&TestFile::existing(&self.0).unwrap(), &mut report).unwrap();
        report.notes.iter().map(|note| note.code).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// No byte follows from those before it.
fn random(len: u64) -> Vec<u8> {
    let mut random = nowait_bench::random::Random::new(5);
    (0..len).map(|_| random.number() as u8).collect()
}

#[test]
fn a_file_that_is_what_it_seems_has_no_note() {
    let (made, file) = Made::new("good");
    file.write_all_at(&random(2 * SMALLEST), 0).unwrap();
    assert_eq!(made.notes(), []);
}

#[test]
fn unwritten_extents_and_holes_are_caught() {
    for allocated in [true, false] {
        let (made, file) = Made::new(if allocated { "unwritten" } else { "holes" });
        file.write_all_at(&random(SMALLEST), 0).unwrap();
        if allocated {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 2 * SMALLEST).unwrap();
        } else {
            file.set_len(2 * SMALLEST).unwrap();
        }
        // Zeros that were read and lie in the page cache are no data.
        file.read_exact_at(&mut vec![0; SMALLEST as usize], SMALLEST).unwrap();
        let notes = made.notes();
        assert!(notes.contains(&Code::Unwritten), "{notes:?}");
    }
}

#[test]
fn data_that_can_be_compressed_is_caught() {
    let (zeros, file) = Made::new("zeros");
    file.write_all_at(&vec![0; 2 * SMALLEST as usize], 0).unwrap();
    assert!(zeros.notes().contains(&Code::Compressible));
    // One block again and again, which no byte gives away.
    let (same, file) = Made::new("same");
    file.write_all_at(&random(4096).repeat(512), 0).unwrap();
    assert!(same.notes().contains(&Code::Compressible));
}

#[test]
fn what_the_system_does_to_figures_is_caught() {
    let noted = |environment: &Environment, writes, in_order| {
        let mut report = Report::default();
        look_at_system(environment, writes, in_order, &mut report);
        report.notes.iter().map(|note| note.code).collect::<Vec<_>>()
    };
    let usual =
        Environment { read_ahead_kb: Some(128), mount_options: Some("rw".to_owned()), ..Environment::default() };
    let ahead = Environment { read_ahead_kb: Some(8192), ..usual.clone() };
    let compressing = Environment { mount_options: Some("rw,compress=zstd:3".to_owned()), ..usual.clone() };
    assert_eq!(noted(&usual, true, true), []);
    assert_eq!(noted(&ahead, true, true), [Code::ReadAhead]);
    assert_eq!(noted(&ahead, true, false), [], "random reads turn it off");
    assert_eq!(noted(&compressing, true, true), [Code::Compressible]);
    assert_eq!(noted(&compressing, false, true), [], "the file that is read is looked at itself");
}

/// A disk with a limit that comes and goes: in some rounds each read waits.
struct Throttled(AtomicUsize);

impl ReadWay for Throttled {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        // One turn verifies and one warms up; of the five rounds of two turns, the last three are
        // slow.
        let slow = self.0.fetch_add(1, Ordering::Relaxed) >= 2 + 2 * 2;
        let wait = Duration::from_millis(if slow { 5 } else { 1 });
        round.start();
        for offset in job.each_offset() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = Instant::now();
            thread::sleep(wait);
            job.target.file.read_exact_at(block, offset)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

/// Says that it reads past the page cache, and reads through it.
struct Sly;

impl ReadWay for Sly {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = File::open(job.target.path)?;
        round.start();
        for offset in job.each_offset() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = Instant::now();
            file.read_exact_at(block, offset)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

fn measured(way: &'static Way, rounds: usize, file: &TestFile) -> Report {
    let (round_time, roster) = (Duration::from_millis(100), vec![way].leak());
    let (direct, rounds) = (file.is_direct(), Some(rounds));
    let options = Options { direct, depths: vec![1], rounds, round_time, roster, ..Options::new(false, 1) };
    let (mut report, cancel, course) = (
        Report::default(),
        AtomicBool::new(false),
        &mut Course::new(Plan::default(), indicatif::ProgressBar::hidden()),
    );
    let mut run = Run { options: &options, file: Some(file), cancel: &cancel, course, report: &mut report };
    run.measure(&[&READS], &Phase::ALL).unwrap();
    report
}

#[test]
fn a_disk_with_two_speeds_is_caught() {
    static THROTTLED: Throttled = Throttled(AtomicUsize::new(0));
    let (made, file) = Made::new("throttled");
    file.write_all_at(&random(SMALLEST), 0).unwrap();
    // Other work may scatter the rounds at full speed so that they are no speed: then it is tried
    // again.
    static WAY: Way = Way::new("throttled", "", &[Does::Reads(&THROTTLED)]);
    let mut reports = (0..5).map(|_| {
        THROTTLED.0.store(0, Ordering::Relaxed);
        let mut report = measured(&WAY, 5, &TestFile::existing(&made.0).unwrap());
        look_at_rows(&mut report);
        report.notes.into_iter().find(|note| note.code == Code::TwoSpeeds).ok_or(report.rows)
    });
    let mut missed = Vec::new();
    let note = reports.find_map(|report| report.map_err(|rows| missed.push(rows)).ok());
    assert!(note.is_some_and(|note| note.text.contains("reads depth=1 throttled")), "{missed:?}");
}

#[test]
fn cached_pages_under_direct_reads_are_caught() {
    let (made, file) = Made::new("direct");
    file.write_all_at(&random(SMALLEST), 0).unwrap();
    file.sync_all().unwrap();
    let file = match TestFile::existing(&made.0).unwrap().past_the_cache() {
        Ok(file) => file,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    assert!(measured(ways::named("pread").unwrap(), 1, &file).notes.is_empty());
    static SLY: Way = Way::new("sly", "", &[Does::DirectReads(&Sly)]);
    let notes = measured(&SLY, 1, &file).notes;
    assert!(notes.iter().any(|note| note.code == Code::CachedUnderDirect), "{notes:?}");
}
