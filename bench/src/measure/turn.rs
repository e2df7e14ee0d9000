//! One way's turn: its work on the clock, and the one form in which a failure is told.

use std::fmt::Display;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use super::meter::{Check, Round, Sample, Sampled};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile::TestFile;

/// Which way, in which case of which table.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub way: &'a str,
    pub table: &'a str,
    pub case: &'a str,
    pub cancel: &'a AtomicBool,
}

/// Result of work, and its sample if it ran its clock.
pub type Outcome<T> = io::Result<(Option<Sample>, T)>;

/// Does work on the clock of one caller.
pub fn alone<T>(check: Option<&Check<'_>>, work: impl FnOnce(&mut Round<'_>) -> io::Result<T>) -> Outcome<T> {
    let gate = Barrier::new(1);
    let mut round = Round::new(&gate, check);
    let given = work(&mut round)?;
    Ok((Sample::of(&[round]), given))
}

impl Turn<'_> {
    pub fn failed(&self, why: impl Display) -> Error {
        let Self { way, table, case, .. } = self;
        Error::new(ErrorKind::Other, format!("{way} failed in {table} {case}: {why}; leave it out with --ways"))
    }

    pub fn interrupted(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The sample of a turn that was not interrupted. `failed` tells an error of the work.
    pub fn sample<T>(&self, outcome: Outcome<T>, failed: impl FnOnce(io::Error) -> Error) -> Result<(Sample, T)> {
        if self.interrupted() {
            return Err(Error::interrupted());
        }
        let (sample, given) = outcome.map_err(failed)?;
        Ok((sample.ok_or_else(|| self.failed("it did not run its clock"))?, given))
    }

    /// The sample of a turn that did what was to be done ([`Turn::require`]), with the right bytes.
    pub fn complete<T>(&self, what: &str, wanted: (u64, u64), outcome: Outcome<T>) -> Result<(Sample, T)> {
        let (sample, given) = self.sample(outcome, |error| self.failed(error))?;
        self.require_right(&sample)?;
        self.require(what, &sample, wanted)?;
        Ok((sample, given))
    }

    /// Holds the sample to the operations and bytes that were to be done. `what`: `reads`, as a
    /// failure names them.
    pub fn require(&self, what: &str, sample: &Sample, wanted: (u64, u64)) -> Result<()> {
        let done = (sample.operations, sample.bytes);
        if done == wanted {
            return Ok(());
        }
        Err(self.failed(format!("({what}, bytes) are {done:?} instead of {wanted:?}")))
    }

    /// Holds the checksums of a round that compared no bytes to those of the file.
    pub fn require_sampled(&self, sample: &Sample, file: &TestFile) -> Result<()> {
        self.require_checksums(&sample.sampled, |offset, len| file.checksum(offset, len))
    }

    /// Holds checksums to those of what is to be there.
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

    /// Holds bytes that were told to be on stable storage to what the device has written since
    /// `before`, where it counts. It is the least that it can have written: others write there, too.
    pub fn require_on_device(&self, bytes: u64, before: Option<Transfers>, now: Option<Transfers>) -> Result<()> {
        let Some((before, now)) = before.zip(now) else { return Ok(()) };
        let written = now.since(before).written_bytes;
        if written >= bytes {
            return Ok(());
        }
        Err(self.failed(format!("{bytes} bytes were acknowledged as durable, of which {written} reached the device")))
    }

    /// Holds the sample to the bytes of the file.
    pub fn require_right(&self, sample: &Sample) -> Result<()> {
        let wrong = |offset| Err(self.failed(format!("it returned wrong bytes for offset {offset}")));
        sample.wrong.map_or(Ok(()), wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_has_reached_the_device() {
        let turn = Turn { way: "way", table: "log", case: "case", cancel: &AtomicBool::new(false) };
        let at = |written_bytes| Some(Transfers { written_bytes, ..Transfers::default() });
        assert!(turn.require_on_device(4096, at(1000), at(5096)).is_ok());
        assert!(turn.require_on_device(4096, None, at(5096)).is_ok());
        let error = turn.require_on_device(4096, at(1000), at(5095)).unwrap_err().to_string();
        assert!(error.contains("way failed in log case: 4096 bytes were acknowledged"), "{error}");
    }
}
