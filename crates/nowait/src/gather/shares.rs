//! Two threads copy a large gather of cached ranges: the caller's thread and a pool thread.
//!
//! The caller takes shares from the front, the pool thread from the back. If the pool thread begins
//! late, it finds fewer shares, or none. So the caller waits for at most one share.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use super::cached::FirstPass;
use super::{Extent, Found, Ignore};
use crate::buf::Part;
use crate::engine::local;
use crate::error::ErrorOp;
use crate::file::File;
use crate::op::{Call, Notify, Request, Slot};
use crate::sync::{contained, lock};
use crate::sys::BorrowedFd;
use crate::turn;

/// Shortest gather that two threads copy. (One thread copies it in some 70 µs; a wake-up of the
/// other costs a tenth of that.)
const BYTES_MIN: usize = 384 << 10;
/// Shortest gather that two threads copy while another worker of tokio, and so a processor, is
/// idle.
const BYTES_MIN_IDLE: usize = 128 << 10;
/// Bytes of a share.
const SHARE_BYTES: usize = 32 << 10;
/// Time that the caller spins for the last share before it sleeps: a sleep and a wake-up take
/// longer than the copy of a share.
const SPIN: Duration = Duration::from_micros(15);

/// Returns true if two threads copy a gather of `bytes`: it is large, and many earlier reads of the
/// file were cached.
pub(super) fn may_divide(file: &File, bytes: usize) -> bool {
    let File { open, instance } = file;
    bytes >= BYTES_MIN_IDLE
        && open.direct.is_none()
        && open.handle.descriptor().is_ok()
        && open.reads.trusts(&instance.policy)
        && (bytes >= BYTES_MIN || turn::another_worker_is_idle())
}

/// The shares of a gather.
pub(super) struct Shares {
    work: Arc<Mutex<ShareList>>,
    /// The caller's share, and the numbers of its ranges and bytes that are copied.
    own: Option<(Share, usize, usize)>,
    /// The pool thread's call.
    call: CopyCall,
}

#[derive(Default)]
struct ShareList {
    left: VecDeque<Share>,
    done: Vec<CachedBytes>,
    count: usize,
}

/// Consecutive ranges, with their part of the output.
struct Share {
    file: File,
    ranges: Arc<[Extent]>,
    own: Range<usize>,
    copied: CachedBytes,
}

/// Output of a share; it contains the bytes that were cached.
struct CachedBytes {
    begin: usize,
    output: Part,
    found: Found,
}

/// Call of the pool thread, which may end after the gather.
struct CopyCall(Arc<Slot>);

impl Drop for CopyCall {
    fn drop(&mut self) {
        self.0.detach();
    }
}

impl Share {
    /// Copies the whole share, on a thread that may wait.
    fn copy(&mut self) {
        let CachedBytes { begin, output, found } = &mut self.copied;
        let ranges = &self.ranges[self.own.clone()];
        FirstPass::blocking(&self.file, found, &mut Ignore).run(ranges, self.own.start, output, *begin, || false);
    }

    /// Gives up the share's reference to the file. The gather may have been dropped, and the last
    /// reference is closed on a thread of the file's device.
    fn give_up(self) -> CachedBytes {
        let Share { copied, file: File { open, .. }, .. } = self;
        open.let_go();
        copied
    }
}

/// Records a copied share. Its reference to the file is given up before the gather can end.
fn put(list: &Mutex<ShareList>, share: Share) {
    let copied = share.give_up();
    lock(list).done.push(copied);
}

impl Shares {
    /// Divides `output` if [`may_divide`] is true.
    pub(super) fn divide(file: &File, ranges: &[Extent], output: &mut Part) -> Option<Shares> {
        if !may_divide(file, output.len()) {
            return None;
        }
        let ranges: Arc<[Extent]> = ranges.into();
        let mut list = ShareList::default();
        let (mut first, mut begin) = (0, 0);
        while first < ranges.len() {
            let (mut end, mut bytes) = (first, 0);
            while end < ranges.len() && bytes < SHARE_BYTES {
                bytes += ranges[end].1;
                end += 1;
            }
            let copied = CachedBytes { begin, output: output.split_to(bytes), found: Found::default() };
            list.left.push_back(Share { file: file.clone(), ranges: ranges.clone(), own: first..end, copied });
            (first, begin) = (end, begin + bytes);
        }
        list.count = list.left.len();
        let list = Arc::new(Mutex::new(list));
        let weak = Arc::downgrade(&list);
        let copy = move |_: &Path, _: Option<BorrowedFd<'_>>| {
            copy_from_the_back(&weak);
            Ok(())
        };
        // The call does not count as an operation of the file, for which `File::close` would wait.
        let call = Request::Call(Box::new(Call::new(ErrorOp::Gather, Path::new(""), copy)));
        let call = file.instance.target().submit(call, Notify::Waker(Waker::noop().clone()), None);
        Some(Shares { work: list, own: None, call: CopyCall(call) })
    }

    /// Copies shares until none is left or `ends` returns true. Returns true if none is left.
    pub(super) fn copy(&mut self, mut ends: impl FnMut() -> bool) -> bool {
        loop {
            let next = self.own.take().or_else(|| lock(&self.work).left.pop_front().map(|share| (share, 0, 0)));
            let Some((mut share, count, bytes)) = next else { return true };
            let CachedBytes { begin, output, found } = &mut share.copied;
            let first = share.own.start + count;
            let ranges = &share.ranges[first..share.own.end];
            let mut ignore = Ignore;
            let mut pass = FirstPass::new(&share.file, found, &mut ignore);
            let (more, more_bytes) = pass.run(ranges, first, &mut output[bytes..], *begin + bytes, &mut ends);
            if more < ranges.len() {
                self.own = Some((share, count + more, bytes + more_bytes));
                return false;
            }
            put(&self.work, share);
            if ends() {
                return false;
            }
        }
    }

    /// Copies all shares, for a caller that may wait.
    pub(super) fn copy_all(mut self, output: &mut Part, found: &mut Found) {
        loop {
            let Some(mut share) = lock(&self.work).left.pop_front() else { break };
            share.copy();
            put(&self.work, share);
        }
        local::drive(poll_fn(|context| self.poll(context, output, found)));
    }

    /// Joins the output, and collects the ranges that were not cached, after the pool thread's last
    /// share.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, output: &mut Part, found: &mut Found) -> Poll<()> {
        let is_done = || {
            let list = lock(&self.work);
            list.done.len() == list.count
        };
        let begun = Instant::now();
        while !is_done() && begun.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        if !is_done() {
            let _ = ready!(self.call.0.poll(context));
        }
        let mut done = std::mem::take(&mut lock(&self.work).done);
        done.sort_unstable_by_key(|copied| copied.begin);
        let mut done = done.into_iter();
        if let Some(first) = done.next() {
            let end = std::mem::replace(output, first.output);
            found.absorb(first.found);
            for copied in done {
                output.join(copied.output);
                found.absorb(copied.found);
            }
            output.join(end);
        }
        Poll::Ready(())
    }
}

/// Copies shares on the pool thread, until none is left or the gather has ended.
fn copy_from_the_back(list: &Weak<Mutex<ShareList>>) {
    while let Some(list) = list.upgrade() {
        let next = lock(&list).left.pop_back();
        let is_last = next.is_none();
        if let Some(mut share) = next {
            share.copy();
            put(&list, share);
        }
        contained(|| leave(list));
        if is_last {
            return;
        }
    }
}

/// Drops the pool thread's reference to the list. If the gather was dropped meanwhile, the buffer's
/// destructor runs here.
fn leave(list: Arc<Mutex<ShareList>>) {
    if let Some(list) = Arc::into_inner(list) {
        let list = list.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.left.into_iter().for_each(|share| drop(share.give_up()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::buf::{Buf, Memory};
    use crate::core::instance::Nowait;
    use crate::direct::Directness;
    use crate::op::{Fallback, Handle, Leftovers, OpenFile};

    /// Pools that take leftovers only, and report each.
    struct Pools(Sender<()>);

    impl Fallback for Pools {
        fn take(&self, _: Arc<Slot>) {
            unreachable!("no slot is handed on");
        }

        fn let_go(&self, _: u64, leftovers: Leftovers) {
            self.0.send(()).unwrap();
            drop(leftovers);
        }
    }

    /// Symptom: after a gather was dropped, the pool thread that copied its last share closed the
    /// file, in the pool of operations without a file.
    #[test]
    fn the_last_reference_to_the_file_goes_to_the_pool_of_its_device() {
        let (tell, told) = channel();
        let share = || {
            let handle = Handle::Descriptor(std::fs::File::open("/dev/zero").unwrap().into());
            let pools = Arc::new(Pools(tell.clone()));
            let open = OpenFile::new(handle, Path::new("file").into(), Directness::NotAsked, Arc::default(), pools);
            let file = File { open: Arc::new(open), instance: Nowait::shared().0.clone() };
            let copied =
                CachedBytes { begin: 0, output: Part::of(Memory::Buf(Buf::zeroed(8))), found: Found::default() };
            Share { file, ranges: [(0, 8)].into(), own: 0..1, copied }
        };
        let list = Arc::new(Mutex::new(ShareList::default()));
        put(&list, share());
        assert!(told.try_recv().is_ok());
        lock(&list).left.push_back(share());
        copy_from_the_back(&Arc::downgrade(&list));
        assert!(told.try_recv().is_ok());
        lock(&list).left.push_back(share());
        leave(list);
        assert!(told.try_recv().is_ok());
    }
}
