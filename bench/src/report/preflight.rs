//! Checks, before and after a run, for conditions that distort its figures.
//!
//! `testfile.rs` verifies before each cold round that the file is not cached.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::machine::environment::Environment;
use crate::machine::testfile::TestFile;
use crate::random::Random;
use crate::report::Report;
use crate::report::figures::short;
use crate::report::notes::{Code, Note};
use crate::sys::{self, RingWorkers};

/// Divisor of a file's size: smaller parts are ignored.
const NEGLIGIBLE: u64 = 1000;
/// Number and size of the sampled blocks of the file.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 4 << 10;
/// Entropy per byte: 7.95 bits in a block of random bytes of that size, 5 in text.
const RANDOM_BITS: f64 = 7.5;
/// The kernel's default, in KiB.
const READ_AHEAD_KB: u64 = 128;
/// Minimum ratio between two groups of rounds, and maximum ratio within each.
const APART: f64 = 1.5;
const TOGETHER: f64 = 1.25;

/// Checks the test file.
pub fn look_at_file(file: &TestFile, report: &mut Report) -> Result<()> {
    let size = file.size();
    let unwritten = sys::unwritten(file.through_the_cache(), size);
    let unwritten = unwritten.map_err(|error| Error::io("lseek SEEK_DATA in", file.path(), &error))?;
    if unwritten > size / NEGLIGIBLE {
        let (percent, name) = (unwritten as f64 / size as f64 * 100.0, file.name());
        let text = format!("{percent:.1} % of {name} has never been written: such reads do not reach the disk");
        report.note(Code::Unwritten, text);
    }
    look_at_bytes(file, report)
}

fn look_at_bytes(file: &TestFile, report: &mut Report) -> Result<()> {
    let blocks = file.size() / SAMPLE as u64;
    let places = Random::new(0).permutation(blocks).into_iter().take(SAMPLES as usize);
    let (mut seen, mut poor, mut same) = (HashSet::new(), 0, 0);
    let mut block = vec![0; SAMPLE];
    for place in places {
        let read = file.through_the_cache().read_exact_at(&mut block, place * SAMPLE as u64);
        read.map_err(|error| Error::io("read", file.path(), &error))?;
        same += u64::from(!seen.insert(block.clone()));
        poor += u64::from(bits_per_byte(&block) < RANDOM_BITS);
    }
    let looked_at = blocks.min(SAMPLES);
    if poor + same > looked_at / 20 {
        let text = format!(
            "{poor} of {looked_at} sampled blocks of {} can be compressed; {same} equal another one",
            file.name()
        );
        report.note(Code::Compressible, text);
    }
    Ok(())
}

/// Returns the entropy of the bytes.
fn bits_per_byte(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let share = |count: u32| f64::from(count) / bytes.len() as f64;
    counts.into_iter().filter(|&count| count > 0).map(|count| -share(count) * share(count).log2()).sum()
}

/// Checks the system, for a run that `writes`, or reads files `in_order` through the page cache.
pub fn look_at_system(environment: &Environment, writes: bool, in_order: bool, report: &mut Report) {
    if let Some(read_ahead) = environment.read_ahead_kb.filter(|&kb| in_order && kb > READ_AHEAD_KB) {
        let device = environment.device.as_deref().unwrap_or("?");
        report.note(Code::ReadAhead, format!("the readahead of {device} is {read_ahead} KiB"));
    }
    if environment.mount_options.as_ref().is_some_and(|options| writes && options.contains("compress")) {
        let options = environment.mount_options.as_deref().unwrap_or("");
        report.note(Code::Compressible, format!("the file system compresses written data ({options})"));
    }
    if !RingWorkers::now().are_told() {
        report.note(Code::NoSchedulerInfo, "requests handed to kernel workers are not counted");
    }
}

/// Checks for other work of the machine.
pub fn look_at_load(report: &mut Report) {
    let disturbances = report.environment.load.disturbances();
    report.notes.extend(disturbances.into_iter().map(|text| Note::new(Code::UnderLoad, text)));
}

/// Checks the rows.
pub fn look_at_rows(report: &mut Report) {
    let split: Vec<_> = report.rows.iter().filter_map(|row| Some((row, two_speeds(&row.rounds)?))).collect();
    // One outlying round in one row of the run is an accident.
    let alone = split.len() == 1 && split[0].1.2 == 1;
    let Some((row, (low, high, _))) = split.first().filter(|_| !alone) else { return };
    let (low, high) = (short(*low), short(*high));
    let text = format!(
        "{} of {} rows ran at two speeds; for example {} {} {}: about {low}/s and {high}/s",
        split.len(),
        report.rows.len(),
        row.table,
        row.case,
        row.way
    );
    report.note(Code::TwoSpeeds, text);
}

/// Returns the medians of the two groups into which the rounds fall, and the size of the smaller
/// group. It has at least two rounds, or one of three.
fn two_speeds(rounds: &[f64]) -> Option<(f64, f64, usize)> {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let narrow = |group: &[f64]| group[group.len() - 1] <= TOGETHER * group[0];
    let fewest = match sorted.len() {
        0..=2 => return None,
        3 => 1,
        _ => 2,
    };
    let split = (fewest..=sorted.len() - fewest).find(|&at| {
        let (low, high) = sorted.split_at(at);
        high[0] >= APART * low[at - 1] && narrow(low) && narrow(high)
    })?;
    let (low, high) = sorted.split_at(split);
    let middle = |group: &[f64]| group[group.len() / 2];
    Some((middle(low), middle(high), low.len().min(high.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn rounds_in_two_groups_are_told_from_noise() {
        let speeds = |low: f64, high: f64, smaller: usize| Some((low, high, smaller));
        assert_eq!(two_speeds(&[10.0, 41.0, 11.0, 40.0, 40.5]), speeds(11.0, 40.5, 2));
        assert_eq!(two_speeds(&[10.0, 40.0, 41.0]), speeds(10.0, 41.0, 1));
        for noise in [&[10.0, 11.0, 12.0, 13.0, 15.0][..], &[10.0, 20.0, 40.0, 80.0], &[10.0, 20.0, 40.0], &[10.0], &[]]
        {
            assert_eq!(two_speeds(noise), None, "{noise:?}");
        }
        assert_eq!(two_speeds(&[10.0, 40.0, 41.0, 40.0, 40.5]), None, "one round is an accident");
    }

    /// One outlier of three rounds counts only if several rows have one.
    #[test]
    fn two_speeds_in_three_rounds_are_told_where_rows_agree() {
        let row = |rounds: [f64; 3]| Row { rounds: rounds.to_vec(), ..Row::default() };
        let notes = |rows: Vec<Row>| {
            let mut report = Report { rows, ..Report::default() };
            look_at_rows(&mut report);
            report.notes
        };
        let (calm, split) = ([40.0, 41.0, 40.5], [40.0, 10.0, 41.0]);
        assert!(notes(vec![row(calm), row(split)]).is_empty());
        let told = notes(vec![row(split), row(calm), row(split)]);
        assert!(
            told[0].text.starts_with("2 of 3 rows ran at two speeds") && told[0].code == Code::TwoSpeeds,
            "{told:?}"
        );
    }

    #[test]
    fn random_bytes_have_more_in_them_than_text() {
        let mut random = Random::new(1);
        let block: Vec<u8> = (0..SAMPLE).map(|_| random.number() as u8).collect();
        assert!(bits_per_byte(&block) > RANDOM_BITS + 0.3);
        assert!(bits_per_byte(&b"a text that has some words in it ".repeat(100)) < 5.0);
        assert_eq!(bits_per_byte(&[0; SAMPLE]), 0.0);
    }
}
