//! `pread` and `pwrite` on tokio's blocking threads, a closure for each: what `tokio::fs` does,
//! without its own copy of the data. `depth` tasks, each with one read or write at a time.
//!
//! A gather is one task, and a closure for each share of a batch: as many shares as the native
//! threads have. Each reads into its part of one memory, which is cut and put together again
//! without a copy (`BytesMut`); no record costs a task or memory of its own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use tokio::task;

use crate::measure::meter::Round;
use crate::measure::pace::Arrivals;
use crate::measure::work::{Batch, Gather, Range, Reads, Writes};
use crate::ways::read::threads::GATHER_THREADS;
use crate::ways::runtime::{Blocks, Seen, run_on_the_clock};
use crate::ways::{Does, ReadWay, Way, WriteWay, mixed, ranges, write::heartbeat};

pub(crate) struct SpawnBlocking;

pub(crate) static TOKIO: Way = Way::new(
    "tokio",
    "tokio with spawn_blocking, as tokio::fs does it; a gather in at most 32 of them",
    &[
        Does::Reads(&SpawnBlocking),
        Does::Gathers(&SpawnBlocking),
        Does::Scans(&SpawnBlocking),
        Does::LoadReads(&SpawnBlocking),
        Does::LoadGathers(&SpawnBlocking),
        Does::Writes(&SpawnBlocking),
        Does::Stalls(&heartbeat::Tokio),
        Does::ReadsAndWrites(&SpawnBlocking),
        Does::Files(&SpawnBlocking),
        Does::Ranges(&ranges::PREAD),
        Does::Mixed(&mixed::spawn_blocking::SpawnBlocking),
    ],
)
.hue(6);

impl ReadWay for SpawnBlocking {
    fn paced(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = Arc::new(job.target.file.try_clone()?);
        let arrivals = Arrivals::new(job.pace, job.offsets.len());
        let offsets: Arc<[(u64, usize)]> = job.offsets.iter().map(|&offset| (offset, job.len_at(offset))).collect();
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, arrivals, offsets) = (file.clone(), arrivals.clone(), offsets.clone());
                let mut buffer = vec![0xa5; job.block];
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some((index, started)) = arrivals.next().await {
                        let (offset, len) = offsets[index];
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
        let batches: Vec<Box<[Range]>> = job.each_batch().map(|batch| batch.ranges.into()).collect();
        let shares: Vec<Vec<Share>> =
            job.each_batch().map(|batch| batch.shares(GATHER_THREADS).map(Share::of).collect()).collect();
        let mut memory = BytesMut::zeroed(output.len());
        let mut seen = Seen::new(&round.tally);
        let task = async move {
            let mut reads = Vec::with_capacity(GATHER_THREADS);
            for (shares, ranges) in shares.into_iter().zip(batches) {
                let started = Instant::now();
                for share in shares {
                    let (file, part) = (file.clone(), memory.split_to(share.bytes));
                    reads.push(task::spawn_blocking(move || share.read(&file, part)));
                }
                let mut whole = BytesMut::new();
                for read in reads.drain(..) {
                    whole.unsplit(read.await.map_err(io::Error::other)??);
                }
                seen.add_batch(&ranges, &whole, started);
                whole.unsplit(memory);
                memory = whole;
            }
            io::Result::Ok(seen)
        };
        run_on_the_clock(vec![task], round)
    }
}

/// Records of a batch, for a closure, which cannot borrow the job.
struct Share {
    ranges: Box<[Range]>,
    bytes: usize,
}

impl Share {
    fn of(share: Batch<'_>) -> Self {
        Self { ranges: share.ranges.into(), bytes: share.bytes }
    }

    fn read(&self, file: &File, mut part: BytesMut) -> io::Result<BytesMut> {
        let share = Batch { ranges: &self.ranges, bytes: self.bytes };
        share.pieces(&mut part).try_for_each(|(offset, piece)| file.read_exact_at(piece, offset))?;
        Ok(part)
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
pub(in crate::ways) async fn read_exact_at(
    file: &Arc<File>,
    mut buffer: Vec<u8>,
    len: usize,
    offset: u64,
) -> io::Result<Vec<u8>> {
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
