//! Ranges of a large file into memory of their own, from tasks of tokio, as engines read columns of
//! a Parquet file: each task takes a range, awaits its bytes, has them looked at and gives them up
//! before it takes the next.
//!
//! All memory is the library's [`Buf`], which is aligned and neither cleared nor touched: ways differ
//! in how bytes come into it. Past the page cache a range's whole blocks are read, and its bytes are
//! a part of them, without a copy; that is a program's own arithmetic, the same for both ways.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nowait::{Buf, Nowait};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::measure::meter::Round;
use crate::measure::work::{Range, Ranges};
use crate::sys::{Mapping, PAGE};
use crate::ways::nowait::Session;
use crate::ways::runtime::{Seen, blocking, run_on_the_clock};
use crate::ways::{Does, RangeWay, Way};

/// A map, copied from on a blocking thread: page faults would keep a worker.
pub(crate) struct Mapped {
    populates: bool,
}

/// `pread` on a blocking thread.
pub(crate) struct Pread {
    direct: bool,
}

/// `tokio::fs::File`, which has a position: one for each task.
pub(crate) struct TokioFs;

pub(crate) struct Library {
    direct: bool,
}

pub(crate) const PREAD: Pread = Pread { direct: false };
pub(crate) const LIBRARY: Library = Library { direct: false };

pub(crate) static MMAP: Way = Way::new(
    "mmap",
    "a map without any advice, copied from in spawn_blocking",
    &[Does::Ranges(&Mapped { populates: false })],
)
.hue(4);

pub(crate) static MMAP_POPULATE: Way = Way::new(
    "mmap-populate",
    "mmap, with MADV_POPULATE_READ of each range before",
    &[Does::Ranges(&Mapped { populates: true })],
)
.hue(3);

pub(crate) static TOKIO_DIRECT: Way = Way::new(
    "tokio-direct",
    "tokio past the page cache: whole blocks around what is wanted",
    &[Does::Ranges(&Pread { direct: true })],
)
.hue(5);

pub(crate) static TOKIO_FS: Way = Way::new(
    "tokio-fs",
    "tokio::fs::File, which has a position: a file, a seek and a read_exact for each task",
    &[
        Does::Ranges(&TokioFs),
        #[cfg(feature = "peers")]
        Does::Reads(&super::peers::tokio_fs::TokioFs),
        #[cfg(feature = "peers")]
        Does::Gathers(&super::peers::tokio_fs::TokioFs),
        #[cfg(feature = "peers")]
        Does::Writes(&super::peers::tokio_fs::TokioFs),
    ],
)
.hue(7);

pub(crate) static NOWAIT_DIRECT: Way = Way::new(
    "nowait-direct",
    "this library past the page cache: whole blocks around what is wanted",
    &[Does::Ranges(&Library { direct: true })],
);

/// Reads one range after the other.
trait Reader: Send + 'static {
    fn read(&mut self, range: Range) -> impl Future<Output = io::Result<Owned>> + Send;
}

/// A range's bytes, in memory of its own.
struct Owned {
    memory: Buf,
    begin: usize,
    len: usize,
}

impl Owned {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.len]
    }
}

/// What is read for a range: the range, or the whole blocks around it.
#[derive(Clone, Copy)]
struct Window {
    offset: u64,
    len: usize,
    begin: usize,
    wanted: usize,
}

impl Window {
    fn of(range: Range, direct: bool) -> Self {
        let wanted = range.len as usize;
        if !direct {
            return Self { offset: range.offset, len: wanted, begin: 0, wanted };
        }
        let offset = range.offset / PAGE * PAGE;
        let end = (range.offset + u64::from(range.len)).next_multiple_of(PAGE);
        Self { offset, len: (end - offset) as usize, begin: (range.offset - offset) as usize, wanted }
    }

    fn memory(self) -> io::Result<Buf> {
        Buf::uncleared(self.len).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// `read`: bytes that are there, fewer than the window's at the end of the file only.
    fn owned(self, memory: Buf, read: usize) -> io::Result<Owned> {
        let Self { begin, wanted: len, .. } = self;
        if read < begin + len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Owned { memory, begin, len }) }
    }
}

/// Runs a task for each reader while the clock runs, all of which share the ranges out.
fn in_tasks<R: Reader>(readers: Vec<R>, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let tasks = readers.into_iter().map(|mut reader| {
        let (next, ranges) = (next.clone(), job.ranges.clone());
        let mut seen = Seen::new(&round.tally);
        async move {
            while let Some(&range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let owned = reader.read(range).await?;
                seen.add(range.offset, owned.bytes(), started);
            }
            io::Result::Ok(seen)
        }
    });
    run_on_the_clock(tasks.collect(), round)
}

impl RangeWay for Mapped {
    fn ranges(&self, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let map = Arc::new(Mapping::new(job.target.file, job.target.size)?);
        let reader = || MapReader { map: map.clone(), populates: self.populates };
        in_tasks((0..job.tasks).map(|_| reader()).collect(), job, round)
    }
}

struct MapReader {
    map: Arc<Mapping>,
    populates: bool,
}

impl Reader for MapReader {
    async fn read(&mut self, range: Range) -> io::Result<Owned> {
        let (map, populates, window) = (self.map.clone(), self.populates, Window::of(range, false));
        blocking(move || {
            if populates {
                map.populate(window.offset..window.offset + window.len as u64)?;
            }
            let mut memory = window.memory()?;
            map.copy(window.offset, &mut memory);
            window.owned(memory, window.len)
        })
        .await
    }
}

impl RangeWay for Pread {
    fn direct(&self) -> bool {
        self.direct
    }

    fn ranges(&self, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let file = Arc::new(match self.direct {
            true => OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(job.target.path)?,
            false => job.target.file.try_clone()?,
        });
        let reader = || PreadReader { file: file.clone(), direct: self.direct };
        in_tasks((0..job.tasks).map(|_| reader()).collect(), job, round)
    }
}

struct PreadReader {
    file: Arc<File>,
    direct: bool,
}

impl Reader for PreadReader {
    async fn read(&mut self, range: Range) -> io::Result<Owned> {
        let (file, window) = (self.file.clone(), Window::of(range, self.direct));
        blocking(move || {
            let mut memory = window.memory()?;
            let mut read = 0;
            // What is left after a short read begins at a block, unless the file ends there.
            while read < window.begin + window.wanted {
                match file.read_at(&mut memory[read..], window.offset + read as u64) {
                    Ok(0) => break,
                    Ok(more) => read += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            window.owned(memory, read)
        })
        .await
    }
}

impl RangeWay for TokioFs {
    fn ranges(&self, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let open = || Ok(tokio::fs::File::from_std(File::open(job.target.path)?));
        let readers = (0..job.tasks).map(|_| open()).collect::<io::Result<Vec<_>>>()?;
        in_tasks(readers, job, round)
    }
}

impl Reader for tokio::fs::File {
    async fn read(&mut self, range: Range) -> io::Result<Owned> {
        let window = Window::of(range, false);
        let mut memory = window.memory()?;
        self.seek(SeekFrom::Start(window.offset)).await?;
        let read = self.read_exact(&mut memory).await?;
        window.owned(memory, read)
    }
}

impl RangeWay for Library {
    fn direct(&self) -> bool {
        self.direct
    }

    fn ranges(&self, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let reader = || LibraryReader { file: session.file.clone(), direct: self.direct };
        in_tasks((0..job.tasks).map(|_| reader()).collect(), job, round)?;
        session.report(round);
        Ok(())
    }
}

struct LibraryReader {
    file: nowait::File,
    direct: bool,
}

impl Reader for LibraryReader {
    async fn read(&mut self, range: Range) -> io::Result<Owned> {
        let window = Window::of(range, self.direct);
        let (read, memory) = self.file.read_at(window.memory()?, window.offset).await?;
        window.owned(memory, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_window_is_whole_blocks_with_the_range_in_it() {
        for (offset, len) in [(0, 1), (1, 4096), (4095, 2), (4096, 4096), (10_000, 300_000)] {
            let range = Range { offset, len };
            let window = Window::of(range, true);
            assert_eq!((window.offset % PAGE, window.len as u64 % PAGE), (0, 0), "{range:?}");
            assert_eq!(window.offset + window.begin as u64, offset, "{range:?}");
            assert!(window.begin < PAGE as usize && window.begin + window.wanted <= window.len, "{range:?}");
            assert!(window.len - window.begin - window.wanted < PAGE as usize, "{range:?}");
            let whole = window.owned(window.memory().unwrap(), window.begin + window.wanted);
            assert_eq!(whole.unwrap().bytes().len(), len as usize);
            assert!(window.owned(window.memory().unwrap(), window.begin + window.wanted - 1).is_err());
        }
    }
}
