//! A buffer of the program's own that one large `pread` fills, and blocks copied out of it: std's
//! `BufReader` with the buffer of `cat`. Blocks must ascend for it to gain anything. Depth means
//! nothing to it.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Reads};
use crate::ways::{Does, ReadWay, Way};

pub(crate) struct BufReader;

pub(crate) static BUFREADER: Way = Way::new(
    "bufreader",
    "preads of 256 KiB into a buffer of the program's own, blocks copied out of it, one at a time",
    &[Does::Scans(&BufReader)],
)
.hue(7);

/// The buffer of GNU `cat` (coreutils 9.5, `io_blksize`).
const WINDOW: usize = 256 << 10;

impl ReadWay for BufReader {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let mut window = Buffer::new(WINDOW.max(job.block));
        let (mut start, mut have) = (0, 0);
        round.start();
        for offset in job.each_offset() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = Instant::now();
            if offset < start || offset + block.len() as u64 > start + have as u64 {
                start = offset;
                have = fill(job, window.bytes(), offset)?;
            }
            let at = (offset - start) as usize;
            let found = window.bytes()[..have].get(at..at + block.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            block.copy_from_slice(found);
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

/// Fills the window as far as the file goes.
fn fill(job: &Reads<'_>, window: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < window.len() {
        match job.target.file.read_at(&mut window[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}
