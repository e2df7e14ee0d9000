//! A map without any advice: blocks are copied out of it, and the thread waits at each fault.

use std::fs::File;
use std::io;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::Reads;
use crate::sys::Mapping;
use crate::ways::{Does, ReadWay, Way};

pub(crate) struct Touch;

pub(crate) static TOUCH: Way =
    Way::new("touch", "a map without any advice: each page is there when it is copied", &[Does::Scans(&Touch)]).hue(4);

impl ReadWay for Touch {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        // With the readahead that is usual.
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
