//! io_uring by hand: a small file is one chain (open into the ring's table, read, close) and one
//! completion to wait for; of open files, which are registered, each block is one read.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;

use crate::machine::tree::Tree;
use crate::measure::meter::Round;
use crate::measure::work::{SmallFiles, Spread};
use crate::ways::FileWay;
use crate::ways::slots::{Slots, refused_by_name};

pub(crate) struct Ring;

impl FileWay for Ring {
    fn refused(&self) -> Option<String> {
        refused_by_name()
    }

    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let path = |(_, path): &(u64, PathBuf)| CString::new(path.as_os_str().as_bytes());
        let paths: Vec<CString> = job.files.iter().map(path).collect::<Result<_, _>>()?;
        Slots::by_name(job.depth, job.len_max + 1)?.keep_busy(
            round,
            |slots, slot, index| {
                let Some((number, _)) = job.file(index) else { return Ok(None) };
                let started = Instant::now();
                slots.read_whole(slot, &paths[index])?;
                Ok(Some((Tree::place(number, 0), started)))
            },
            |(place, started), bytes, now, tally| tally.block(place, bytes, started, now),
        )
    }

    fn spread(&self, job: &Spread<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Slots::over(job.files, job.depth, job.block)?.keep_busy(
            round,
            |slots, slot, index| {
                let Some((file, offset)) = job.place(index) else { return Ok(None) };
                let started = Instant::now();
                slots.read(slot, file, offset, job.block)?;
                Ok(Some((Tree::place(u64::from(file), offset), started)))
            },
            |(place, started), bytes, now, tally| tally.block(place, bytes, started, now),
        )
    }
}
