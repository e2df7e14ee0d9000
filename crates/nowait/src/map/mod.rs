//! Memory maps of files, whose pages are populated in the background.
//!
//! A map presents bytes of a file as memory. The first access to a page may block for the device.
//! [`Map::populate`] reads the pages beforehand, on pool threads, in a chosen order, and reports
//! each chunk. [`Map::gather`] reads a list of ranges before they are accessed.
//!
//! ```
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("model.bin");
//! # std::fs::write(&path, vec![7; 8 << 20]).unwrap();
//! use nowait::map::Map;
//!
//! let file = nowait::File::open(&path).wait()?;
//! // SAFETY: no process writes to the model or truncates it while it is mapped.
//! let map = unsafe { Map::new(&file, ..)? };
//! // Populates the header first, then the rest in the background.
//! let mut populating = map.populate(..).first([0..4096]).start()?;
//! while let Some(range) = nowait::block_on(populating.next_chunk())? {
//!     println!("bytes {range:?} are in, {} of {}", populating.progress().bytes, populating.progress().of);
//! }
//! assert_eq!(map[5 << 20], 7);
//! # Ok(())
//! # }
//! ```
//!
//! # Hazards of a map
//!
//! * **The file is truncated** below the end of the map. An access beyond its end raises SIGBUS,
//!   which ends the process. Populating and gathering do not raise it: they return
//!   [`ErrorKind::UnexpectedEof`]. [`Map::read_at`] copies bytes out and raises no SIGBUS either.
//! * **A write to the file** changes the bytes of a map, even of a private one (`mmap(2)`,
//!   `MAP_PRIVATE`). The bytes of a Rust slice must not change. Therefore making a map is `unsafe`:
//!   the caller guarantees that the file is not written to.
//! * **A device error** raises SIGBUS when a page is accessed; populating returns it as an error.
//! * **Memory pressure**: the kernel may reclaim populated pages, which are not locked.
//! * **`fork`**: the child has the map, but populating continues only in the parent. The child must
//!   not wait for it.
//!
//! # Threads and cancellation
//!
//! Only `mmap(2)`, `wait` and [`Map::read_at`] run on the caller's thread. Each chunk is a task for
//! the pool ([`Builder::pool_threads_max`](crate::Builder::pool_threads_max)). A map has one task
//! at a time, so that maps share the threads in turn. A [`Map::gather`] is one task.
//!
//! Dropping a [`Populating`] or the map stops populating after the chunk in flight. The memory is
//! then unmapped in the background. `populate` clamps a range to the map; `gather` refuses a range
//! past its end.
//!
//! `unsafe` here: maps as slices.

mod populate;

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::sync::Arc;

use crate::sys::{self, Errno, MemoryAdvice};

pub use self::populate::{Mechanism, Populate, Populated, Populating, Progress, Stopped};
use crate::buf::mapping::{Access, Fault, How, Mapping, Place, page_bytes};
use crate::core::dispatch::Target;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::File;
use crate::op::Request;
use crate::operation::Operation;
use crate::started::Answer;

/// Range of a file as read-only, private memory (`MAP_PRIVATE`).
///
/// Share it in an [`Arc`]. The memory is unmapped when the map is dropped and populating has
/// stopped.
pub struct Map(Arc<SharedMap>);

/// Range of a file as writable memory.
pub struct MapMut(Map);

/// The state that a map shares with its populating.
struct SharedMap {
    mapping: Arc<Mapping>,
    file: File,
    place: Place,
}

/// Advice to the kernel about how page faults load the pages of a map; see [`Map::advise`]
/// (`madvise(2)`).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// For no particular pattern of access: a page fault reads a few pages around.
    Normal,
    /// For random access: a page fault reads one page, and none around it.
    Random,
    /// For sequential access: a page fault reads far ahead.
    Sequential,
    /// In huge pages, where the file system and the kernel support them (`MADV_HUGEPAGE`).
    HugePages,
}

impl Map {
    /// Maps `range` of the file, which need not begin or end at a page.
    ///
    /// An empty range, such as all of an empty file, makes an empty map.
    ///
    /// # Safety
    /// While a slice of the map exists, its bytes must not change. No process may write to the
    /// range of the file, directly or through another map. Truncating the file is memory-safe, but
    /// may end the process; see [the module's text](self).
    ///
    /// # Errors
    /// * [`ErrorKind::UnexpectedEof`] for a range past the end of the file;
    /// * [`ErrorKind::Unsupported`] if the file or its file system has no maps, and on a simulator;
    /// * [`ErrorKind::OutOfMemory`] if the address space is exhausted (`ulimit -v`,
    ///   `vm.max_map_count`);
    /// * [`ErrorKind::PermissionDenied`] for a file that was not opened for reading;
    /// * [`ErrorKind::Closed`] after `close`.
    pub unsafe fn new(file: &File, range: impl RangeBounds<u64>) -> Result<Map> {
        map(file, range, Access::Read)
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.0.file
    }

    /// Offset in the file of the map's first byte.
    pub fn offset(&self) -> u64 {
        self.0.place.offset()
    }

    /// Reads the current contents of the file at offset `at` of the map, by a plain read. The read
    /// raises no SIGBUS, and blocks for the device if necessary. Returns the number of bytes, fewer
    /// where the file or the map ends.
    ///
    /// # Errors
    /// As [`File::read_into`].
    pub fn read_at(&self, buffer: &mut [u8], at: usize) -> Result<usize> {
        let at = at.min(self.0.place.length);
        let n = buffer.len().min(self.0.place.length - at);
        self.0.file.read_into(&mut buffer[..n], self.offset() + at as u64)
    }

    /// Populates pages of the map in the background; see [`Populate`].
    ///
    /// ```
    /// # fn main() -> nowait::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index");
    /// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    /// # let file = nowait::File::open(&path).wait()?;
    /// # // SAFETY: no other process or thread uses the file.
    /// # let map = unsafe { nowait::map::Map::new(&file, ..)? };
    /// let populated = map.populate(..).wait()?;
    /// assert_eq!((populated.bytes, populated.stopped), (1 << 20, None));
    /// # Ok(())
    /// # }
    /// ```
    pub fn populate(&self, range: impl RangeBounds<usize>) -> Populate<'_> {
        Populate::new(&self.0, self.0.clip(range))
    }

    /// Populates only these ranges, for example rows that will be accessed next. The kernel reads
    /// more than 100 ranges ahead of the current one. Ranges may be in any order, and may overlap.
    /// A cached range costs almost nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a range past the end of the map; else as [`Populating`]'s.
    pub fn gather(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> Operation<'_, Result<()>> {
        let map = &*self.0;
        let mut beyond = None;
        let mut pages: Vec<Range<usize>> = ranges
            .into_iter()
            .inspect(|range| {
                if range.end > map.place.length && range.start < range.end {
                    beyond.get_or_insert(range.clone());
                }
            })
            .filter(|range| range.start < range.end && range.end <= map.place.length)
            .map(|range| map.pages(range))
            .collect();
        merge(&mut pages);
        let checked = if beyond.is_some() { Err(Errno::INVAL) } else { Ok(()) };
        let fault = Fault {
            ranges: pages,
            place: map.place,
            how: How::Populate,
            scattered: true,
            begin: None,
            survey: false,
            beyond,
        };
        let request = Request::Fault { mapping: map.mapping.clone(), fault };
        Operation::checked(map.file.target(), checked, request, gathered)
    }

    /// Advises the kernel how to load pages of the range on page faults. Advice changes no bytes.
    ///
    /// # Errors
    /// Those of `madvise(2)`, such as [`ErrorKind::InvalidInput`] for advice that this kernel does
    /// not support.
    pub fn advise(&self, range: impl RangeBounds<usize>, paging: Paging) -> Result<()> {
        let advice = match paging {
            Paging::Normal => MemoryAdvice::Normal,
            Paging::Random => MemoryAdvice::Random,
            Paging::Sequential => MemoryAdvice::Sequential,
            Paging::HugePages => MemoryAdvice::HugePages,
        };
        let range = self.0.clip(range);
        let done = self.0.mapping.advise(&self.0.pages(range.clone()), advice);
        done.map_err(|errno| self.0.error(ErrorOp::Advise, errno, &range))
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the caller of `new` vouched that the bytes do not change during this borrow.
        let bytes = unsafe { self.0.mapping.bytes() };
        &bytes[self.0.place.lead..]
    }
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedMap { file, place: Place { length, .. }, .. } = &*self.0;
        f.debug_struct("Map").field("file", file).field("offset", &self.offset()).field("length", length).finish()
    }
}

impl MapMut {
    /// Maps a range of the file; writes stay in this map and are dropped with it (`MAP_PRIVATE`).
    ///
    /// # Safety
    /// As [`Map::new`].
    ///
    /// # Errors
    /// As [`Map::new`].
    pub unsafe fn private(file: &File, range: impl RangeBounds<u64>) -> Result<MapMut> {
        map(file, range, Access::Private).map(MapMut)
    }

    /// Maps a range of the file; the kernel writes changes back to the file in the background
    /// (`MAP_SHARED`). They are durable after a later [`File::sync_data`]. If the disk is full or
    /// fails, the first write to a page raises SIGBUS: allocate the file's space before.
    ///
    /// # Safety
    /// As [`Map::new`]. In addition, no other code reads the bytes while this map writes to them.
    ///
    /// # Errors
    /// As [`Map::new`]; [`ErrorKind::PermissionDenied`] also for a file that was not opened for
    /// writing.
    pub unsafe fn shared(file: &File, range: impl RangeBounds<u64>) -> Result<MapMut> {
        map(file, range, Access::Shared).map(MapMut)
    }

    /// The file.
    pub fn file(&self) -> &File {
        self.0.file()
    }

    /// Offset in the file of the map's first byte.
    pub fn offset(&self) -> u64 {
        self.0.offset()
    }

    /// Populates pages for reading, as [`Map::populate`]. The first write to a page still costs a
    /// page fault.
    pub fn populate(&self, range: impl RangeBounds<usize>) -> Populate<'_> {
        self.0.populate(range)
    }

    /// As [`Map::gather`].
    ///
    /// # Errors
    /// As [`Map::gather`].
    pub fn gather(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> Operation<'_, Result<()>> {
        self.0.gather(ranges)
    }

    /// As [`Map::advise`].
    ///
    /// # Errors
    /// As [`Map::advise`].
    pub fn advise(&self, range: impl RangeBounds<usize>, paging: Paging) -> Result<()> {
        self.0.advise(range, paging)
    }
}

impl Deref for MapMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for MapMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let inner = &*self.0.0;
        // SAFETY: mapped writable; `&mut self` excludes other slices of this map, and its maker
        // vouched for all others. Populating has the kernel bring pages in, which changes no byte.
        let bytes = unsafe { inner.mapping.bytes_mut() };
        &mut bytes[inner.place.lead..]
    }
}

impl fmt::Debug for MapMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn map(file: &File, range: impl RangeBounds<u64>, access: Access) -> Result<Map> {
    let error = |errno| file.open.error(ErrorOp::Map, errno);
    let size = file.size().wait().map_err(|failed| match failed.raw_os_error() {
        Some(errno) => error(Errno::from_raw_os_error(errno)),
        None => failed,
    })?;
    let (start, end) = bounds(range);
    // A file in /proc may report a size of zero whatever it contains, and return nothing to a short
    // read.
    if size == 0 && end != Some(start) && file.read_into(&mut [0; 4096], 0).is_ok_and(|n| n > 0) {
        let error = Error::new(ErrorOp::Map, ErrorKind::Unsupported).at_shared(&file.open.path);
        return Err(error.with_advice("the file reports a size of zero, but has contents; read it instead"));
    }
    let end = end.unwrap_or(size.max(start));
    let Some(length) = end.checked_sub(start) else {
        return Err(error(Errno::INVAL).with_detail(format!("the range ends at {end}, before its start at {start}")));
    };
    if end > size {
        let error =
            Error::new(ErrorOp::Map, ErrorKind::UnexpectedEof).at_shared(&file.open.path).with_range(start, length);
        return Err(error.with_detail(format!("the file has {size} bytes")));
    }
    let lead = (start % page_bytes() as u64) as usize;
    let file_offset = start - lead as u64;
    let failed = |errno: Errno| {
        let error = error(errno).with_range(start, length);
        match errno {
            Errno::NODEV => error
                .of_kind(ErrorKind::Unsupported)
                .with_detail("the file system does not support memory maps; read the file instead"),
            Errno::NOMEM | Errno::OVERFLOW => error.of_kind(ErrorKind::OutOfMemory).with_advice(
                "not enough address space: map a smaller range, or raise the limit (ulimit -v, vm.max_map_count)",
            ),
            Errno::ACCESS => error.with_advice("open the file for reading; a shared map also needs writing"),
            _ => error,
        }
    };
    let descriptor = file.open.handle.descriptor().map_err(|_| error(Errno::OPNOTSUPP))?;
    let length = usize::try_from(length).map_err(|_| failed(Errno::OVERFLOW))?;
    let mapped = match length {
        0 => 0,
        // No slice is longer.
        _ => {
            lead.checked_add(length).filter(|all| *all <= isize::MAX as usize).ok_or_else(|| failed(Errno::OVERFLOW))?
        }
    };
    let mapping = Mapping::new(descriptor, file_offset, mapped, access).map_err(failed)?;
    let lead = if length == 0 { 0 } else { lead };
    Ok(Map(Arc::new(SharedMap {
        mapping: Arc::new(mapping),
        file: file.clone(),
        place: Place { file_offset, lead, length },
    })))
}

/// Where a range begins and ends; the end may be open.
fn bounds<T: Copy + TryInto<u64>>(range: impl RangeBounds<T>) -> (u64, Option<u64>) {
    let number = |bound: &T| (*bound).try_into().unwrap_or(u64::MAX);
    let start = match range.start_bound() {
        Bound::Included(start) => number(start),
        Bound::Excluded(before) => number(before).saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => Some(number(last).saturating_add(1)),
        Bound::Excluded(end) => Some(number(end)),
        Bound::Unbounded => None,
    };
    (start, end)
}

impl SharedMap {
    /// Bounds as a range of the map, no longer than it is.
    fn clip(&self, range: impl RangeBounds<usize>) -> Range<usize> {
        let (start, end) = bounds(range);
        let end = end.map_or(self.place.length, |end| end.min(self.place.length as u64) as usize);
        start.min(end as u64) as usize..end
    }

    /// Whole pages of the mapping around a range of the map; where it ends, less.
    fn pages(&self, range: Range<usize>) -> Range<usize> {
        let page = page_bytes();
        let end = (range.end.saturating_add(self.place.lead)).div_ceil(page).saturating_mul(page);
        (range.start + self.place.lead) / page * page..end.min(self.mapping.length())
    }

    fn error(&self, operation: ErrorOp, errno: Errno, range: &Range<usize>) -> Error {
        place_error(self.place, self.file.target(), operation, errno, range)
    }

    fn not_populated(&self, errno: Errno, range: &Range<usize>) -> Error {
        not_populated(self.place, self.file.target(), errno, range)
    }
}

/// An error about a range of a map, in terms of the file.
fn place_error(place: Place, on: Target<'_>, operation: ErrorOp, errno: Errno, range: &Range<usize>) -> Error {
    on.open().error(operation, errno).with_range(place.offset().saturating_add(range.start as u64), range.len() as u64)
}

/// Why pages could not be brought in; in terms of the file.
fn not_populated(place: Place, on: Target<'_>, errno: Errno, range: &Range<usize>) -> Error {
    let error = place_error(place, on, ErrorOp::Populate, errno, range);
    let end = place.offset() + range.end as u64;
    // madvise(2): EFAULT where a touch would raise SIGBUS; EHWPOISON where memory is broken. The size
    // that the kernel knows is the one by which it refused.
    match (errno, on.known_size()) {
        (Errno::FAULT, Some(size)) if size < end => error
            .of_kind(ErrorKind::UnexpectedEof)
            .with_advice(format!("the file was shortened to {size} bytes; map it again")),
        (errno, _) if errno == Errno::FAULT || sys::is_memory_broken(errno) => {
            error.of_kind(ErrorKind::Io).with_detail("access to these bytes would raise SIGBUS")
        }
        _ => error,
    }
}

/// Sorts ranges, and makes one of those that touch or overlap.
fn merge(ranges: &mut Vec<Range<usize>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, one| {
        let touches = next.start <= one.end;
        if touches {
            one.end = one.end.max(next.end);
        }
        touches
    });
}

/// Concludes a [`Map::gather`].
fn gathered(Answer { on, outcome, request }: Answer<'_>) -> Result<()> {
    let (Err(errno), Request::Fault { fault, .. }) = (outcome, request) else { return Ok(()) };
    let place = fault.place;
    match &fault.beyond {
        Some(beyond) => {
            let error = place_error(place, on, ErrorOp::Populate, errno, beyond);
            Err(error.with_advice(format!("the map has {} bytes; check the ranges", place.length)))
        }
        None => Err(not_populated(place, on, errno, &(0..place.length))),
    }
}
