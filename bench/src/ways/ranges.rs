//! Ranges of a large file into memory of their own, from tasks of tokio, as engines read columns of
//! a Parquet file: each task takes a range, awaits its bytes, has them looked at and gives them up
//! before it takes the next.
//!
//! All memory is the library's [`Buf`], which is aligned and neither cleared nor touched: ways differ
//! in how bytes come into it. Past the page cache a range's whole blocks are read, and its bytes are
//! a part of them, without a copy; that is a program's own arithmetic, the same for both ways.

use std::fs::{File, OpenOptions};
use std::io::{self, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nowait::{Buf, Nowait};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::nowait::Session;
use super::runtime::{Seen, blocking, run_on_the_clock};
use super::{Does, RangeWay, Way};
use crate::measure::meter::Round;
use crate::measure::work::{Range, Ranges};
use crate::sys::{Mapping, PAGE};

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Map,
    PopulatedMap,
    /// `pread` in `spawn_blocking`.
    Call,
    TokioFs,
    Library,
}

pub(crate) struct Ranged {
    by: By,
    direct: bool,
}

pub(crate) const CALLS: Ranged = Ranged { by: By::Call, direct: false };
pub(crate) const LIBRARY: Ranged = Ranged { by: By::Library, direct: false };

pub(crate) static MMAP: Way = Way::new(
    "mmap",
    "a map without any advice, copied from in spawn_blocking",
    &[Does::Ranges(&Ranged { by: By::Map, direct: false })],
)
.hue(4);

pub(crate) static MMAP_POPULATE: Way = Way::new(
    "mmap-populate",
    "mmap, with MADV_POPULATE_READ of each range before",
    &[Does::Ranges(&Ranged { by: By::PopulatedMap, direct: false })],
)
.hue(3);

pub(crate) static TOKIO_DIRECT: Way = Way::new(
    "tokio-direct",
    "tokio past the page cache: whole blocks around what is wanted",
    &[Does::Ranges(&Ranged { by: By::Call, direct: true })],
)
.hue(5);

pub(crate) static TOKIO_FS: Way = Way::new(
    "tokio-fs",
    "tokio::fs::File, which has a position: a file, a seek and a read_exact for each task",
    &[
        Does::Ranges(&Ranged { by: By::TokioFs, direct: false }),
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
    &[Does::Ranges(&Ranged { by: By::Library, direct: true })],
);

/// Bytes that are read for a range: the range, or the whole blocks around it.
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

    /// The range's own bytes. `read`: those that are there, fewer than the window's at the end of
    /// the file only.
    fn bytes(self, memory: &Buf, read: usize) -> io::Result<&[u8]> {
        let end = self.begin + self.wanted;
        if read < end { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(&memory[self.begin..end]) }
    }
}

/// The file, as a task has it.
enum Source {
    Map { map: Arc<Mapping>, populates: bool },
    Calls(Arc<File>),
    Position(tokio::fs::File),
    Library(nowait::File),
}

impl Source {
    /// Memory with the window's bytes, and how many these are.
    async fn read(&mut self, window: Window) -> io::Result<(Buf, usize)> {
        match self {
            Self::Map { map, populates } => {
                let (map, populates) = (map.clone(), *populates);
                let copy = move || {
                    if populates {
                        map.populate(window.offset..window.offset + window.len as u64)?;
                    }
                    let mut memory = window.memory()?;
                    map.copy(window.offset, &mut memory);
                    Ok((memory, window.len))
                };
                blocking(copy).await
            }
            Self::Calls(file) => {
                let file = file.clone();
                blocking(move || {
                    let (mut memory, mut read) = (window.memory()?, 0);
                    // What is left after a short read begins at a block, unless the file ends there.
                    while read < window.begin + window.wanted {
                        match file.read_at(&mut memory[read..], window.offset + read as u64) {
                            Ok(0) => break,
                            Ok(more) => read += more,
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Ok((memory, read))
                })
                .await
            }
            Self::Position(file) => {
                let mut memory = window.memory()?;
                file.seek(SeekFrom::Start(window.offset)).await?;
                let read = file.read_exact(&mut memory).await?;
                Ok((memory, read))
            }
            Self::Library(file) => {
                let (read, memory) = file.read_at(window.memory()?, window.offset).await?;
                Ok((memory, read))
            }
        }
    }
}

impl RangeWay for Ranged {
    fn direct(&self) -> bool {
        self.direct
    }

    /// A task takes the next range of all that are left.
    fn ranges(&self, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let (direct, target) = (self.direct, job.target);
        let map = match self.by {
            By::Map | By::PopulatedMap => Some(Arc::new(Mapping::new(target.file, target.size)?)),
            _ => None,
        };
        let file = Arc::new(match direct {
            true => OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(target.path)?,
            false => target.file.try_clone()?,
        });
        let session = (self.by == By::Library).then(|| Session::reading(Nowait::shared(), target)).transpose()?;
        let next = Arc::new(AtomicUsize::new(0));
        let task = |_| {
            let mut source = match (&map, &session) {
                (Some(map), _) => Source::Map { map: map.clone(), populates: self.by == By::PopulatedMap },
                (_, Some(session)) => Source::Library(session.file.clone()),
                _ if self.by == By::TokioFs => Source::Position(tokio::fs::File::from_std(File::open(target.path)?)),
                _ => Source::Calls(file.clone()),
            };
            let (next, ranges, mut seen) = (next.clone(), job.ranges.clone(), Seen::new(&round.tally));
            Ok(async move {
                while let Some(&range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (started, window) = (Instant::now(), Window::of(range, direct));
                    let (memory, read) = source.read(window).await?;
                    seen.add(range.offset, window.bytes(&memory, read)?, started);
                }
                io::Result::Ok(seen)
            })
        };
        let tasks = (0..job.tasks).map(task).collect::<io::Result<Vec<_>>>()?;
        run_on_the_clock(tasks, round)?;
        if let Some(session) = session {
            session.report(round);
        }
        Ok(())
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
            let memory = window.memory().unwrap();
            assert_eq!(window.bytes(&memory, window.begin + window.wanted).unwrap().len(), len as usize);
            assert!(window.bytes(&memory, window.begin + window.wanted - 1).is_err());
        }
    }
}
