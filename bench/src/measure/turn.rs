//! One way's turn: its place, its work on the clock, and the form of all its errors.

use std::fmt::Display;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::meter::{Check, Round, Sample, Sampled};
use super::options::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile::{TestFile, no_room};
use crate::random::Random;

/// Stage of a case's measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Compares all bytes.
    Verify,
    /// Measures the speeds, which determine the length of the timed rounds.
    WarmUp,
    /// A timed round, by number.
    Timed(usize),
}

impl Stage {
    /// Returns the random numbers of this stage or round, equal for all ways.
    pub fn random(self, seed: u64) -> Random {
        let number = match self {
            Self::Verify => 0,
            Self::WarmUp => 1,
            Self::Timed(round) => round as u64 + 2,
        };
        Random::of(seed, number)
    }
}

/// Place and options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub options: &'a Options,
    pub file: Option<&'a TestFile>,
    pub cancel: &'a AtomicBool,
}

impl<'a> Place<'a> {
    /// Returns the test file, which exists for a table that declares its size.
    pub fn file(&self) -> Result<&'a TestFile> {
        self.file.ok_or_else(|| Error::new(ErrorKind::Usage, "this table needs a test file"))
    }

    pub fn dir(&self) -> &'a Path {
        &self.options.dir
    }

    pub fn interrupted(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// One turn: a way, in a case of a table, at a stage.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    pub place: Place<'a>,
    /// Index of the way in its case.
    pub index: usize,
    pub way: &'a str,
    pub table: &'a str,
    pub case: &'a str,
    pub stage: Stage,
}

impl<'a> Deref for Turn<'a> {
    type Target = Place<'a>;

    fn deref(&self) -> &Place<'a> {
        &self.place
    }
}

/// Result of work, and its sample if it ran its clock.
pub type Outcome<T> = io::Result<(Option<Sample>, T)>;

/// Runs work with one caller.
pub fn alone<T>(check: Option<&Check<'_>>, work: impl FnOnce(&mut Round<'_>) -> io::Result<T>) -> Outcome<T> {
    let gate = Barrier::new(1);
    let mut round = Round::new(&gate, check);
    let given = work(&mut round)?;
    Ok((Sample::of(&[round]), given))
}

/// Runs work for each caller. Several callers run on a thread each, and start together. `work` gets the
/// number of its caller.
pub fn by_callers(
    callers: usize,
    check: Option<&Check<'_>>,
    work: impl Fn(usize, &mut Round<'_>) -> io::Result<()> + Sync,
) -> Outcome<()> {
    if callers == 1 {
        return alone(check, |round| work(0, round));
    }
    let gate = Barrier::new(callers);
    let call = |index| {
        let mut round = Round::new(&gate, check);
        work(index, &mut round).map(|()| round)
    };
    let rounds: io::Result<Vec<Round<'_>>> = thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = (0..callers).map(|index| scope.spawn(move || call(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a way does not panic")).collect()
    });
    Ok((Sample::of(&rounds?), ()))
}

impl Turn<'_> {
    pub fn verifies(&self) -> bool {
        self.stage == Stage::Verify
    }

    /// Returns the check of a round's bytes, if the turn compares them.
    pub fn check<'c>(&self, check: &'c Check<'c>) -> Option<&'c Check<'c>> {
        self.verifies().then_some(check)
    }

    pub fn failed(&self, why: impl Display) -> Error {
        let Self { way, table, case, .. } = self;
        Error::new(ErrorKind::Other, format!("{way} failed in {table} {case}: {why}; omit it by --ways"))
    }

    /// Returns the error of work that writes `bytes`; `option` reduces them.
    pub fn failed_or_full(&self, error: &io::Error, bytes: u64, option: &str, dir: &Path) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(bytes, option, dir, &error.to_string())
            }
            _ => self.failed(error),
        }
    }

    /// Returns the sample of a turn, unless it was interrupted. `failed` converts an error of the
    /// work.
    pub fn sample<T>(&self, outcome: Outcome<T>, failed: impl FnOnce(io::Error) -> Error) -> Result<(Sample, T)> {
        if self.interrupted() {
            return Err(Error::interrupted());
        }
        let (sample, given) = outcome.map_err(failed)?;
        Ok((sample.ok_or_else(|| self.failed("it did not run its clock"))?, given))
    }

    /// Returns the sample of a turn that did all of its work ([`Turn::require`]), with the right
    /// bytes.
    pub fn complete<T>(&self, what: &str, wanted: (u64, u64), outcome: Outcome<T>) -> Result<(Sample, T)> {
        let (sample, given) = self.sample(outcome, |error| self.failed(error))?;
        if let Some(offset) = sample.wrong {
            return Err(self.failed(format!("it returned wrong bytes for offset {offset}")));
        }
        self.require(what, &sample, wanted)?;
        Ok((sample, given))
    }

    /// Returns an error unless the sample has the expected operations and bytes. `what` names them
    /// in the error, such as `reads`.
    pub fn require(&self, what: &str, sample: &Sample, wanted: (u64, u64)) -> Result<()> {
        let done = (sample.operations, sample.bytes);
        if done == wanted {
            return Ok(());
        }
        Err(self.failed(format!("({what}, bytes) are {done:?} instead of {wanted:?}")))
    }

    /// Compares the checksums of a round with those of the file.
    pub fn require_sampled(&self, sample: &Sample, file: &TestFile) -> Result<()> {
        self.require_checksums(&sample.sampled, |offset, len| file.checksum(offset, len))
    }

    /// Compares checksums with the expected ones.
    pub fn require_checksums<'s>(
        &self,
        sampled: impl IntoIterator<Item = &'s Sampled>,
        wanted: impl Fn(u64, usize) -> Result<u32>,
    ) -> Result<()> {
        for sampled in sampled {
            if wanted(sampled.offset, sampled.len)? != sampled.crc {
                return Err(self.failed(format!("a timed round returned wrong bytes for offset {}", sampled.offset)));
            }
        }
        Ok(())
    }

    /// Checks that the device has written at least the `bytes` acknowledged as durable in a round, if
    /// it counts its `transfers`. It may have written more, for other programs.
    pub fn require_on_device(&self, bytes: u64, transfers: Option<Transfers>) -> Result<()> {
        let Some(Transfers { written_bytes: written, .. }) = transfers else { return Ok(()) };
        if written >= bytes {
            return Ok(());
        }
        Err(self.failed(format!("{bytes} bytes were acknowledged as durable, of which {written} reached the device")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_acknowledged_has_reached_the_device() {
        let (options, cancel) = (Options::new(true, 1), AtomicBool::new(false));
        let place = Place { options: &options, file: None, cancel: &cancel };
        let turn = Turn { place, index: 0, way: "way", table: "log", case: "case", stage: Stage::Verify };
        let at = |written_bytes| Some(Transfers { written_bytes, ..Transfers::default() });
        assert!(turn.require_on_device(4096, at(4096)).is_ok());
        assert!(turn.require_on_device(4096, None).is_ok());
        let error = turn.require_on_device(4096, at(4095)).unwrap_err().to_string();
        assert!(error.contains("way failed in log case: 4096 bytes were acknowledged"), "{error}");
    }

    #[test]
    fn every_stage_and_round_draws_numbers_of_its_own_and_the_same_again() {
        let stages = || [Stage::Verify, Stage::WarmUp].into_iter().chain((0..20).map(Stage::Timed));
        let drawn = |seed| stages().map(|stage| stage.random(seed).number()).collect::<Vec<u64>>();
        assert_eq!(drawn(7).into_iter().collect::<BTreeSet<u64>>().len(), 22);
        assert!(drawn(7) == drawn(7) && drawn(7) != drawn(8));
    }
}
