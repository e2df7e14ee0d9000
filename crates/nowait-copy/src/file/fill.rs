//! Fills a staged file with a source's data, by the first way that works, and verifies it.

use std::borrow::Cow;

use rustix::io::retry_on_intr;

use super::direct::{self, Files};
use super::ends::Ends;
use super::extents::{EXTENT_ALIGNMENT, Extents};
use super::journal::Check;
use super::journal::Journal;
use super::ladder::{self, Choice, Facts};
use super::pass::{Done, Pass, Zeros};
use super::{kernel, plain, verify};
use crate::error::{Operation, Result, words};
use crate::options::Sparse;
use crate::os::data;
use crate::report::Way;
use crate::shared::{Ability, Shared};

/// Size of the blocks of zeros that become holes with `--sparse=always`: the smallest block size of
/// file systems.
const ZEROS_BYTES: usize = 4096;
/// From this size on, the copy looks for holes even if the file has enough blocks: some of them may
/// be allocated but unwritten.
const MAP_BYTES_MIN: u64 = 1 << 20;

/// Size of a source when it was opened.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// Bytes of its blocks on the device; `None` if unknown.
    pub(crate) stored_bytes: Option<u64>,
}

/// Partial copy of an earlier run.
pub(crate) struct Earlier<'a> {
    pub(crate) journal: &'a mut Journal,
    pub(crate) claimed: Vec<Check>,
}

/// How a staged file was filled.
pub(crate) struct Filled {
    pub(crate) way: Way,
    pub(crate) why: Cow<'static, str>,
    pub(crate) bytes: u64,
    /// Bytes that an earlier run had copied, and that were verified.
    pub(crate) resumed_bytes: u64,
    pub(crate) is_verified: bool,
}

/// Shares the source's blocks; if that is refused, returns the reason.
pub(crate) fn clone(shared: &Shared, ends: &Ends<'_>, size: Size) -> Result<std::result::Result<Filled, Choice>> {
    let (Some(source), Some(target)) = (ends.source.fd(), ends.target.fd()) else {
        return Ok(Err((Way::Clone, "an instance's operations do not include cloning".into())));
    };
    if let Err(errno) = data::clone(source, target) {
        if data::is_refused_for_good(errno) {
            shared.learned.refuse(Ability::Clone, (ends.source.device, ends.target.device));
        }
        return Ok(Err((Way::Clone, format!("blocks cannot be shared ({})", words(errno)).into())));
    }
    shared.learned.cloned(ends.target.device, target);
    shared.meter.copied(size.bytes);
    let options = &shared.options;
    let looks_sparse = size.stored_bytes.is_some_and(|stored| stored < size.bytes);
    let extents = match looks_sparse {
        true => Extents::of_file(source, size.bytes).map_err(|errno| ends.source.failure(Operation::Read, errno))?,
        false => Extents::whole(size.bytes),
    };
    if options.verify {
        let block = block(shared, direct::REQUEST_BYTES);
        let checks = verify::of_source(shared, ends, &extents, block)?;
        ends.target.sync()?;
        verify::target(shared, &ends.target, &checks, direct::depth(options.depth, block))?;
    }
    let (bytes, is_verified) = (extents.bytes(), options.verify);
    Ok(Ok(Filled {
        way: Way::Clone,
        why: "the file system shares blocks".into(),
        bytes,
        resumed_bytes: 0,
        is_verified,
    }))
}

/// Copies the data, by the first way that is not refused.
pub(crate) fn fill<'a>(
    shared: &'a Shared,
    ends: &'a Ends<'a>,
    size: Size,
    earlier: Option<Earlier<'a>>,
    mut refused: Vec<Choice>,
) -> Result<Filled> {
    let options = &shared.options;
    if size.bytes > 0 {
        shared.learned.fills();
    }
    let looks_sparse = size.stored_bytes.is_some_and(|stored| stored < size.bytes);
    let zeros = match options.sparse {
        Sparse::Always => Zeros::SkipBlocks(ZEROS_BYTES),
        Sparse::Auto if looks_sparse => Zeros::SkipPieces,
        _ => Zeros::Write,
    };
    let extents = match ends.source.fd() {
        Some(fd) if options.sparse != Sparse::Never && (looks_sparse || size.bytes >= MAP_BYTES_MIN) => {
            Extents::of_file(fd, size.bytes).map_err(|errno| ends.source.failure(Operation::Read, errno))?
        }
        _ => Extents::whole(size.bytes),
    };
    let mut pass = Pass::new(shared, ends, zeros);
    let is_resumed = earlier.is_some();
    let done = match earlier {
        Some(earlier) => go_on(&mut pass, earlier)?,
        None => Vec::new(),
    };
    if !looks_sparse && extents.bytes() < size.bytes {
        // Reserves space for all of the file, so holes of the source become unwritten blocks of the
        // copy.
        let reserved = ends.target.allocate(&(0..size.bytes))?;
        pass.target_end = if reserved { size.bytes } else { 0 };
    }
    let ranges: Vec<_> = done.iter().map(Check::range).collect();
    let left = extents.without(&ranges);
    let resumed_bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let is_seen = pass.checks.is_some() || pass.journal.is_some() || zeros != Zeros::Write;
    let facts = Facts { size: size.bytes, looks_sparse, is_seen, zeros };
    let (way, why) = loop {
        pass.begin(&done);
        if size.bytes == 0 {
            plain::copy_to_end(&mut pass)?;
            let way = if pass.copied_bytes == 0 { Way::Empty } else { Way::Plain };
            break (way, "its size is zero".into());
        }
        let (way, why) = ladder::choose(shared, ends, &facts, &refused);
        match go(&mut pass, way, &left)? {
            Done::All => break (way, why),
            Done::Refused(refusal) => refused.push((way, refusal)),
        }
    };
    let mut end = pass.source_end.unwrap_or(size.bytes);
    if size.bytes > 0 && extents.end() < end {
        // The hole at the end was not read: if the source was truncated meanwhile, there is none.
        end = end.min(ends.source.size()?);
    }
    if end != pass.target_end || is_resumed {
        ends.target.set_len(end)?;
    }
    if options.cache_neutral && way == Way::Direct {
        leave_tails(ends, end)?;
    }
    if let Some(mut checks) = pass.checks.take() {
        checks.sort_by_key(|check| check.offset);
        ends.target.sync()?;
        let depth = direct::depth(options.depth, block(shared, direct::REQUEST_BYTES));
        verify::target(shared, &ends.target, &checks, depth)?;
        if let (true, Some(target)) = (options.cache_neutral, ends.target.fd()) {
            // A file system may serve a direct read through the page cache, as btrfs does if the
            // buffer's pages cannot be faulted in at once.
            data::drop_pages_from(target, 0);
        }
    }
    let why = match resumed_bytes {
        0 => why,
        bytes => format!("{why}; {bytes} bytes came from an earlier run").into(),
    };
    Ok(Filled { way, why, bytes: pass.copied_bytes, resumed_bytes, is_verified: options.verify })
}

/// Copies the data by the given way.
fn go(pass: &mut Pass<'_>, way: Way, extents: &Extents) -> Result<Done> {
    let (shared, ends) = (pass.shared, pass.ends);
    match way {
        Way::KernelCopy => kernel::copy(pass, extents),
        Way::Direct | Way::DirectRead => {
            let writes_direct = way == Way::Direct;
            let Some(files) = open(ends, writes_direct)? else {
                return Ok(Done::Refused("direct I/O is refused".into()));
            };
            if files.writes_direct {
                // Direct writes to reserved space need not wait for each other.
                for extent in extents.iter() {
                    if !ends.target.allocate(extent)? {
                        break;
                    }
                    pass.target_end = pass.target_end.max(extent.end);
                }
            }
            let block = block(shared, direct::REQUEST_BYTES);
            direct::copy(pass, &files, extents, block, direct::depth(shared.options.depth, block))?;
            Ok(Done::All)
        }
        Way::Uncached => {
            let done = plain::copy(pass, extents, block(shared, plain::BLOCK_BYTES), true)?;
            if let Done::Refused(_) = done {
                shared.learned.refuse(Ability::Uncached, (ends.source.device, ends.target.device));
            }
            Ok(done)
        }
        _ => {
            let was_cached = shared.options.cache_neutral && is_cached(ends, extents.end());
            let done = plain::copy(pass, extents, block(shared, plain::BLOCK_BYTES), false)?;
            if shared.options.cache_neutral {
                leave(ends, was_cached)?;
            }
            Ok(done)
        }
    }
}

/// Opens source and target for direct I/O; returns `None` if the requested mode is refused.
fn open(ends: &Ends<'_>, writes_direct: bool) -> Result<Option<Files>> {
    let source = ends.source.direct(false);
    let target = if writes_direct { ends.target.direct(true) } else { None };
    let (reads, writes) = (source.is_some(), target.is_some());
    // One file system, such as tmpfs, may refuse direct I/O; the other one can still bypass the
    // page cache.
    if !reads && !writes {
        return Ok(None);
    }
    let source = match source {
        Some(source) => source,
        None => ends.source.file(Operation::Read)?.clone(),
    };
    let target = match target {
        Some(target) => target,
        None => ends.target.file(Operation::Write)?.clone(),
    };
    Ok(Some(Files { source, target, writes_direct: writes }))
}

/// Drops the pages that direct requests left in the page cache. These are the last page of the
/// target, which the file system zeroed when the file was truncated, and on btrfs pages that it
/// read or wrote through the page cache.
fn leave_tails(ends: &Ends<'_>, end: u64) -> Result<()> {
    let (Some(source), Some(target)) = (ends.source.fd(), ends.target.fd()) else { return Ok(()) };
    let last = end / EXTENT_ALIGNMENT * EXTENT_ALIGNMENT;
    if end > last {
        ends.target.write_back(last, EXTENT_ALIGNMENT)?;
        data::drop_pages_from(source, last);
    }
    data::drop_pages_from(target, 0);
    Ok(())
}

/// Drops a plain copy's pages from the page cache.
fn leave(ends: &Ends<'_>, was_cached: bool) -> Result<()> {
    let (Some(source), Some(target)) = (ends.source.fd(), ends.target.fd()) else { return Ok(()) };
    retry_on_intr(|| rustix::fs::fdatasync(target)).map_err(|errno| ends.target.failure(Operation::Sync, errno))?;
    data::drop_pages_from(target, 0);
    if !was_cached {
        data::drop_pages_from(source, 0);
    }
    Ok(())
}

fn is_cached(ends: &Ends<'_>, size: u64) -> bool {
    ends.source.fd().is_some_and(|fd| data::is_cached(fd, size))
}

/// Reads back the pieces that an earlier run recorded as finished, and returns those that match.
/// Everything else is removed from the file.
fn go_on<'a>(pass: &mut Pass<'a>, Earlier { journal, claimed }: Earlier<'a>) -> Result<Vec<Check>> {
    let (shared, target) = (pass.shared, &pass.ends.target);
    let file = match target.direct(false) {
        Some(file) => file,
        None => target.file(Operation::Journal)?.clone(),
    };
    let mut done = Vec::new();
    let depth = direct::depth(shared.options.depth, direct::REQUEST_BYTES);
    verify::compare(shared, target, &file, &claimed, depth, |check, is_same| {
        if is_same {
            done.push(check);
        }
        true
    })?;
    pass.journal = Some(journal);
    // Holes and zeros of the source are not written, so the target must contain nothing there.
    let ranges: Vec<_> = done.iter().map(Check::range).collect();
    for gap in Extents::whole(target.size()?).without(&ranges).iter() {
        if !target.punch(gap)? {
            target.set_len(0)?;
            done.clear();
            break;
        }
    }
    Ok(done)
}

fn block(shared: &Shared, default: u64) -> u64 {
    shared.options.block_bytes.map_or(default, u64::from)
}
