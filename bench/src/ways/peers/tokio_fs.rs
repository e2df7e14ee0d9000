//! `tokio::fs` at random offsets. Its files have a position, so each of the `depth` tasks has its
//! own file, and seeks before each read. A seek uses a blocking thread, as a read does.

use std::fs;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::measure::meter::Round;
use crate::measure::work::{Contents, Gather, Reads, Writes};
use crate::ways::runtime::{Seen, finish, run_on_the_clock, runtime};
use crate::ways::{Does, ReadWay, Way, WriteWay};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::one_thread::expect_random;

pub(crate) struct TokioFs;

pub(crate) static TOKIO_FS: Way = Way::new(
    "tokio-fs",
    "tokio::fs::File, which has a position: each task has its own file; a seek and a read_exact per read",
    &[Does::Reads(&TokioFs), Does::Gathers(&TokioFs), Does::Writes(&TokioFs)],
)
.hue(7);

/// Maximum number of open files of a gather. Each reads its share of the records, one after the
/// other.
const FILES_MAX: usize = 128;

fn open_to_read(path: &Path) -> io::Result<File> {
    let file = fs::File::open(path)?;
    expect_random(&file)?;
    Ok(File::from_std(file))
}

impl ReadWay for TokioFs {
    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let next = Arc::new(AtomicUsize::new(0));
        let offsets: Arc<[(u64, usize)]> = job.each_offset().map(|offset| (offset, job.len_at(offset))).collect();
        let files: Vec<File> = (0..job.depth).map(|_| open_to_read(job.target.path)).collect::<io::Result<_>>()?;
        let tasks = files.into_iter().map(|mut file| {
            let (next, offsets) = (next.clone(), offsets.clone());
            let mut buffer = vec![0xa5; job.block];
            let mut seen = Seen::new(&round.tally);
            async move {
                while let Some(&(offset, len)) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.read_exact(&mut buffer[..len]).await?;
                    seen.add(offset, &buffer[..len], started);
                }
                io::Result::Ok(seen)
            }
        });
        let tasks = tasks.collect();
        run_on_the_clock(tasks, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let open = |_| open_to_read(job.target.path);
        let mut files: Vec<File> = (0..job.records().min(FILES_MAX)).map(open).collect::<io::Result<_>>()?;
        round.start();
        for batch in job.each_batch() {
            let started = Instant::now();
            let shares = batch.ranges.chunks(batch.ranges.len().div_ceil(files.len()));
            let working = files.split_off(files.len() - shares.len());
            let tasks = shares.zip(working).map(|(share, mut file)| {
                let share = share.to_vec();
                runtime().spawn(async move {
                    let mut records = vec![0; share.iter().map(|range| range.len as usize).sum()];
                    let mut rest = &mut records[..];
                    for range in share {
                        let record;
                        (record, rest) = rest.split_at_mut(range.len as usize);
                        file.seek(SeekFrom::Start(range.offset)).await?;
                        file.read_exact(record).await?;
                    }
                    io::Result::Ok((file, records))
                })
            });
            let tasks = tasks.collect();
            let mut rest = &mut *output;
            for (file, records) in finish(tasks)? {
                let piece;
                (piece, rest) = rest.split_at_mut(records.len());
                piece.copy_from_slice(&records);
                files.push(file);
            }
            round.tally.batch(batch, output, started, Instant::now());
        }
        round.stop();
        Ok(())
    }
}

/// The remaining writes, for tasks, which cannot borrow the job.
#[derive(Clone)]
struct WriteSequence {
    next: Arc<AtomicU64>,
    count: u64,
    contents: Contents,
}

impl WriteSequence {
    fn of(job: &Writes<'_>) -> WriteSequence {
        WriteSequence { next: Arc::default(), count: job.blocks, contents: job.contents }
    }

    /// Prepares the next block in `buffer`; returns its offset.
    #[inline]
    fn next(&self, buffer: &mut [u8]) -> Option<u64> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let offset = (index < self.count).then(|| index * buffer.len() as u64)?;
        self.contents.place(buffer, offset);
        Some(offset)
    }
}

impl WriteWay for TokioFs {
    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let blocks = WriteSequence::of(job);
        let open = || fs::OpenOptions::new().write(true).open(job.path).map(File::from_std);
        let files: Vec<File> = (0..job.depth).map(|_| open()).collect::<io::Result<_>>()?;
        let tasks = files.into_iter().zip(job.buffers()).map(|(mut file, mut block)| {
            let blocks = blocks.clone();
            let mut seen = Seen::new(&round.tally);
            async move {
                while let Some(offset) = blocks.next(&mut block) {
                    let started = Instant::now();
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.write_all(&block).await?;
                    // Without the flush, the write may still be pending on a blocking thread.
                    file.flush().await?;
                    seen.add(offset, &block, started);
                }
                io::Result::Ok(seen)
            }
        });
        let tasks = tasks.collect();
        run_on_the_clock(tasks, round)
    }
}
