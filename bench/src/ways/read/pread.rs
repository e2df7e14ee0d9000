//! `pread` in a loop: what a program does that has not heard of any of this. Depth means nothing to
//! it.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::{Gather, Reads};
use crate::ways::{Does, ReadWay, Way};

pub(crate) struct Pread;

pub(crate) static PREAD: Way = Way::new(
    "pread",
    "one call at a time on one thread, whatever the depth",
    &[Does::Reads(&Pread), Does::Gathers(&Pread), Does::DirectReads(&Pread), Does::Scans(&Pread), Does::Files(&Pread)],
)
.hue(0);

impl ReadWay for Pread {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        round.start();
        let schedule = job.schedule();
        for (index, offset) in job.each_offset().enumerate() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = schedule.wait(index);
            job.target.file.read_exact_at(block, offset)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
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
