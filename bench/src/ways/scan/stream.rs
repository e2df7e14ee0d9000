//! Blocks of a file in order by the library's sequential reader (`nowait-stream`), which has a place
//! in the file and reads ahead itself. It is asked as any reader of std's is (`read_exact`).

use std::io::{self, Read, Seek, SeekFrom};
use std::time::Instant;

use nowait::Nowait;
use nowait::stream::Reader;

use crate::measure::meter::Round;
use crate::measure::work::Reads;
use crate::ways::nowait::Session;
use crate::ways::{Does, ReadWay, Way};

pub(crate) struct Blocks;

pub(crate) static NOWAIT_STREAM: Way = Way::new(
    "nowait-stream",
    "this library's sequential Reader, through the page cache, asked for a block at a time",
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
