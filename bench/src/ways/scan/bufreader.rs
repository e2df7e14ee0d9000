//! A buffer of the program's own that one large read fills, and blocks copied out of it: std's
//! `BufReader` with the buffer of `cat`. Blocks must ascend for it to gain anything. Depth means
//! nothing to it.

use std::io::{self, BufReader, Read, Seek};
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::Reads;
use crate::ways::{Does, ReadWay, Way};

pub(crate) struct Buffered;

pub(crate) static BUFREADER: Way = Way::new(
    "bufreader",
    "std's BufReader with 256 KiB, blocks copied out of it, one at a time",
    &[Does::Scans(&Buffered)],
)
.hue(7);

/// The buffer of GNU `cat` (coreutils 9.5, `io_blksize`).
const WINDOW: usize = 256 << 10;

impl ReadWay for Buffered {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let (mut reader, mut place) = (BufReader::with_capacity(WINDOW, job.target.file), 0);
        reader.rewind()?;
        round.start();
        for offset in job.each_offset() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = Instant::now();
            reader.seek_relative(offset as i64 - place)?;
            reader.read_exact(block)?;
            place = offset as i64 + block.len() as i64;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}
