//! Ways that only scan: they read blocks in ascending order, one at a time.
//!
//! * `bufreader`: std's `BufReader` with the buffer size of `cat`. One large read fills the buffer,
//!   and blocks are copied out of it.
//! * `touch`: a map without advice. Blocks are copied out of it, and the thread waits at each page
//!   fault.
//! * `nowait-stream`: the library's sequential reader, which has a file position and its own
//!   readahead. It is called like a reader of std (`read_exact`).

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::time::Instant;

use nowait::Nowait;
use nowait::stream::Reader;

use super::nowait::Session;
use super::{Does, ReadWay, Way};
use crate::measure::meter::Round;
use crate::measure::work::Reads;
use crate::sys::Mapping;

pub(crate) struct StdReader;

pub(crate) static BUFREADER: Way = Way::new(
    "bufreader",
    "std's BufReader with a buffer of 256 KiB, from which it copies one block at a time",
    &[Does::Scans(&StdReader)],
)
.hue(7);

/// Buffer size of GNU `cat` (coreutils 9.5, `io_blksize`).
const WINDOW: usize = 256 << 10;

impl ReadWay for StdReader {
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

pub(crate) struct Touch;

pub(crate) static TOUCH: Way =
    Way::new("touch", "mmap without advice: the copy of a block waits at each page fault", &[Does::Scans(&Touch)])
        .hue(4);

impl ReadWay for Touch {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        // Opened again, for the default readahead.
        let map = Mapping::new(&File::open(job.target.path)?, job.target.size)?;
        round.start();
        for offset in job.each_offset() {
            let (started, block) = (Instant::now(), &mut buffer[..job.len_at(offset)]);
            map.copy(offset, block);
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

pub(crate) struct Blocks;

pub(crate) static NOWAIT_STREAM: Way = Way::new(
    "nowait-stream",
    "this library's sequential Reader, through the page cache, one block per call",
    &[Does::Scans(&Blocks)],
);

impl ReadWay for Blocks {
    fn keeps_a_place(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let mut reader = Reader::new(&session.file, job.offset(0).unwrap_or(0));
        round.start();
        for offset in job.each_offset() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = Instant::now();
            if reader.position() != offset {
                reader.seek(SeekFrom::Start(offset))?;
            }
            reader.read_exact(block)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        session.report(round);
        Ok(())
    }
}
