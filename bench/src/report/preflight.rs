//! Checks, before and after a run, for what makes figures worth less than they look.
//!
//! `testfile.rs` refuses a file that is not really cold, before each round.

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

/// A share of a file that does not matter.
const NEGLIGIBLE: u64 = 1000;
/// Blocks of the file that are looked at, and how large they are.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 4 << 10;
/// Random bytes have 7.95 bits each in a block of that size, and text has 5.
const RANDOM_BITS: f64 = 7.5;
/// The kernel's default, in KiB.
const READ_AHEAD_KB: u64 = 128;
/// Two groups of rounds are so far apart, and each is no wider.
const APART: f64 = 1.5;
const TOGETHER: f64 = 1.25;

/// Checks the file that is read.
pub fn look_at_file(file: &TestFile, report: &mut Report) -> Result<()> {
    let size = file.size();
    let unwritten = sys::unwritten(file.through_the_cache(), size);
    let unwritten = unwritten.map_err(|error| Error::io("lseek SEEK_DATA in", file.path(), &error))?;
    if unwritten > size / NEGLIGIBLE {
        let (percent, name) = (unwritten as f64 / size as f64 * 100.0, file.name());
        let text =
            format!("{percent:.1} % of {name} has never been written: the kernel answers there without the disk");
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
        let text =
            format!("of {looked_at} blocks of {} {poor} can be compressed, and {same} are like another", file.name());
        report.note(Code::Compressible, text);
    }
    Ok(())
}

/// The entropy of single bytes.
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
        report.note(Code::ReadAhead, format!("{device} reads {read_ahead} KiB ahead of who reads in order"));
    }
    if environment.mount_options.as_ref().is_some_and(|options| writes && options.contains("compress")) {
        let options = environment.mount_options.as_deref().unwrap_or("");
        report.note(Code::Compressible, format!("the file system compresses what is written ({options})"));
    }
    if !RingWorkers::now().are_told() {
        report.note(Code::NoSchedulerInfo, "requests handed to kernel workers are not counted");
    }
}

/// Checks what else the machine did.
pub fn look_at_load(report: &mut Report) {
    let disturbances = report.environment.load.disturbances();
    report.notes.extend(disturbances.into_iter().map(|text| Note::new(Code::UnderLoad, text)));
}

/// Checks the rows.
pub fn look_at_rows(report: &mut Report) {
    let split: Vec<_> = report.rows.iter().filter_map(|row| Some((row, two_speeds(&row.rounds)?))).collect();
    // A round apart is an accident where no other row of the run has one.
    let alone = split.len() == 1 && split[0].1.2 == 1;
    let Some((row, (low, high, _))) = split.first().filter(|_| !alone) else { return };
    let (low, high) = (short(*low), short(*high));
    let text = format!(
        "{} of {} rows ran at two speeds; {} {} {}: about {low}/s and {high}/s",
        split.len(),
        report.rows.len(),
        row.table,
        row.case,
        row.way
    );
    report.note(Code::TwoSpeeds, text);
}

/// Returns the middles of the two groups into which the rounds fall, and the number of rounds in the smaller
/// one: at least two; of three rounds, one may be alone.
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

    /// With three rounds, one of them apart is an accident; in several rows it is none.
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
