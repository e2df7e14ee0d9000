//! Copies by direct requests, several in flight. They bypass the page cache for both files, or for
//! the source only.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use nowait::{Buf, BufferResult, File, Moved, Started};
use rustix::io::Errno;

use super::extents::{EXTENT_ALIGNMENT, Extents};
use super::pass::{Pass, Taken};
use crate::error::{Failure, Operation, Result};

/// Bytes of a request. Half the size is slower on most devices; twice the size is not faster.
pub(crate) const REQUEST_BYTES: u64 = 1 << 20;

/// Bytes in flight in each direction, for all files that use this way at a time, unless the caller
/// sets a depth. Each file may have at least two requests in flight.
const IN_FLIGHT_BYTES: u64 = 16 << 20;

const PAGE_BYTES: usize = 4096;

/// Requests in flight in each direction.
pub(crate) fn depth(asked: Option<u32>, block: u64) -> usize {
    match asked {
        Some(depth) => depth.max(1) as usize,
        None => (IN_FLIGHT_BYTES / block.max(1)).clamp(2, 32) as usize,
    }
}

/// Source and target, opened for this way.
pub(crate) struct Files {
    pub(crate) source: File,
    pub(crate) target: File,
    /// True if the target's writes are direct, too: they consist of whole blocks, also at the end.
    pub(crate) writes_direct: bool,
}

/// Copies all extents with up to `depth` reads and as many writes in flight.
pub(crate) fn copy(pass: &mut Pass<'_>, files: &Files, extents: &Extents, block: u64, depth: usize) -> Result<()> {
    let block = pass.shared.meter.block(block);
    let shared = pass.shared;
    let running = shared.begin_direct();
    let depth = match shared.options.depth {
        _ if shared.meter.limits_rate() => 1,
        Some(_) => depth,
        None => (depth / running.count).max(2),
    };
    // On this thread's own ring.
    nowait::block_on(async {
        let mut flow = Flow { pass, files, reads: VecDeque::new(), writes: VecDeque::new(), depth };
        let copied = flow.run(extents.pieces(block)).await;
        if copied.is_err() {
            flow.drain().await;
        }
        copied
    })
}

struct Read {
    piece: Range<u64>,
    read: Started<Moved<Buf>>,
}

struct Write {
    piece: Range<u64>,
    taken: Taken,
    write: Started<BufferResult<Buf>>,
}

struct Flow<'f, 'a> {
    pass: &'f mut Pass<'a>,
    files: &'f Files,
    reads: VecDeque<Read>,
    writes: VecDeque<Write>,
    depth: usize,
}

impl Flow<'_, '_> {
    async fn run(&mut self, mut pieces: impl Iterator<Item = Range<u64>>) -> Result<()> {
        loop {
            while self.pass.source_end.is_none() && self.reads.len() < self.depth {
                let Some(piece) = pieces.next() else { break };
                self.read(piece)?;
            }
            let Some(Read { piece, read }) = self.reads.pop_front() else { break };
            let (n, buffer) = read.await.map_err(|failed| self.read_failed(&failed.error, piece.start))?;
            if self.pass.source_end.is_some_and(|end| piece.start >= end) {
                continue;
            }
            // A source that grew may have returned more.
            let n = (n as u64).min(piece.end - piece.start);
            if n < piece.end - piece.start {
                self.pass.ended_at(piece.start + n);
            }
            if n > 0 {
                self.write(piece.start..piece.start + n, buffer).await?;
            }
            if self.pass.shared.meter.limits_rate() {
                // Operations in this thread's ring progress while it waits here, but not while it
                // sleeps for the rate limit.
                self.finish().await?;
            } else {
                self.reap().await?;
            }
        }
        self.finish().await
    }

    /// Waits for the writes in flight.
    async fn finish(&mut self) -> Result<()> {
        while let Some(write) = self.writes.pop_front() {
            self.written(write).await?;
        }
        Ok(())
    }

    fn read(&mut self, piece: Range<u64>) -> Result<()> {
        self.pass.admit(piece.end - piece.start)?;
        let length = (piece.end - piece.start).next_multiple_of(EXTENT_ALIGNMENT);
        let buffer = usize::try_from(length).ok().and_then(Buf::uncleared);
        let mut buffer = buffer.ok_or_else(|| self.pass.ends.source.failure(Operation::Read, Errno::NOMEM))?;
        // Touches each page: into memory without pages, btrfs reads through the page cache (Linux
        // 6.18).
        buffer.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 0);
        let read = self.files.source.read_at(buffer, piece.start).submit();
        self.reads.push_back(Read { piece, read });
        Ok(())
    }

    async fn write(&mut self, piece: Range<u64>, mut buffer: Buf) -> Result<()> {
        let n = (piece.end - piece.start) as usize;
        let taken = self.pass.take(&buffer[..n]);
        if taken.is_zero() {
            return self.pass.wrote(&piece, taken, false);
        }
        if self.files.writes_direct {
            // The last block is written completely, and the file truncated to its length
            // afterwards.
            let whole = n.next_multiple_of(EXTENT_ALIGNMENT as usize);
            buffer[n..whole].fill(0);
            buffer.truncate(whole);
            self.pass.target_end = self.pass.target_end.max(piece.start + whole as u64);
        } else {
            buffer.truncate(n);
        }
        while self.writes.len() >= self.depth {
            let Some(first) = self.writes.pop_front() else { break };
            self.written(first).await?;
        }
        let write = self.files.target.write_all_at(buffer, piece.start);
        let write = if self.files.writes_direct { write.submit() } else { write.start() };
        self.writes.push_back(Write { piece, taken, write });
        Ok(())
    }

    async fn written(&mut self, Write { piece, taken, write }: Write) -> Result<()> {
        let written = write.await;
        self.note(&piece, taken, written)
    }

    /// Records completed writes without waiting for others, to update progress and journal early.
    async fn reap(&mut self) -> Result<()> {
        std::future::poll_fn(|context| {
            while let Some(first) = self.writes.front_mut() {
                let Poll::Ready(written) = Pin::new(&mut first.write).poll(context) else { break };
                if let Some(Write { piece, taken, .. }) = self.writes.pop_front() {
                    self.note(&piece, taken, written)?;
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    fn note(&mut self, piece: &Range<u64>, taken: Taken, written: BufferResult<Buf>) -> Result<()> {
        written.map_err(|failed| self.write_failed(&failed.error, piece.start))?;
        self.pass.wrote(piece, taken, !self.files.writes_direct)
    }

    /// Waits for requests in flight after a failure: the target is then removed, or kept for a
    /// later run.
    async fn drain(&mut self) {
        self.reads.clear();
        while let Some(Write { piece, taken, write }) = self.writes.pop_front() {
            if write.await.is_ok() {
                // Completed writes still go to the journal. Only the first failure is reported.
                let _ = self.pass.wrote(&piece, taken, false);
            }
        }
    }

    fn read_failed(&self, error: &nowait::Error, offset: u64) -> Failure {
        Failure::from_nowait(Operation::Read, self.pass.ends.source.path, error).at(offset)
    }

    fn write_failed(&self, error: &nowait::Error, offset: u64) -> Failure {
        Failure::from_nowait(Operation::Write, self.pass.ends.target.path, error).at(offset)
    }
}
