//! Common part of the runtimes that drive io_uring from one thread: as many loops as the depth,
//! joined in one future, as for `nowait` under `block_on`. A gather has all records of a batch in
//! flight, each in its own buffer, which is reused for the next batch. It copies them into the
//! output, since these runtimes read only into memory that they own.
//!
//! Their rings have the default flags. COOP_TASKRUN and DEFER_TASKRUN, where available, made no
//! difference above the noise to cached reads and gathers.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::{Batch, Gather, Reads, Target, Writes};
use crate::ways::{ReadWay, WriteWay};
use futures_util::future::join_all;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// A runtime of one thread, and its file type.
pub(super) trait Runtime: Sync {
    type File;
    /// Buffer of a read.
    type Buffer;

    /// Runs `main` on this thread, with room for `in_flight` operations.
    fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T>;

    /// Opens the file without readahead.
    fn open_to_read(target: Target<'_>) -> impl Future<Output = io::Result<Self::File>>;

    fn buffer(len: usize) -> Self::Buffer;

    /// Reads exactly `len` bytes, at most the buffer's size.
    fn read(
        file: &Self::File,
        buffer: Self::Buffer,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = io::Result<Self::Buffer>>;

    /// Returns the buffer's bytes, which begin with those read.
    fn bytes(buffer: &Self::Buffer) -> &[u8];

    /// Reads a batch into the start of `output`, by means of `buffers`.
    fn gather(
        file: &Self::File,
        batch: Batch<'_>,
        buffers: &mut Vec<Self::Buffer>,
        output: &mut [u8],
    ) -> impl Future<Output = io::Result<()>> {
        async move {
            let kept = buffers.split_off(buffers.len() - batch.ranges.len());
            let reads = batch.ranges.iter().zip(kept);
            let reads = reads.map(|(range, buffer)| Self::read(file, buffer, range.offset, range.len as usize));
            for ((_, piece), read) in batch.pieces(output).zip(join_all(reads).await) {
                let buffer = read?;
                piece.copy_from_slice(&Self::bytes(&buffer)[..piece.len()]);
                buffers.push(buffer);
            }
            Ok(())
        }
    }
}

pub(super) trait Writing: Runtime {
    fn open_to_write(job: &Writes<'_>) -> impl Future<Output = io::Result<Self::File>>;

    /// Writes all of the block, and returns it.
    fn write(file: &Self::File, block: Vec<u8>, offset: u64) -> impl Future<Output = io::Result<Vec<u8>>>;
}

/// The ways of a runtime of one thread.
pub(super) struct OneThread<R>(pub(super) R);

impl<R: Runtime> ReadWay for OneThread<R> {
    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        R::run(job.depth, async {
            let file = R::open_to_read(job.target).await?;
            let buffers: Vec<R::Buffer> = (0..job.depth).map(|_| R::buffer(job.block)).collect();
            let next = Cell::new(0);
            round.start();
            let tally = RefCell::new(&mut round.tally);
            let loops = buffers.into_iter().map(|mut buffer| {
                let (file, next, tally) = (&file, &next, &tally);
                async move {
                    while let Some(offset) = job.offset(next.replace(next.get() + 1)) {
                        let (started, len) = (Instant::now(), job.len_at(offset));
                        buffer = R::read(file, buffer, offset, len).await?;
                        tally.borrow_mut().block(offset, &R::bytes(&buffer)[..len], started, Instant::now());
                    }
                    Ok(())
                }
            });
            let result: io::Result<Vec<()>> = join_all(loops).await.into_iter().collect();
            round.stop();
            result.map(drop)
        })?
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        R::run(job.records(), async {
            let file = R::open_to_read(job.target).await?;
            let longest = job.each_batch().flat_map(|batch| batch.ranges).map(|range| range.len as usize).max();
            let mut buffers: Vec<R::Buffer> =
                (0..job.records()).map(|_| R::buffer(longest.unwrap_or_default())).collect();
            round.start();
            for batch in job.each_batch() {
                let started = Instant::now();
                R::gather(&file, batch, &mut buffers, output).await?;
                round.tally.batch(batch, output, started, Instant::now());
            }
            round.stop();
            Ok(())
        })?
    }
}

impl<R: Writing> WriteWay for OneThread<R> {
    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        R::run(job.depth, async {
            let file = R::open_to_write(job).await?;
            let blocks = job.buffers();
            let next = Cell::new(0);
            round.start();
            let tally = RefCell::new(&mut round.tally);
            let loops = blocks.into_iter().map(|mut block| {
                let (file, next, tally) = (&file, &next, &tally);
                async move {
                    while let Some(offset) = job.offset(next.replace(next.get() + 1)) {
                        job.contents.place(&mut block, offset);
                        let started = Instant::now();
                        block = R::write(file, block, offset).await?;
                        tally.borrow_mut().block(offset, &block, started, Instant::now());
                    }
                    Ok(())
                }
            });
            let result: io::Result<Vec<()>> = join_all(loops).await.into_iter().collect();
            round.stop();
            result.map(drop)
        })?
    }
}

/// Disables readahead on a file that its runtime has opened.
pub(super) fn expect_random(file: &impl AsRawFd) -> io::Result<()> {
    Ok(posix_fadvise(file.as_raw_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM)?)
}

/// Opens the target without readahead, for a runtime that uses files of std.
pub(super) fn same_file(target: Target<'_>) -> io::Result<File> {
    target.file.try_clone()
}

/// Returns why io_uring is refused. Called before the runtime, since some runtimes then end the
/// process.
pub(super) fn ring_refused() -> Option<String> {
    (crate::ways::ring::RING.refused)()
}
