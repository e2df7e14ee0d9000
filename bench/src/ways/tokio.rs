//! Plain calls on tokio's blocking threads, a closure for each, as in `tokio::fs`, but without its
//! copy of the data. `depth` tasks run, each with one operation at a time.
//!
//! A gather is one task, with a closure for each share of the batch: as many shares as for the
//! native threads. Each closure reads into its part of one buffer, which is split and joined
//! without a copy (`BytesMut`). No record needs its own task or allocation.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf as _, BytesMut};
use nowait::Buf;
use tokio::task;

use super::drive::{Drive, Handle, Job, Operation, on_tokio};
use super::plain::{all, one};
use super::runtime::{Seen, blocking, run_on_the_clock};
use super::threads::GATHER_THREADS;
use super::{Does, Way, mixed, stall};
use crate::measure::meter::Round;
use crate::measure::work::{Batch, Gather, Range};
use crate::sys::PAGE;

pub(crate) struct SpawnBlocking;

pub(crate) static TOKIO: Way = Way::new(
    "tokio",
    "spawn_blocking on tokio, as in tokio::fs; a gather in at most 32 such calls",
    &[
        Does::Reads(&SpawnBlocking),
        Does::Gathers(&SpawnBlocking),
        Does::Scans(&SpawnBlocking),
        Does::LoadReads(&SpawnBlocking),
        Does::LoadGathers(&SpawnBlocking),
        Does::Writes(&SpawnBlocking),
        Does::Stalls(&stall::Tokio),
        Does::Files(&SpawnBlocking),
        Does::Mixed(&mixed::Tasks::SpawnBlocking),
    ],
)
.hue(6);

/// Open files, with each call in a closure.
#[derive(Clone)]
pub(super) struct Closures(pub(super) Arc<[Arc<File>]>);

impl Handle for Closures {
    async fn one(&self, operation: Operation, mut buffer: Buf) -> io::Result<Buf> {
        let file = self.0[operation.file].clone();
        blocking(move || one(&file, operation, &mut buffer[..operation.len]).map(|()| buffer)).await
    }

    async fn gather(&self, extents: &[(u64, usize)], mut buffer: Buf) -> io::Result<Buf> {
        let (file, extents) = (self.0[0].clone(), extents.to_vec());
        blocking(move || all(&file, &extents, &mut buffer).map(|()| buffer)).await
    }

    async fn whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        let path = path.to_owned();
        blocking(move || fs::read(path)).await
    }
}

impl Drive for SpawnBlocking {
    fn drive(&self, job: &Job<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        on_tokio(&Closures(job.files.as_slice().into()), job, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = Arc::new(job.target.file.try_clone()?);
        let batches: Vec<Box<[Range]>> = job.each_batch().map(|batch| batch.ranges.into()).collect();
        let shares: Vec<Vec<OwnedBatch>> =
            job.each_batch().map(|batch| batch.shares(GATHER_THREADS).map(OwnedBatch::of).collect()).collect();
        // Aligned as the other ways' buffers are.
        let mut memory = BytesMut::zeroed(output.len() + PAGE as usize);
        memory.advance(memory.as_ptr().align_offset(PAGE as usize));
        memory.truncate(output.len());
        memory.fill(0xa5);
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

/// Records of a batch for a closure, which cannot borrow the job.
struct OwnedBatch {
    ranges: Box<[Range]>,
    bytes: usize,
}

impl OwnedBatch {
    fn of(share: Batch<'_>) -> Self {
        Self { ranges: share.ranges.into(), bytes: share.bytes }
    }

    fn read(&self, file: &File, mut part: BytesMut) -> io::Result<BytesMut> {
        let share = Batch { ranges: &self.ranges, bytes: self.bytes };
        share.pieces(&mut part).try_for_each(|(offset, piece)| file.read_exact_at(piece, offset))?;
        Ok(part)
    }
}
