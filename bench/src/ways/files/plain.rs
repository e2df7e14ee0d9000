//! Plain calls: `std::fs::read` of each file, `pread` of open ones; one after the other, or on
//! native threads.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::machine::tree::Tree;
use crate::measure::meter::{Round, Tally};
use crate::measure::work::{SmallFiles, Spread};
use crate::ways::FileWay;
use crate::ways::read::pread::Pread;
use crate::ways::read::threads::{Threads, at_once};

/// A pool for thousands of tasks: more threads only wait for each other.
const THREADS_MAX: usize = 128;

impl FileWay for Pread {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        round.start();
        let mut index = 0;
        while let Some((number, path)) = job.file(index) {
            let started = Instant::now();
            let bytes = fs::read(path)?;
            round.tally.block(Tree::place(number, 0), &bytes, started, Instant::now());
            index += 1;
        }
        round.stop();
        Ok(())
    }

    fn spread(&self, job: &Spread<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let block = &mut buffer[..job.block];
        round.start();
        let mut index = 0;
        while let Some((file, offset)) = job.place(index) {
            one(job, file, offset, block, &mut round.tally)?;
            index += 1;
        }
        round.stop();
        Ok(())
    }
}

impl FileWay for Threads {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        at_once(job.depth, 1, &mut vec![0; job.depth], round, |_, tally| {
            while let Some((number, path)) = job.file(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let bytes = fs::read(path)?;
                tally.block(Tree::place(number, 0), &bytes, started, Instant::now());
            }
            Ok(())
        })
        .map(drop)
    }

    fn spread(&self, job: &Spread<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        at_once(job.depth.min(THREADS_MAX), job.block, buffer, round, |block, tally| {
            while let Some((file, offset)) = job.place(next.fetch_add(1, Ordering::Relaxed)) {
                one(job, file, offset, block, tally)?;
            }
            Ok(())
        })
        .map(drop)
    }
}

fn one(job: &Spread<'_>, file: u32, offset: u64, block: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
    let started = Instant::now();
    job.files[file as usize].read_exact_at(block, offset)?;
    tally.block(Tree::place(u64::from(file), offset), block, started, Instant::now());
    Ok(())
}
