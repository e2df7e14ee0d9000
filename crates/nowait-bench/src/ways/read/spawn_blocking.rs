//! `pread` and `pwrite` on tokio's blocking threads, a closure for each: what `tokio::fs` does,
//! without its own copy of the data. `depth` tasks, each with one read or write at a time; for a
//! gather, all records of a batch at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::task;

use crate::measure::meter::Round;
use crate::measure::work::{Gather, Reads, Writes};
use crate::ways::runtime::{Blocks, Seen, finish, run_on_the_clock, runtime};
use crate::ways::{ReadWay, Way, WriteWay};

pub(crate) struct SpawnBlocking;

impl Way for SpawnBlocking {
    fn name(&self) -> &'static str {
        "tokio"
    }
}

impl ReadWay for SpawnBlocking {
    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = Arc::new(job.target.file.try_clone()?);
        let next = Arc::new(AtomicUsize::new(0));
        let offsets: Arc<[(u64, usize)]> = job.each_offset().map(|offset| (offset, job.len_at(offset))).collect();
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, next, offsets) = (file.clone(), next.clone(), offsets.clone());
                let mut buffer = vec![0xa5; job.block];
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some(&(offset, len)) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let started = Instant::now();
                        buffer = read_exact_at(&file, buffer, len, offset).await?;
                        seen.add(offset, &buffer[..len], started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        run_on_the_clock(tasks, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = Arc::new(job.target.file.try_clone()?);
        round.start();
        for batch in job.each_batch() {
            let started = Instant::now();
            let read = |(offset, piece): (u64, &mut [u8])| {
                let (file, buffer, len) = (file.clone(), vec![0; piece.len()], piece.len());
                runtime().spawn(async move { read_exact_at(&file, buffer, len, offset).await })
            };
            let records = finish(batch.pieces(output).map(read).collect())?;
            for ((_, piece), record) in batch.pieces(output).zip(records) {
                piece.copy_from_slice(&record);
            }
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

impl WriteWay for SpawnBlocking {
    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let blocks = Blocks::of(job);
        let tasks: Vec<_> = job
            .buffers()
            .into_iter()
            .map(|mut buffer| {
                let (file, blocks) = (job.file.clone(), blocks.clone());
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some(offset) = blocks.next(&mut buffer) {
                        let started = Instant::now();
                        buffer = write_all_at(&file, buffer, offset).await?;
                        seen.add(offset, &buffer, started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        run_on_the_clock(tasks, round)
    }
}

/// The first `len` bytes of the buffer; gives it back.
async fn read_exact_at(file: &Arc<File>, mut buffer: Vec<u8>, len: usize, offset: u64) -> io::Result<Vec<u8>> {
    let file = file.clone();
    let read = task::spawn_blocking(move || file.read_exact_at(&mut buffer[..len], offset).map(|()| buffer));
    read.await.map_err(io::Error::other)?
}

/// Gives the buffer back.
pub(in crate::ways) async fn write_all_at(file: &Arc<File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
    let file = file.clone();
    let written = task::spawn_blocking(move || file.write_all_at(&buffer, offset).map(|()| buffer));
    written.await.map_err(io::Error::other)?
}
