//! Direct I/O on its way to an engine: which may have a transfer, and how a borrowed slice is
//! written.

use super::device::{Alignment, Direct};
use crate::buf::{Buf, Direction, Memory};
use crate::core::policy::{Policy, Route};
use crate::op::{Done, OpenFile, Outcome, Request, Transfer};
use crate::sys::{Errno, WriteFlags};

/// Chooses the route of a transfer, and makes it ready for a ring or libaio. For the pool a thread
/// does that when it runs it. `end` is asked for the end of the file where that decides.
pub(crate) fn route(
    policy: &Policy,
    has_ring: bool,
    file: &OpenFile,
    direct: &Direct,
    transfer: &mut Transfer,
    direction: Direction,
    end: impl FnOnce() -> Option<u64>,
) -> Route {
    // A submission pins the memory's pages, and copies what lies amiss: of much, too long for a
    // poll.
    let route = file.reads.slow_route(policy, transfer.left());
    if route == Route::Pool || direct.is_refused() {
        return Route::Pool;
    }
    // libaio works on the blocks that a file gains, and on those that say where its blocks are,
    // inside the submission.
    let extends = || end().is_none_or(|end| transfer.position() + transfer.left() as u64 > end);
    if !has_ring && (policy.strict || (direction == Direction::Write && extends())) {
        return Route::Pool;
    }
    // Unless a route is forced, a ring must not wait: kernel workers are few, and a device that
    // hangs takes them all.
    let attempts = has_ring && policy.forced.is_none();
    if attempts && !file.rings(direction).allows() {
        return Route::Pool;
    }
    // A failure here is met again, and reported, where the request is run.
    if file.align(direct.alignment(), transfer, direction).is_err() {
        return Route::Pool;
    }
    transfer.attempt = attempts;
    route
}

/// Writes a borrowed slice that does not suit the device, in copies that do. `write` runs one to
/// its end. Returns how much was written, and why no more.
pub(crate) fn write_copies(
    alignment: Alignment,
    slice: &[u8],
    offset: u64,
    flags: WriteFlags,
    mut write: impl FnMut(Request) -> (Outcome, Request),
) -> (usize, Outcome) {
    /// Bytes that are copied, and written, at once.
    const COPIED_BYTES_MAX: u64 = 1 << 20;
    let mut done = 0;
    while done < slice.len() {
        let place = offset + done as u64;
        // Up to the end of a block, so that only the first and the last have edges.
        let stop = alignment.down(place + COPIED_BYTES_MAX);
        // An append in parts would let others between.
        let appends = flags.contains(WriteFlags::APPEND);
        let length = if appends { slice.len() } else { (stop - place) as usize }.min(slice.len() - done);
        let Some(mut copy) = Buf::uncleared(length) else { return (done, Err(Errno::NOMEM)) };
        copy.copy_from_slice(&slice[done..done + length]);
        let (outcome, request) = write(Request::Write(Transfer::new(Memory::Buf(copy), place), flags));
        done += match &request {
            Request::Write(transfer, _) => transfer.done(),
            _ => 0,
        };
        if outcome.is_err() || matches!(request, Request::Write(transfer, _) if transfer.left() > 0) {
            return (done, outcome);
        }
    }
    (done, Ok(Done::Nothing))
}
