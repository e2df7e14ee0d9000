//! `nowait`'s map: populated in the background while the calling thread goes on, or with the rows
//! brought in a batch at a time.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use nowait::File;
use nowait::map::Map;

use super::watch::{Populated, TICK, Watch};
use crate::measure::meter::Round;
use crate::measure::work::{Populate, Reads};
use crate::sys::map_with_nowait;
use crate::ways::{Mapped, PopulateWay, RowWay, Way};

pub(crate) struct Nowait;

impl Mapped for Map {
    fn touch(&self, offset: u64) -> u8 {
        std::hint::black_box(self[offset as usize])
    }

    fn copy(&self, offset: u64, to: &mut [u8]) {
        to.copy_from_slice(&self[offset as usize..][..to.len()]);
    }
}

impl Way for Nowait {
    fn name(&self) -> &'static str {
        "nowait"
    }
}

impl PopulateWay for Nowait {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> io::Result<Populated> {
        let file = File::open(job.path).wait()?;
        let mut watch = Watch::start(job, round);
        let map = map_with_nowait(&file)?;
        let mut populating = map.populate(..).start()?;
        loop {
            let polled = pin!(populating.next_chunk()).poll(&mut Context::from_waker(Waker::noop()));
            match polled? {
                Poll::Ready(Some(range)) => watch.announced(&map, range.start as u64..range.end as u64),
                Poll::Ready(None) => break,
                Poll::Pending if job.is_cancelled() => break,
                Poll::Pending => thread::sleep(TICK),
            }
            watch.beat();
        }
        Ok(watch.stop(map))
    }
}

impl RowWay for Nowait {
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = File::open(job.target.path).wait()?;
        let map = map_with_nowait(&file)?;
        let mut offsets = job.each_offset();
        round.start();
        loop {
            // As many as the others have under way.
            let batch: Vec<u64> = offsets.by_ref().take(job.depth).collect();
            if batch.is_empty() {
                break;
            }
            let started = Instant::now();
            let rows = batch.iter().map(|&offset| offset as usize..offset as usize + job.len_at(offset));
            map.gather(rows).wait()?;
            for offset in batch {
                let row = &mut buffer[..job.len_at(offset)];
                map.copy(offset, row);
                round.tally.block(offset, row, started, Instant::now());
            }
        }
        round.stop();
        Ok(())
    }
}
