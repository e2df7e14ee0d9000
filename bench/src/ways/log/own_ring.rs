//! io_uring without a leader: each writer has a ring of its own, and one call submits its commit
//! and waits for it. Places in the one file are handed out by a counter.
//!
//! `ring-linked`: a write through the page cache and an `fdatasync` that is linked to it. The
//! kernel gives both to its workers. `ring-dsync`: one write of whole blocks past the page cache,
//! with `RWF_DSYNC`. It needs no such worker; the flush after it is asked for by a thread of the
//! kernel's own (fs/iomap/direct-io.c, `s_dio_done_wq`), whose time is in nobody's figures.
//!
//! With 64 writers the second was five times as fast. (Also tried: both requests of `ring-linked`
//! past the page cache, in between; and its write given to a worker at once, `IOSQE_ASYNC`, level
//! with it.)

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::commit::{BLOCK, by_writers, find, open_direct};
use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::drive::Operation;
use crate::ways::ring::{desk, refused};
use crate::ways::{Does, LogWay, Way};

pub(crate) struct OwnRing {
    direct: bool,
}

pub(crate) static RING_LINKED: Way = Way::new(
    "ring-linked",
    "each writer: a ring of its own, a write and an fdatasync linked to it",
    &[Does::Commits(&OwnRing { direct: false })],
)
.hue(4)
.refused(refused);

pub(crate) static RING_DSYNC: Way = Way::new(
    "ring-dsync",
    "each writer: a ring of its own, whole blocks with RWF_DSYNC past the page cache",
    &[Does::Commits(&OwnRing { direct: true })],
)
.hue(5)
.refused(refused);

impl LogWay for OwnRing {
    fn direct(&self) -> bool {
        self.direct
    }

    fn room(&self, size: usize) -> usize {
        if self.direct { size.next_multiple_of(BLOCK) } else { size }
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let direct = self.direct.then(|| open_direct(job.path)).transpose()?;
        let file = direct.as_ref().unwrap_or(job.file);
        let room = self.room(job.size);
        let end = AtomicU64::new(0);
        let places = by_writers(
            job,
            round,
            || desk(file, 1, !self.direct),
            |ring, block| {
                let place = end.fetch_add(room as u64, Ordering::Relaxed);
                ring.one(Operation::durable(place, room), &[], &mut block[..room])?;
                Ok(place)
            },
        )?;
        find(job, round, &places)?;
        Ok(Some(end.into_inner()))
    }
}
