//! compio, with only its io_uring driver.

use std::future::Future;
use std::io;

use crate::measure::work::{Target, Writes};
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::driver::{DriverType, ProactorBuilder};
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncReadAtExt, AsyncWriteAtExt};
use compio::runtime::RuntimeBuilder;
use nix::libc::O_DIRECT;

use super::aligned::Aligned;
use super::one_thread::{OneThread, Runtime, Writing, expect_random, ring_refused};
use crate::ways::{Does, Way};

pub(crate) static COMPIO: Way = Way::new(
    "compio",
    concat!("compio ", env!("VERSION_COMPIO"), ": one thread, io_uring"),
    &[
        Does::Reads(&OneThread(Compio)),
        Does::Gathers(&OneThread(Compio)),
        Does::DirectReads(&OneThread(Compio)),
        Does::Writes(&OneThread(Compio)),
    ],
)
.refused(ring_refused);

pub(super) struct Compio;

impl Runtime for Compio {
    type File = File;
    type Buffer = Aligned;

    fn run<T>(in_flight: usize, main: impl Future<Output = T>) -> io::Result<T> {
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(DriverType::IoUring).capacity((in_flight as u32).next_power_of_two().max(CAPACITY));
        Ok(RuntimeBuilder::new().with_proactor(proactor).build()?.block_on(main))
    }

    async fn open_to_read(target: Target<'_>) -> io::Result<File> {
        let flags = if target.direct { O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).custom_flags(flags).open(target.path).await?;
        expect_random(&file)?;
        Ok(file)
    }

    fn buffer(len: usize) -> Aligned {
        Aligned::new(len)
    }

    async fn read(file: &File, buffer: Aligned, offset: u64, len: usize) -> io::Result<Aligned> {
        let range = buffer.range(len);
        let BufResult(result, slice) = file.read_exact_at(buffer.memory.slice(range.clone()), offset).await;
        result.map(|()| Aligned::returned(slice.into_inner(), range))
    }

    fn bytes(buffer: &Aligned) -> &[u8] {
        buffer.bytes()
    }
}

impl Writing for Compio {
    async fn open_to_write(job: &Writes<'_>) -> io::Result<File> {
        OpenOptions::new().write(true).open(job.path).await
    }

    async fn write(mut file: &File, block: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let BufResult(result, block) = file.write_all_at(block, offset).await;
        result.map(|()| block)
    }
}

/// A file opened by this runtime.
const CAPACITY: u32 = 1024;
