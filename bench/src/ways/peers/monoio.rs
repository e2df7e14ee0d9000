//! monoio, with only its io_uring driver.

use std::future::Future;
use std::io;

use crate::measure::work::{Target, Writes};
use monoio::buf::IoBufMut;
use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder};

use super::aligned::Aligned;
use super::one_thread::{OneThread, Runtime, Writing, ring_refused, same_file};
use crate::ways::{Does, Way};

pub(crate) static MONOIO: Way = Way::new(
    "monoio",
    concat!("monoio ", env!("VERSION_MONOIO"), ": one thread, io_uring"),
    &[
        Does::Reads(&OneThread(Monoio)),
        Does::Gathers(&OneThread(Monoio)),
        Does::DirectReads(&OneThread(Monoio)),
        Does::Writes(&OneThread(Monoio)),
    ],
)
.refused(ring_refused);

pub(super) struct Monoio;

impl Runtime for Monoio {
    type File = File;
    type Buffer = Aligned;

    fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T> {
        let entries = (in_flight as u32).next_power_of_two().max(ENTRIES);
        Ok(RuntimeBuilder::<IoUringDriver>::new().with_entries(entries).build()?.block_on(main))
    }

    async fn open_to_read(target: Target<'_>) -> io::Result<File> {
        File::from_std(same_file(target)?)
    }

    fn buffer(len: usize) -> Aligned {
        Aligned::new(len)
    }

    async fn read(file: &File, buffer: Aligned, offset: u64, len: usize) -> io::Result<Aligned> {
        let range = buffer.range(len);
        let (result, slice) = file.read_exact_at(buffer.memory.slice_mut(range.clone()), offset).await;
        result.map(|()| Aligned::returned(slice.into_inner(), range))
    }

    fn bytes(buffer: &Aligned) -> &[u8] {
        buffer.bytes()
    }
}

impl Writing for Monoio {
    async fn open_to_write(job: &Writes<'_>) -> io::Result<File> {
        File::from_std(job.file.try_clone()?)
    }

    async fn write(file: &File, block: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let (result, block) = file.write_all_at(block, offset).await;
        result.map(|()| block)
    }
}

/// A file opened by this runtime.
const ENTRIES: u32 = 1024;
