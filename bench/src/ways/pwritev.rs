//! `pwritev-16`: one thread collects up to sixteen adjacent blocks, limited by the depth, and
//! writes them by one call. At depth 1 it would equal `pwrite`.

use std::io::{self, IoSlice};
use std::time::Instant;

use rustix::io::{Errno, pwritev};

use crate::measure::meter::Round;
use crate::measure::work::Writes;
use crate::ways::{Does, Way, WriteWay};

pub(crate) struct Pwritev;

pub(crate) static PWRITEV: Way = Way::new(
    "pwritev-16",
    "one thread, one pwritev for up to 16 adjacent blocks of those in flight",
    &[Does::Writes(&Pwritev)],
)
.hue(7);

const COLLECTED: usize = 16;

impl WriteWay for Pwritev {
    fn fewest_in_flight(&self) -> usize {
        2
    }

    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let most = COLLECTED.min(job.depth);
        let blocks = &mut buffer[..most * job.block];
        let mut collected: Vec<(u64, Instant)> = Vec::with_capacity(most);
        let mut offsets = job.each_offset().peekable();
        round.start();
        while let Some(offset) = offsets.next() {
            let mut next = Some(offset);
            for block in blocks.chunks_mut(job.block) {
                let Some(offset) = next else { break };
                job.contents.place(block, offset);
                collected.push((offset, Instant::now()));
                let more = collected.len() < most;
                next = if more { offsets.next_if_eq(&(offset + job.block as u64)) } else { None };
            }
            write_all(job, &blocks[..collected.len() * job.block], offset)?;
            let now = Instant::now();
            for ((offset, started), block) in collected.drain(..).zip(blocks.chunks(job.block)) {
                round.tally.block(offset, block, started, now);
            }
        }
        round.stop();
        Ok(())
    }
}

/// Passes each block as a separate segment, as if blocks came from different callers.
fn write_all(job: &Writes<'_>, blocks: &[u8], mut offset: u64) -> io::Result<()> {
    let mut parts = [IoSlice::new(&[]); COLLECTED];
    let count = blocks.len() / job.block;
    for (part, block) in parts.iter_mut().zip(blocks.chunks(job.block)) {
        *part = IoSlice::new(block);
    }
    // The rest of a short write fails with the reason: a full disk, a quota, or a file size limit.
    let mut left = &mut parts[..count];
    while !left.is_empty() {
        match pwritev(job.file, left, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut left, written);
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
