//! Direct I/O on a thread that waits: requests are made ready for the device here, by what is known
//! of it now.
//!
//! `unsafe` here: writes of a transfer's segments, or of a copy.

use super::device::Direct;
use crate::buf::{BUF_ALIGNMENT, Buf, Direction};
use crate::op::{Done, NextStep, OpenFile, Outcome, Request, Transfer, step};
use crate::sys::{self, Advice, Errno, IoVec, WaitMode, WriteFlags};

/// Runs a request of a file with direct I/O to its end on this thread. `plain` makes the plain
/// calls of a request that suits the device. If it fails with EINVAL, the device needs a larger
/// alignment than it reported. If a request that suits every device fails with EINVAL and the page
/// cache then serves it, the file has no direct I/O; this is remembered.
pub(crate) fn run(
    file: &OpenFile,
    direct: &Direct,
    request: &mut Request,
    mut plain: impl FnMut(&mut Request) -> Outcome,
) -> Outcome {
    let mut gave_up = false;
    loop {
        // Before the alignment, which follows from it: what another request finds meanwhile is met again.
        let was_refused = direct.is_refused();
        let believed = direct.alignment();
        let learns = match request {
            Request::Read(transfer) => {
                file.align(believed, transfer, Direction::Read)?;
                true
            }
            Request::Write(transfer, flags) => {
                let appends = flags.contains(WriteFlags::APPEND);
                if appends || !transfer.is_ready_for(believed) {
                    if flags.contains(WriteFlags::ATOMIC) {
                        // Half of it could be made before the rest is refused.
                        return Err(Errno::INVAL);
                    }
                    return write_edges(file, direct, transfer, *flags);
                }
                file.align(believed, transfer, Direction::Write)?;
                !flags.contains(WriteFlags::ATOMIC)
            }
            Request::ReserveAhead { offset, length } => {
                let reserved = direct.ahead.reserve(file.handle.descriptor()?, *offset, *length);
                return reserved.map(|()| Done::Nothing);
            }
            Request::GiveBack => {
                return direct.ahead.give_back(file.handle.descriptor()?).map(|()| Done::Nothing);
            }
            _ => false,
        };
        // Other requests may have learned since it was made ready, which may have been long ago.
        let suits = match request {
            Request::Read(transfer) | Request::Write(transfer, _) => {
                believed.suits(transfer.position(), transfer.segments())
            }
            _ => true,
        };
        let (is_write, is_durable) = match request {
            Request::Write(_, flags) => (true, flags.contains(WriteFlags::DURABLE)),
            _ => (false, false),
        };
        // Through the page cache it may take the kernel's report of what another lost
        // (`op/outstanding.rs`): one at a time.
        let reports = is_durable && direct.is_refused();
        let beside = (is_write && !reports).then(|| direct.beside());
        let alone = reports.then(|| direct.alone());
        let outcome = plain(request);
        drop((beside, alone));
        // Includes syncs: overlayfs fails every call with EINVAL.
        let may_give_up = learns || matches!(request, Request::Sync { .. } | Request::SyncRange { .. });
        if may_give_up && matches!(outcome, Err(Errno::INVAL)) {
            // EINVAL proves nothing about the device if the kernel cut the write inside a block, at
            // the limit on file sizes (`generic_write_check_limits`, fs/read_write.c).
            match request {
                Request::Write(transfer, flags) if learns && crosses_size_limit(transfer) => {
                    return write_edges(file, direct, transfer, *flags);
                }
                _ => {}
            }
            if learns {
                direct.learn();
            }
            if !suits || direct.alignment() != believed {
                continue;
            }
            if !was_refused {
                gave_up = direct.refuse(file.handle.descriptor()?);
                continue;
            }
        }
        if gave_up && outcome.is_err() {
            // The page cache refused it, too: the request is invalid.
            direct.trust(file.handle.descriptor()?);
        }
        return outcome;
    }
}

fn crosses_size_limit(transfer: &Transfer) -> bool {
    sys::below_size_limit(transfer.position()).is_some_and(|room| room < transfer.left() as u64)
}

/// Bytes that one call writes of memory which does not lie as the device needs it.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// Makes a write that begins or ends inside a block, or at the end of the file wherever that is;
/// see `mod.rs`.
fn write_edges(file: &OpenFile, direct: &Direct, transfer: &mut Transfer, flags: WriteFlags) -> Outcome {
    let fd = file.handle.descriptor()?;
    let cached = direct.cached(fd)?;
    let _turn = direct.alone();
    let appends = flags.contains(WriteFlags::APPEND);
    let mut cached = if appends { file.descriptor_to_append(cached)? } else { cached };
    let asked = transfer.left();
    let (mut edges, mut gave_up) = (Vec::new(), false);
    let mut outcome = loop {
        let was_refused = direct.is_refused();
        let alignment = direct.alignment();
        let block = u64::from(alignment.offset);
        let (position, left) = (transfer.position(), transfer.left());
        // Up to the size limit. The kernel's error for the rest is then the reason.
        let room = sys::below_size_limit(position).and_then(|room| usize::try_from(room).ok());
        let left = room.map_or(left, |room| room.min(left));
        let inside = (position % block) as usize;
        let is_edge = appends || inside != 0 || left < block as usize;
        let length = match is_edge {
            true if appends => left,
            true => left.min(block as usize - inside),
            false => left - left % block as usize,
        };
        let mut segments = transfer.first(length);
        let mut copy;
        if is_edge {
            edges.push((position, length as u64));
        } else if !alignment.suits(position, &segments) {
            let length = length.min(COPIED_BYTES_MAX);
            copy = Buf::uncleared(length).ok_or(Errno::NOMEM)?;
            transfer.copy_to(&mut copy);
            segments = vec![IoVec { iov_base: copy.as_mut_ptr().cast(), iov_len: length }];
        }
        // SAFETY: the segments are the transfer's, which we have for the call, or `copy`'s.
        let result =
            unsafe { sys::write_at(if is_edge { cached } else { fd }, &segments, position, flags, WaitMode::Allowed) };
        if result.is_err_and(|errno| OpenFile::needs_other_appender(errno, flags)) {
            let refused = cached;
            cached = file.descriptor_to_append(refused)?;
            if !sys::is_same(cached, refused) {
                continue;
            }
        }
        if result == Err(Errno::INVAL) && !is_edge {
            // Another request may have learned, or have given up, meanwhile.
            if direct.learn() || direct.alignment() != alignment {
                continue;
            }
            if !was_refused {
                gave_up = direct.refuse(fd);
                continue;
            }
        }
        if let NextStep::Finish(end) = step(transfer, result) {
            break end.map(|()| Done::Nothing);
        }
    };
    if gave_up && outcome.is_err() {
        direct.trust(fd);
    }
    if appends {
        // The place is known by now: no other write of this file is under way.
        let end = sys::size(cached).unwrap_or(0);
        edges = vec![(end.saturating_sub(asked as u64), asked as u64)];
    }
    for (offset, length) in edges {
        // No page is left that would be written back over what others write directly.
        let start = offset - offset % BUF_ALIGNMENT as u64;
        let length = (offset + length).next_multiple_of(BUF_ALIGNMENT as u64) - start;
        if let Err(errno) = sys::sync_range(cached, start, length) {
            // The kernel reports it once, by this descriptor, and not by the file's own.
            file.note_failure(errno);
            outcome = outcome.and(Err(errno));
        }
        let _ = sys::advise(cached, start, length, Advice::DontNeed);
    }
    outcome
}
