//! `pwrite` in a loop: what a program does that has not heard of any of this. Depth means nothing
//! to it.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::Writes;
use crate::ways::{Does, Way, WriteWay, write::heartbeat};

pub(crate) struct Pwrite;

pub(crate) static PWRITE: Way = Way::new(
    "pwrite",
    "one call at a time on one thread, whatever the depth",
    &[Does::Writes(&Pwrite), Does::Stalls(&heartbeat::Blocking)],
)
.hue(0);

impl WriteWay for Pwrite {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let block = &mut buffer[..job.block];
        round.start();
        for offset in job.each_offset() {
            job.contents.place(block, offset);
            let started = Instant::now();
            job.file.write_all_at(block, offset)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}
