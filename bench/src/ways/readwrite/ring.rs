//! io_uring by hand, from one thread. `ring`: a durable write is one request (`RWF_DSYNC`).
//! `ring-fdatasync`: a write and an `fdatasync` that is linked to it.

use std::io;
use std::slice;
use std::time::Instant;

use crate::measure::meter::{Apart, Round};
use crate::measure::work::ReadsAndWrites;
use crate::ways::slots::{Durable, Slots};
use crate::ways::{Does, ReadWriteWay, Way, read::ring::refused};

pub(crate) struct Ring {
    durable: Durable,
}

pub(crate) const DSYNC: Ring = Ring { durable: Durable::Dsync };

pub(crate) static RING_FDATASYNC: Way = Way::new(
    "ring-fdatasync",
    "ring with an fdatasync linked to each write, not RWF_DSYNC",
    &[Does::ReadsAndWrites(&Ring { durable: Durable::Linked })],
)
.hue(4)
.refused(refused);

impl ReadWriteWay for Ring {
    fn read_write(&self, job: &ReadsAndWrites<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<Apart> {
        let (template, mut apart) = (job.template(), Apart::default());
        let mut slots = Slots::over(slice::from_ref(&**job.file), job.depth, job.block)?;
        slots.keep_busy(
            round,
            |slots, slot, index| {
                let Some(access) = job.access(index) else { return Ok(None) };
                if access.writes {
                    template.make(slots.bytes(slot), access.offset);
                }
                let started = Instant::now();
                if access.writes {
                    slots.write(slot, (0, access.offset), job.block, self.durable)?;
                } else {
                    slots.read(slot, 0, access.offset, job.block)?;
                }
                Ok(Some((access, started)))
            },
            |(access, started), bytes, now, tally| apart.tell(access, bytes, (started, now), tally),
        )?;
        Ok(apart)
    }
}
