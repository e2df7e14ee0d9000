//! `pread` in a loop: what a program does that has not heard of any of this. Depth means nothing to
//! it.
//!
//! A stream goes two ways: past the page cache (`pread`) and through it (`pread-buffered`), with
//! the kernel's own readahead. It is written by `pwrite`.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::{Gather, Reads, Stream};
use crate::ways::stream::ends::Ends;
use crate::ways::{ReadWay, StreamWay, Way};

pub(crate) struct Pread;

pub(crate) struct Streamed {
    name: &'static str,
    direct: bool,
}

pub(crate) const DIRECT: Streamed = Streamed { name: "pread", direct: true };
pub(crate) const BUFFERED: Streamed = Streamed { name: "pread-buffered", direct: false };

impl Way for Pread {
    fn name(&self) -> &'static str {
        "pread"
    }
}

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

impl Way for Streamed {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl StreamWay for Streamed {
    fn direct(&self) -> bool {
        self.direct
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let ends = Ends::open(job, self.direct)?;
        let block = &mut buffer[..job.block];
        ends.on_the_clock(round, |tally| {
            for offset in job.each_offset() {
                let len = job.len_at(offset);
                ends.make(block, offset);
                let started = Instant::now();
                ends.read(block, len, offset)?;
                ends.write(block, len, offset)?;
                tally.block(offset, &block[..len], started, Instant::now());
            }
            Ok(())
        })
    }
}
