//! Writes through the cache.
//!
//! A write goes to the file first, and to the cached pages at its completion. Until then, a read of a
//! cached page may return the old bytes. A write waits for no read, lease or frame.
//!
//! An unpinned page is changed in place. A pinned page is copied to another frame, or dropped if no
//! frame can be taken. If two writes in flight touch the same page, all pages of both are dropped:
//! their completions may be processed in another order than the writes took effect.
//!
//! `unsafe` here: bytes of frames that belong to the write.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, Range};
use std::pin::Pin as Pinned;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use nowait::embed::turn;
use nowait::{BufferError, BufferResult, Error, ErrorKind, ErrorOp, File, Started, WriteBuffer, block_on};

use crate::cache::{current, forked};
use crate::file::{Access, CachedFile};
use crate::frame::Record;
use crate::in_flight::{InFlight, Joined, OwnsInFlight};
use crate::inode::Inode;
use crate::pages::PAGES_MAX;
use crate::shared::{Core, Invalidated, Pin};
use crate::spans::Listed;
use crate::sync::lock;

/// Maximum number of pinned pages that a write skips in its search for a frame.
const PINNED_SKIPPED_MAX: u32 = 64;

/// A write in flight.
struct Writing<B> {
    core: Core,
    inode: Arc<Inode>,
    file: File,
    /// While it exists, the file is not compared at an opening.
    _writer: Option<Arc<()>>,
    listed: Listed,
    in_flight: InFlight<Started<BufferResult<B>>, Mutex<Option<BufferResult<B>>>>,
}

impl<B: WriteBuffer + Deref<Target = [u8]>> Writing<B> {
    /// Lists a write that is about to begin.
    fn new(file: &CachedFile, bytes: Range<u64>) -> Writing<B> {
        Writing {
            core: file.core.clone(),
            inode: file.inode.clone(),
            file: file.file.clone(),
            _writer: file.writer.clone(),
            listed: lock(&file.inode.writes).begin(bytes, file.core.page_shift),
            in_flight: InFlight::new(),
        }
    }

    /// Begins the write. No lock is held.
    fn begin(file: &CachedFile, buffer: B, offset: u64) -> Arc<Writing<B>> {
        let end = offset.saturating_add(buffer.len() as u64);
        let writing = Arc::new(Writing::new(file, offset..end));
        writing.in_flight.begin(file.file.write_all_at(buffer, offset).start());
        writing.serve();
        writing
    }

    /// Polls the write, and completes it when it is done.
    fn serve(self: &Arc<Self>) {
        if let Some(result) = self.in_flight.poll(&Waker::from(self.clone())) {
            self.complete(result);
        }
    }

    fn complete(&self, result: BufferResult<B>) {
        let Range { start, end } = self.listed.span.bytes;
        let (first, last) = (start >> self.core.page_shift, end.saturating_sub(1) >> self.core.page_shift);
        match &result {
            _ if start == end => {}
            Ok(buffer) => {
                let counters = &self.inode.counters;
                counters.writes.fetch_add(1, Ordering::Relaxed);
                counters.written_bytes.fetch_add(end - start, Ordering::Relaxed);
                let mut may_take = true;
                (first..=last).for_each(|page| self.update(page, buffer, &mut may_take));
                if self.listed.span.must_stat_size() {
                    self.refresh_size();
                }
            }
            // Any part may have been written.
            Err(_) => {
                self.core.invalidate(&self.inode, first, last + 1).finish(&self.core);
                self.refresh_size();
            }
        }
        lock(&self.inode.writes).end(&self.listed);
        self.in_flight.end(Mutex::new(Some(result)));
    }

    /// Reads the size with `fstat(2)`. If it has changed, drops all pages from the smaller of the old
    /// and the new size on. If `fstat(2)` fails, the size stays.
    fn refresh_size(&self) {
        let Writing { core, inode, .. } = self;
        let Ok((now, mut fills)) = current(inode, &self.file) else { return };
        let mut invalidated = Invalidated::default();
        let size = inode.size.load(Ordering::Relaxed);
        if size != now.size {
            let first = size.min(now.size) >> core.page_shift;
            invalidated.range(core, inode, &mut fills, first, PAGES_MAX);
            inode.set_size(&mut fills, now.size);
        }
        drop(fills);
        invalidated.finish(core);
    }

    /// Updates or drops a cached page. The last page of the write also sets the size. If the write
    /// begins beyond the old last page, that page is dropped: its cached length is too short.
    fn update(&self, page: u64, buffer: &[u8], may_take: &mut bool) {
        let Writing { core, inode, .. } = self;
        let Range { start, end } = self.listed.span.bytes;
        let offset = page << core.page_shift;
        let from = start.max(offset);
        let until = end.min(offset.saturating_add(core.page_bytes() as u64));
        let part = &buffer[(from - start) as usize..(until - start) as usize];
        let mut invalidated = Invalidated::default();
        let mut fills = lock(&inode.fills);
        // Reads in flight may have read the old bytes.
        invalidated.reads(&mut fills, page, page + 1);
        let may_update = !self.listed.span.must_drop_pages() && page < PAGES_MAX;
        if !may_update || !self.put(page, (from - offset) as usize, part, may_take, &mut invalidated) {
            invalidated.pages(core, inode, &mut lock(&core.policy), page, page + 1);
        }
        let size = inode.size.load(Ordering::Relaxed);
        if until == end && size < end && !self.listed.span.must_stat_size() {
            let (last, first) = (size >> core.page_shift, start >> core.page_shift);
            if last < first {
                invalidated.range(core, inode, &mut fills, last, last + 1);
            }
            inode.set_size(&mut fills, end);
        }
        drop(fills);
        invalidated.finish(core);
    }

    /// Puts bytes into the cached page, or the whole page into the cache. Returns false if the page
    /// is to be dropped. The inode's fills are locked.
    fn put(&self, page: u64, start: usize, part: &[u8], may_take: &mut bool, invalidated: &mut Invalidated) -> bool {
        let Writing { core, inode, .. } = self;
        let mut policy = lock(&core.policy);
        let record = inode.pages.get(page).map(|frame| core.frames.record(frame));
        if let Some(record) = record.filter(|record| record.word.try_claim()) {
            drop(policy);
            // SAFETY: the claim keeps readers and other owners away.
            unsafe { overwrite(record, record.valid(), start, part) };
            record.word.end_claim();
            invalidated.pins.push(Pin::adopt(record));
            return true;
        }
        let old = record.map(|record| {
            record.word.pin_uncounted();
            Pin::adopt(record)
        });
        let size = inode.size.load(Ordering::Relaxed).max(self.listed.span.bytes.end);
        let is_whole = start == 0 && (page << core.page_shift) + part.len() as u64 >= size;
        let is_whole = is_whole || part.len() == core.page_bytes();
        // If reads queue for frames, leave the frames to them.
        let takes = *may_take && (old.is_some() || is_whole) && !core.space.is_wanted();
        let frame = if takes { policy.take(&core.frames, PINNED_SKIPPED_MAX) } else { None };
        drop(policy);
        // After a failed search, the other pages of this write do not search again.
        *may_take &= !takes || frame.is_some();
        let record = frame.map(|frame| (frame, core.frames.record(frame)));
        let is_kept = record.is_some() || old.is_none();
        if let Some((frame, record)) = record {
            let before = old.as_ref().map_or(&[][..], Pin::bytes);
            // SAFETY: the frame is taken, so it belongs to the write until it is published.
            unsafe {
                record.write(0, before);
                overwrite(record, before.len(), start, part);
            }
            let mut policy = lock(&core.policy);
            invalidated.pages(core, inode, &mut policy, page, page + 1);
            let is_doomed = !policy.has_room();
            record.name(inode.number, page, record.valid() as u32);
            record.word.publish(is_doomed, core.space.is_wanted());
            if !is_doomed {
                policy.filled(frame, page, inode);
                inode.pages.set(page, frame);
            }
            invalidated.pins.push(Pin::adopt(record));
        }
        invalidated.pins.extend(old);
        is_kept
    }
}

/// Copies `part` to offset `start` of a frame that contains `valid` bytes. Zeroes a gap between
/// `valid` and `start`: the file was extended.
///
/// # Safety
/// The frame belongs to the caller. The bytes fit in it.
unsafe fn overwrite(record: &Record, valid: usize, start: usize, part: &[u8]) {
    // SAFETY: as the caller promises.
    unsafe {
        record.zero(valid..start);
        record.write(start, part);
    }
    record.set_valid(valid.max(start + part.len()));
}

impl<B> OwnsInFlight for Writing<B> {
    type Operation = Started<BufferResult<B>>;
    type Result = Mutex<Option<BufferResult<B>>>;

    fn in_flight(&self) -> &InFlight<Self::Operation, Self::Result> {
        &self.in_flight
    }

    fn core(&self) -> &Core {
        &self.core
    }
}

impl<B: WriteBuffer + Deref<Target = [u8]>> Wake for Writing<B> {
    fn wake(self: Arc<Self>) {
        self.serve();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.serve();
    }
}

/// Write through the cache; see [`CachedFile::write_all_at`].
#[must_use = "nothing is written until the future is awaited, or `wait` is called"]
pub struct Write<'f, B: WriteBuffer + Deref<Target = [u8]>> {
    file: &'f CachedFile,
    offset: u64,
    state: Stage<B>,
}

enum Stage<B> {
    New(B),
    Writing(Joined<Writing<B>>),
    /// The result, kept for the next poll while the task yields.
    Ready(BufferResult<B>),
    Over,
}

impl<B: WriteBuffer + Deref<Target = [u8]>> Write<'_, B> {
    pub(crate) fn new(file: &CachedFile, buffer: B, offset: u64) -> Write<'_, B> {
        Write { file, offset, state: Stage::New(buffer) }
    }

    /// Blocks until the bytes are written; needs no executor.
    ///
    /// # Errors
    /// See [`CachedFile::write_all_at`].
    pub fn wait(self) -> BufferResult<B> {
        block_on(self)
    }

    /// Returns the reason for which the handle must not write.
    fn refusal(&self) -> Option<Error> {
        if self.file.core.is_forked() {
            return Some(forked(self.file.file()));
        }
        let refused = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(self.file.path());
        let advice = "open it with `Access::Exclusive`, or write to `CachedFile::file` and call `invalidate`";
        (self.file.access != Access::Exclusive).then(|| refused.with_advice(advice))
    }
}

impl<B: WriteBuffer + Deref<Target = [u8]>> Unpin for Write<'_, B> {}

impl<B: WriteBuffer + Deref<Target = [u8]>> Future for Write<'_, B> {
    type Output = BufferResult<B>;

    fn poll(mut self: Pinned<&mut Self>, context: &mut Context<'_>) -> Poll<BufferResult<B>> {
        let this = &mut *self;
        match std::mem::replace(&mut this.state, Stage::Over) {
            Stage::New(buffer) => {
                if let Some(error) = this.refusal() {
                    return Poll::Ready(Err(BufferError::new(error, buffer)));
                }
                let length = buffer.len();
                let mut joined = Joined::new(Writing::begin(this.file, buffer, this.offset));
                if !joined.is_done(context.waker()) {
                    this.state = Stage::Writing(joined);
                    return Poll::Pending;
                }
                turn::copied(length);
                let result = taken(&joined);
                if turn::ends(context) {
                    this.state = Stage::Ready(result);
                    return Poll::Pending;
                }
                Poll::Ready(result)
            }
            Stage::Writing(mut joined) => {
                assert!(!this.file.core.is_forked(), "a write that began before a fork cannot be polled in the child");
                if joined.is_done(context.waker()) {
                    return Poll::Ready(taken(&joined));
                }
                this.state = Stage::Writing(joined);
                Poll::Pending
            }
            Stage::Ready(result) => Poll::Ready(result),
            Stage::Over => panic!("a future was polled after it was ready"),
        }
    }
}

/// Takes the result of a write that is done.
fn taken<B>(joined: &Joined<Writing<B>>) -> BufferResult<B> {
    let result = joined.to.in_flight.result().and_then(|result| lock(result).take());
    result.expect("a write ends with a result, which one future takes")
}

nowait::waits! {
    impl [B: WriteBuffer + Deref<Target = [u8]>] Write<'_, B>;
}

impl<B: WriteBuffer + Deref<Target = [u8]>> fmt::Debug for Write<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").field("path", &self.file.path()).field("offset", &self.offset).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(nowait_cache_loom)))]
mod tests {
    use super::*;
    use crate::PageCache;

    /// A file of this many pages of zeros, read through a cache.
    fn opened(dir: &tempfile::TempDir, length: usize) -> (std::fs::File, CachedFile) {
        let path = dir.path().join("file");
        std::fs::write(&path, vec![0; length]).unwrap();
        let file = nowait::File::open(&path).wait().unwrap();
        let cache = PageCache::builder().page_bytes(4096).capacity_bytes(1 << 20).build().unwrap();
        (std::fs::File::options().write(true).open(&path).unwrap(), cache.open(&file, Access::Exclusive).unwrap())
    }

    fn failure(length: usize) -> BufferResult<Vec<u8>> {
        Err(BufferError::new(Error::new(ErrorOp::Write, ErrorKind::Other), vec![5; length]))
    }

    #[test]
    fn writes_whose_completions_change_places_leave_no_older_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (_, file) = opened(&dir, 3 * 4096);
        let writing = |range| Writing::new(&file, range);
        let cached = |page: u64| file.try_get(page * 4096..page * 4096 + 1).map(|lease| lease[0]);
        // Both change page 1. The second one completes first.
        let (first, second) = (writing(0..8192), writing(4096..12288));
        second.complete(Ok(vec![2; 8192]));
        assert_eq!([0, 1, 2].map(cached), [None, None, None], "which bytes page 1 has is not known");
        first.complete(Ok(vec![1; 8192]));
        assert_eq!([0, 1, 2].map(cached), [None, None, None]);
        // They do not overlap.
        let (first, second) = (writing(0..4096), writing(4096..8192));
        second.complete(Ok(vec![4; 4096]));
        first.complete(Ok(vec![3; 4096]));
        assert_eq!([0, 1, 2].map(cached), [Some(3), Some(4), None]);
        // A write that fails drops its pages.
        writing(100..200).complete(failure(100));
        assert_eq!([0, 1, 2].map(cached), [None, Some(4), None]);
        // The program changes the file beside a write, and invalidates the range.
        let write = writing(4096..8192);
        file.invalidate(5000..5001);
        write.complete(Ok(vec![6; 4096]));
        assert_eq!([0, 1, 2].map(cached), [None, None, None]);
    }

    #[test]
    fn the_size_beside_a_write_is_that_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, file) = opened(&dir, 0);
        // Cut before the completion is noticed.
        let write = Writing::new(&file, 0..8192);
        plain.set_len(10).unwrap();
        assert!(file.revalidate().unwrap());
        write.complete(Ok(vec![1; 8192]));
        assert_eq!((file.size(), file.try_get(0..1).is_none()), (10, true));
        // A write that fails may have extended the file.
        let write = Writing::new(&file, 0..16384);
        plain.set_len(8192).unwrap();
        write.complete(failure(16384));
        assert_eq!((file.size(), file.get(0..8192).wait().unwrap().len()), (8192, 8192));
    }

    #[test]
    fn a_page_that_the_check_refuses_beside_a_write_is_read_again() {
        use std::os::unix::fs::FileExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [[1; 4096], [2; 4096]].concat()).unwrap();
        let plain = std::fs::File::options().write(true).open(&path).unwrap();
        let is_whole = |_: &std::path::Path, _, page: &[u8]| match page.iter().all(|byte| *byte == page[0]) {
            true => Ok(()),
            false => Err("torn".into()),
        };
        let cache = PageCache::builder().page_bytes(4096).read_ahead_bytes_max(0).check(is_whole).build().unwrap();
        let file = cache.open(&nowait::File::open(&path).wait().unwrap(), Access::Exclusive).unwrap();
        let write = Writing::new(&file, 0..4096);
        plain.write_all_at(&[3; 100], 0).unwrap();
        std::thread::scope(|scope| {
            let one = scope.spawn(|| file.get(0..10).wait());
            let both = scope.spawn(|| file.gather(&[0..10, 5000..5010]).wait());
            std::thread::sleep(std::time::Duration::from_millis(20));
            plain.write_all_at(&[3; 4096], 0).unwrap();
            write.complete(Ok(vec![3; 4096]));
            assert_eq!(one.join().unwrap().unwrap()[..], [3; 10]);
            let both = both.join().unwrap().unwrap();
            assert_eq!((&both[0][..], &both[1][..]), (&[3; 10][..], &[2; 10][..]));
        });
        assert_eq!(cache.stats().failures, 0);
        // Damage that no write explains is reported.
        plain.write_all_at(&[4; 100], 4096).unwrap();
        file.invalidate(4096..8192);
        assert_eq!(file.get(5000..5010).wait().unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(cache.stats().failures, 1);
    }

    #[test]
    fn two_writes_that_extend_the_file_leave_no_short_page() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, file) = opened(&dir, 50);
        let (first, second): (Writing<Vec<u8>>, _) =
            (Writing::new(&file, 4096..4196), Writing::new(&file, 20480..20580));
        plain.set_len(20580).unwrap();
        first.update(1, &[1; 100], &mut true);
        assert!(file.try_get(4096..4196).is_some());
        second.complete(Ok(vec![2; 100]));
        assert_eq!(file.get(0..20580).wait().unwrap().len(), 20580);
        assert_eq!(file.size(), 20580);
    }
}
