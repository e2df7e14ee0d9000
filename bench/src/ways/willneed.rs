//! `posix_fadvise(WILLNEED)` ahead of `pread`: parallel reads through old interfaces, at the price
//! of one more system call per read. Through the page cache only.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::{Batch, Gather, Reads, Target};
use crate::sys::will_need;
use crate::ways::{Does, ReadWay, Way};

/// Number of ranges that a gather announces ahead: as many as a common disk queue accepts without
/// blocking the caller.
const GATHER_AHEAD: usize = 128;

pub(crate) struct WillNeed;

pub(crate) static WILLNEED: Way = Way::new(
    "willneed",
    "posix_fadvise(WILLNEED) for as many reads as the depth, then pread in order",
    &[Does::Reads(&WillNeed), Does::Gathers(&WillNeed), Does::Scans(&WillNeed)],
)
.hue(2);

impl ReadWay for WillNeed {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = job.target.file;
        let mut announced = VecDeque::with_capacity(job.depth);
        let mut offsets = job.each_offset();
        round.start();
        loop {
            while announced.len() < job.depth {
                let Some(offset) = offsets.next() else { break };
                let started = Instant::now();
                will_need(file, offset, job.len_at(offset))?;
                announced.push_back((offset, started));
            }
            let Some((offset, started)) = announced.pop_front() else { break };
            let block = &mut buffer[..job.len_at(offset)];
            file.read_exact_at(block, offset)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        round.start();
        for batch in job.each_batch() {
            let started = Instant::now();
            gather_one(job.target, batch, output)?;
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

fn gather_one(target: Target<'_>, batch: Batch<'_>, output: &mut [u8]) -> io::Result<()> {
    let mut ahead = batch.ranges.iter();
    let mut announce = |count| {
        ahead.by_ref().take(count).try_for_each(|range| will_need(target.file, range.offset, range.len as usize))
    };
    announce(GATHER_AHEAD)?;
    for (offset, piece) in batch.pieces(output) {
        target.file.read_exact_at(piece, offset)?;
        announce(1)?;
    }
    Ok(())
}
