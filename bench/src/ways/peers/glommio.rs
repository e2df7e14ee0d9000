//! glommio, which allocates a buffer for each read, and does not return written buffers.
//!
//! `glommio`: its `BufferedFile`. `glommio-dma`: its `DmaFile`, past the page cache, with
//! `read_many` for a gather.

use std::future::Future;
use std::io;
use std::rc::Rc;

use crate::measure::work::{Batch, Target, Writes};
use futures_util::StreamExt;
use futures_util::stream;
use glommio::io::{BufferedFile, DmaFile, MergedBufferLimit, OpenOptions, ReadAmplificationLimit, ReadResult};
use glommio::{LocalExecutorBuilder, Placement};

use super::one_thread::{OneThread, Runtime, Writing, expect_random, ring_refused};
use crate::ways::{Does, Way};

pub(crate) static GLOMMIO: Way = Way::new(
    "glommio",
    concat!("glommio ", env!("VERSION_GLOMMIO"), ": one thread, BufferedFile, which allocates what it reads into"),
    &[Does::Reads(&OneThread(Buffered)), Does::Gathers(&OneThread(Buffered)), Does::Writes(&OneThread(Buffered))],
)
.refused(ring_refused);

pub(crate) static GLOMMIO_DMA: Way = Way::new(
    "glommio-dma",
    concat!("glommio ", env!("VERSION_GLOMMIO"), ": one thread, DmaFile past the page cache; read_many"),
    &[Does::Gathers(&OneThread(Dma)), Does::DirectReads(&OneThread(Dma))],
)
.refused(ring_refused);

pub(super) struct Buffered;

pub(super) struct Dma;

fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T> {
    let depth = in_flight.next_power_of_two().max(RING_DEPTH);
    Ok(LocalExecutorBuilder::new(Placement::Unbound).ring_depth(depth).make()?.run(main))
}

/// A file opened by this runtime.
const RING_DEPTH: usize = 128;

impl Runtime for Buffered {
    type File = BufferedFile;
    type Buffer = Option<ReadResult>;

    fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T> {
        run(in_flight, main)
    }

    async fn open_to_read(target: Target<'_>) -> io::Result<BufferedFile> {
        let file = OpenOptions::new().read(true).buffered_open(target.path).await?;
        expect_random(&file)?;
        Ok(file)
    }

    fn buffer(_len: usize) -> Option<ReadResult> {
        None
    }

    async fn read(
        file: &BufferedFile,
        _: Option<ReadResult>,
        offset: u64,
        len: usize,
    ) -> io::Result<Option<ReadResult>> {
        in_full(file.read_at(offset, len).await?, len)
    }

    fn bytes(buffer: &Option<ReadResult>) -> &[u8] {
        buffer.as_deref().unwrap_or_default()
    }
}

impl Writing for Buffered {
    async fn open_to_write(job: &Writes<'_>) -> io::Result<BufferedFile> {
        Ok(OpenOptions::new().write(true).buffered_open(job.path).await?)
    }

    async fn write(file: &BufferedFile, block: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        // The runtime does not return written buffers.
        let written = file.write_at(block.clone(), offset).await?;
        if written == block.len() { Ok(block) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

impl Runtime for Dma {
    type File = Rc<DmaFile>;
    type Buffer = Option<ReadResult>;

    fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T> {
        run(in_flight, main)
    }

    async fn open_to_read(target: Target<'_>) -> io::Result<Rc<DmaFile>> {
        Ok(Rc::new(OpenOptions::new().read(true).dma_open(target.path).await?))
    }

    fn buffer(_len: usize) -> Option<ReadResult> {
        None
    }

    async fn read(
        file: &Rc<DmaFile>,
        _: Option<ReadResult>,
        offset: u64,
        len: usize,
    ) -> io::Result<Option<ReadResult>> {
        in_full(file.read_at(offset, len).await?, len)
    }

    fn bytes(buffer: &Option<ReadResult>) -> &[u8] {
        buffer.as_deref().unwrap_or_default()
    }

    async fn gather(
        file: &Rc<DmaFile>,
        batch: Batch<'_>,
        _: &mut Vec<Option<ReadResult>>,
        output: &mut [u8],
    ) -> io::Result<()> {
        let ranges: Vec<(u64, usize)> = batch.ranges.iter().map(|range| (range.offset, range.len as usize)).collect();
        let (merged, wasted) = (MergedBufferLimit::default(), ReadAmplificationLimit::default());
        let mut reads = file.read_many(stream::iter(ranges), merged, wasted);
        for (_, piece) in batch.pieces(output) {
            let Some(read) = reads.next().await else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            let read = in_full(read?.1, piece.len())?;
            piece.copy_from_slice(&Self::bytes(&read)[..piece.len()]);
        }
        Ok(())
    }
}

fn in_full(read: ReadResult, len: usize) -> io::Result<Option<ReadResult>> {
    if read.len() == len { Ok(Some(read)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
