//! `pread` and `pwrite` in a loop, as in the simplest program. The depth has no effect.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::drive::{Drive, Job, Kind, Operation, RoundPlan, in_turn};
use super::{Does, Way, cache, stall};
use crate::measure::meter::Round;
use crate::measure::work::Gather;

pub(crate) struct Plain;

pub(crate) static PREAD: Way = Way::new(
    "pread",
    "pread, one at a time on one thread, whatever the depth",
    &[
        Does::Reads(&Plain),
        Does::Gathers(&Plain),
        Does::DirectReads(&Plain),
        Does::Scans(&Plain),
        Does::Files(&Plain),
        Does::Hits(&cache::Preads),
        Does::Copies(&cache::Preads),
    ],
)
.hue(0);

pub(crate) static PWRITE: Way = Way::new(
    "pwrite",
    "pwrite, one at a time on one thread, whatever the depth",
    &[Does::Writes(&Plain), Does::Stalls(&stall::Blocking)],
)
.hue(0);

/// Performs one operation by plain calls.
pub(super) fn one(file: &File, operation: Operation, block: &mut [u8]) -> io::Result<()> {
    let offset = operation.offset;
    match operation.kind {
        Kind::Read => file.read_exact_at(block, offset),
        Kind::Write => file.write_all_at(block, offset),
        Kind::DurableWrite | Kind::Whole | Kind::Gather => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Reads records, one after the other.
pub(super) fn all(file: &File, extents: &[(u64, usize)], block: &mut [u8]) -> io::Result<()> {
    let mut rest = block;
    extents.iter().try_for_each(|&(offset, len)| {
        let (record, after) = std::mem::take(&mut rest).split_at_mut(len);
        rest = after;
        file.read_exact_at(record, offset)
    })
}

/// Performs an operation on a plan's files; returns the bytes of a whole file.
pub(super) fn call(plan: &RoundPlan, operation: Operation, block: &mut [u8]) -> io::Result<Option<Vec<u8>>> {
    match operation.kind {
        Kind::Whole => fs::read(plan.path(operation)).map(Some),
        Kind::Gather => all(&plan.files[0], plan.extents(operation), block).map(|()| None),
        _ => one(&plan.files[operation.file], operation, block).map(|()| None),
    }
}

impl Drive for Plain {
    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        in_turn(job, buffer, round, |operation, block| call(&job.plan, operation, block))
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        round.start();
        for batch in job.each_batch() {
            let started = Instant::now();
            for (offset, piece) in batch.pieces(output) {
                job.target.file.read_exact_at(piece, offset)?;
            }
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}
