//! Native threads in plain calls. `threads`: `pwrite` and `fdatasync`, which waits for what others
//! wrote, too. `threads-dsync`: `pwritev2(RWF_DSYNC)`, for these bytes alone.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::measure::meter::{Apart, Round};
use crate::measure::work::ReadsAndWrites;
use crate::ways::log::commit::write_durable;
use crate::ways::read::threads::at_once;
use crate::ways::{Does, ReadWriteWay, Way};

pub(crate) struct Threads {
    dsync: bool,
}

pub(crate) const FDATASYNC: Threads = Threads { dsync: false };

pub(crate) static THREADS_DSYNC: Way = Way::new(
    "threads-dsync",
    "threads whose durable writes are pwritev2(RWF_DSYNC), not a pwrite and an fdatasync",
    &[Does::ReadsAndWrites(&Threads { dsync: true })],
)
.hue(0);

impl ReadWriteWay for Threads {
    fn read_write(&self, job: &ReadsAndWrites<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<Apart> {
        let (next, template) = (AtomicUsize::new(0), job.template());
        let apart = at_once(job.depth, job.block, buffer, round, |block, tally| {
            let mut apart = Apart::default();
            while let Some(access) = job.access(next.fetch_add(1, Ordering::Relaxed)) {
                if access.writes {
                    template.make(block, access.offset);
                }
                let started = Instant::now();
                if !access.writes {
                    job.file.read_exact_at(block, access.offset)?;
                } else if self.dsync {
                    write_durable(job.file, block, access.offset)?;
                } else {
                    job.file.write_all_at(block, access.offset)?;
                    job.file.sync_data()?;
                }
                apart.tell(access, block, (started, Instant::now()), tally);
            }
            Ok(apart)
        })?;
        Ok(Apart::sum(apart))
    }
}
