//! A large gather of cached ranges is copied by two threads: the caller's, and one of the pool.
//!
//! The caller takes shares from the front, the other thread from the back. A thread that begins late
//! finds fewer shares, or none. So the caller waits for one share at most.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::os::fd::BorrowedFd;
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
use crate::turn;

/// Bytes of a gather that two threads copy in any case. (One thread copies them in some 70 µs. To wake
/// the other costs a tenth of that.)
const BYTES_MIN: usize = 384 << 10;
/// The same while another worker of tokio is idle, and so a processor is.
const BYTES_MIN_IDLE: usize = 128 << 10;
/// Bytes of a share.
const SHARE_BYTES: usize = 32 << 10;
/// The wait for the last share begins without sleep: to sleep and to be woken takes longer than to
/// copy a share.
const SPIN: Duration = Duration::from_micros(15);

/// Whether two threads copy a gather of `bytes`: it is large, and reads of the file have hit for
/// long.
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
    /// The share that the caller copies, and the number of its ranges and bytes that are done.
    own: Option<(Share, usize, usize)>,
    /// The other thread's call.
    call: CopyCall,
}

#[derive(Default)]
struct ShareList {
    left: VecDeque<Share>,
    done: Vec<CachedBytes>,
    count: usize,
}

/// Consecutive ranges, and where in the whole output their bytes begin.
struct Share {
    file: File,
    ranges: Arc<[Extent]>,
    own: Range<usize>,
    copied: CachedBytes,
}

/// The bytes of a share, as far as they are cached.
struct CachedBytes {
    begin: usize,
    output: Part,
    found: Found,
}

/// It may end after the gather.
struct CopyCall(Arc<Slot>);

impl Drop for CopyCall {
    fn drop(&mut self) {
        self.0.detach();
    }
}

impl Share {
    /// The whole share, on a thread that may wait.
    fn copy(&mut self) {
        let CachedBytes { begin, output, found } = &mut self.copied;
        let ranges = &self.ranges[self.own.clone()];
        FirstPass::blocking(&self.file, found, &mut Ignore).run(ranges, self.own.start, output, *begin, || false);
    }
}

/// Puts a share back that is copied. Its file is free before the gather may end.
fn put(list: &Mutex<ShareList>, share: Share) {
    let Share { copied, file, ranges, .. } = share;
    drop((file, ranges));
    lock(list).done.push(copied);
}

impl Shares {
    /// Divides `output` if that pays: if it is large, and reads of the file have hit for long.
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
        // Not an operation of the file: `File::close` waits for those.
        let call = Request::Call(Box::new(Call::new(ErrorOp::Gather, Path::new(""), copy)));
        let call = file.instance.target().submit(call, Notify::Waker(Waker::noop().clone()), None);
        Some(Shares { work: list, own: None, call: CopyCall(call) })
    }

    /// Copies shares until none is left, or until `ends`. True if none is left.
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

    /// Copies all of them, for a caller that may wait.
    pub(super) fn copy_all(mut self, output: &mut Part, found: &mut Found) {
        loop {
            let Some(mut share) = lock(&self.work).left.pop_front() else { break };
            share.copy();
            put(&self.work, share);
        }
        local::drive(poll_fn(|context| self.poll(context, output, found)));
    }

    /// Puts the output together, with what was not cached, when the other thread is through.
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

/// The other thread's part. It ends when the gather does.
fn copy_from_the_back(list: &Weak<Mutex<ShareList>>) {
    let next = || {
        let list = list.upgrade()?;
        let share = lock(&list).left.pop_back();
        Some((list, share?))
    };
    while let Some((list, mut share)) = next() {
        share.copy();
        put(&list, share);
        // The buffer's destructor may run here, if the gather was dropped meanwhile.
        contained(|| drop(list));
    }
}
