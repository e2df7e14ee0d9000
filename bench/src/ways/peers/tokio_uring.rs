//! tokio-uring: tokio's current-thread runtime, with a ring whose completions arrive through epoll.

use std::future::Future;
use std::io;

use crate::measure::work::{Target, Writes};
use tokio_uring::buf::BoundedBuf;
use tokio_uring::fs::File;

use super::aligned::Aligned;
use super::one_thread::{OneThread, Runtime, Writing, ring_refused, same_file};
use crate::ways::{Does, Way};

pub(crate) static TOKIO_URING: Way = Way::new(
    "tokio-uring",
    concat!("tokio-uring ", env!("VERSION_TOKIO_URING"), ": one thread, as many loops as the depth"),
    &[
        Does::Reads(&OneThread(TokioUring)),
        Does::Gathers(&OneThread(TokioUring)),
        Does::DirectReads(&OneThread(TokioUring)),
        Does::Writes(&OneThread(TokioUring)),
    ],
)
.refused(ring_refused);

pub(super) struct TokioUring;

impl Runtime for TokioUring {
    type File = File;
    type Buffer = Aligned;

    fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T> {
        let mut builder = tokio_uring::builder();
        builder.entries((in_flight as u32).next_power_of_two().max(ENTRIES));
        Ok(tokio_uring::Runtime::new(&builder)?.block_on(main))
    }

    async fn open_to_read(target: Target<'_>) -> io::Result<File> {
        Ok(File::from_std(same_file(target)?))
    }

    fn buffer(len: usize) -> Aligned {
        Aligned::new(len)
    }

    async fn read(file: &File, buffer: Aligned, offset: u64, len: usize) -> io::Result<Aligned> {
        let range = buffer.range(len);
        let (result, slice) = file.read_exact_at(buffer.memory.slice(range.clone()), offset).await;
        result.map(|()| Aligned::returned(slice.into_inner(), range))
    }

    fn bytes(buffer: &Aligned) -> &[u8] {
        buffer.bytes()
    }
}

impl Writing for TokioUring {
    async fn open_to_write(job: &Writes<'_>) -> io::Result<File> {
        Ok(File::from_std(job.file.try_clone()?))
    }

    async fn write(file: &File, block: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let (result, block) = file.write_all_at(block, offset).await;
        result.map(|()| block)
    }
}

/// A file opened by this runtime.
const ENTRIES: u32 = 256;
