//! Chooses the way to copy a file, and returns the reason. The ways in order:
//!
//! 1. shared blocks;
//! 2. direct or uncached requests, if the copy must not use the page cache;
//! 3. a copy by the file system or its server;
//! 4. direct requests, if the file is large compared with free memory;
//! 5. direct reads and cached writes, if the file is long and not cached;
//! 6. reads and writes.
//!
//! After a refusal, the next way copies the file. A refusal is remembered for the pair of devices.

use std::borrow::Cow;

use nowait::embed;

use super::ends::Ends;
use super::pass::Zeros;
use crate::options::{Reflink, Sparse};
use crate::os::data;
use crate::report::Way;
use crate::shared::{Ability, Devices, Shared};

/// From this size on, direct requests are cheaper than the page cache.
const DIRECT_BYTES_MIN: u64 = 64 << 10;
/// From this size on, the choice depends on whether the file is cached.
const COLD_BYTES_MIN: u64 = 4 << 20;
/// From this size on, a file may be large compared with free memory.
const LARGE_BYTES_MIN: u64 = 64 << 20;

/// Facts that the choice depends on.
pub(crate) struct Facts {
    pub(crate) size: u64,
    /// True if the file has fewer blocks than its size requires, because of holes or compression.
    pub(crate) looks_sparse: bool,
    /// True if the data must pass through this process: for a checksum, a journal, or the detection
    /// of zeros.
    pub(crate) is_seen: bool,
    pub(crate) zeros: Zeros,
}

/// A way, and the reason for its choice.
pub(crate) type Choice = (Way, Cow<'static, str>);

/// Returns whether to try to share blocks.
pub(crate) fn wants_clone(shared: &Shared, size: u64, devices: Devices) -> bool {
    let options = &shared.options;
    let is_asked = match options.reflink {
        Reflink::Always => true,
        Reflink::Auto => !shared.learned.is_refused(Ability::Clone, devices),
        Reflink::Never => false,
    };
    is_asked && size > 0 && options.sparse == Sparse::Auto
}

/// Chooses among the ways that move data. `refused` contains the ways that were tried, with the
/// reasons of their refusal.
pub(crate) fn choose(shared: &Shared, ends: &Ends<'_>, facts: &Facts, refused: &[Choice]) -> Choice {
    let may = |way: Way| refused.iter().all(|(other, _)| *other != way);
    let because = |why: &'static str| match refused.last() {
        Some((_, refusal)) => format!("{why}; {refusal}").into(),
        None => Cow::Borrowed(why),
    };
    let devices = (ends.source.device, ends.target.device);
    let may_skip_pieces = !matches!(facts.zeros, Zeros::SkipBlocks(_));
    let may_be_direct = may(Way::Direct) && may_skip_pieces;
    if shared.options.cache_neutral {
        if may_be_direct && facts.size >= DIRECT_BYTES_MIN {
            return (Way::Direct, because("to leave the page cache alone"));
        }
        if may(Way::Uncached) && ends.target.fd().is_some() && !shared.learned.is_refused(Ability::Uncached, devices) {
            return (Way::Uncached, because("to leave the page cache alone, in a short file"));
        }
        return (Way::Plain, because("no way here leaves the page cache alone"));
    }
    let is_whole = shared.options.sparse != Sparse::Never || !facts.looks_sparse;
    if may(Way::KernelCopy) && !facts.is_seen && is_whole && kernel_copies(shared, ends, devices) {
        return (Way::KernelCopy, because("the file system, or its server, copies the data itself"));
    }
    if facts.size < COLD_BYTES_MIN || !may_skip_pieces {
        return (Way::Plain, because("short, or searched for zeros"));
    }
    let is_large = || embed::available_bytes().is_some_and(|available| facts.size > available / 2);
    if facts.size >= LARGE_BYTES_MIN && may_be_direct && is_large() {
        return (Way::Direct, because("large against free memory"));
    }
    if may(Way::DirectRead) && !is_cached(ends, facts.size) {
        return (Way::DirectRead, because("not in the page cache"));
    }
    (Way::Plain, because("in the page cache"))
}

fn kernel_copies(shared: &Shared, ends: &Ends<'_>, devices: Devices) -> bool {
    let (Some(source), Some(target)) = (ends.source.fd(), ends.target.fd()) else { return false };
    let learned = &shared.learned;
    !learned.is_refused(Ability::KernelCopy, devices)
        && learned.copies_by_itself(ends.target.device, target)
        && learned.copies_by_itself(ends.source.device, source)
}

fn is_cached(ends: &Ends<'_>, size: u64) -> bool {
    ends.source.fd().is_some_and(|fd| data::is_cached(fd, size))
}
