//! Scratch files beside the probed file, with its attributes, without a name, and in the state that
//! a case requires.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, IFlags, Mode, OFlags};
use rustix::io::Errno;

use super::kernel::{PAGE, page_is_cached};
use super::{Case, Tested};

/// Distance of requests, so that no two of them read the same page.
pub(super) const STRIDE: u64 = 4 * PAGE as u64;
/// Length of a partial write.
pub(super) const PART: usize = 100;
const PART_OFFSET: u64 = 1000;
/// A prime, so that its multiples visit all residues of a modulus that is not a multiple of it.
const SHUFFLE: u64 = 619;
/// A page that was just read may be in another processor's batch, and is then not dropped.
const DROP_ATTEMPTS: u32 = 6;

/// Attributes that affect writes, and that can be set on an empty file.
const ATTRIBUTES: IFlags = IFlags::NOCOW.union(IFlags::COMPRESSED).union(IFlags::JOURNALING).union(IFlags::SYNC);
/// `FS_DAX_FL` of linux/fs.h.
const DAX: IFlags = IFlags::from_bits_retain(0x0200_0000);

/// Returns the attributes of a file for its scratch file; none if the file system has none.
pub(super) fn attributes(file: &File) -> IFlags {
    let kept = ATTRIBUTES.union(DAX);
    rustix::fs::ioctl_getflags(file).map_or(IFlags::empty(), |flags| flags & kept)
}

/// Returns the names of attributes, as in `chattr(1)`.
pub(super) fn attribute_names(flags: IFlags) -> Vec<&'static str> {
    let names = [
        (IFlags::NOCOW, "no copy-on-write"),
        (IFlags::COMPRESSED, "compressed"),
        (IFlags::JOURNALING, "data in the journal"),
        (IFlags::SYNC, "synchronous"),
        (DAX, "DAX"),
    ];
    names.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| name).collect()
}

/// Creates a file in `dir` without a name, or removes its name.
fn nameless(dir: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    if let Ok(file) = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        return Ok(file.into());
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!(".nowait-probe-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Returns the path by which this process can reopen a file without a name.
pub(super) fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Creates a file with these attributes, without read-ahead.
fn empty(dir: &Path, attributes: IFlags) -> io::Result<File> {
    let file = nameless(dir)?;
    if !attributes.is_empty() {
        // Attributes that cannot be set are skipped, such as compression together with direct I/O.
        let own = rustix::fs::ioctl_getflags(&file).unwrap_or(IFlags::empty());
        let _ = rustix::fs::ioctl_setflags(&file, own | attributes);
    }
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

/// Makes the scratch file of a case, for a number of requests.
pub(super) fn make(dir: &Path, attributes: IFlags, case: Case, requests: u32) -> io::Result<Tested> {
    let file = empty(dir, attributes)?;
    let length = u64::from(requests) * STRIDE;
    match case {
        Case::Append | Case::DirectAppend => fill(&file, PAGE as u64)?,
        Case::AppendAllocated => {
            fill(&file, PAGE as u64)?;
            allocate(&file, FallocateFlags::KEEP_SIZE, length)?;
        }
        Case::DirectUnwritten => allocate(&file, FallocateFlags::empty(), length)?,
        _ => fill(&file, length)?,
    }
    file.sync_all()?;
    if case.is_cold() {
        drop_pages(&file, length)?;
    }
    let offsets = (0..u64::from(requests)).map(|number| match case {
        Case::Append | Case::AppendAllocated | Case::DirectAppend => (number + 1) * PAGE as u64,
        Case::ColdPartialWrite => number * STRIDE + PART_OFFSET,
        _ => number * STRIDE,
    });
    let offsets = offsets.collect();
    let length = if case == Case::ColdPartialWrite { PART } else { PAGE };
    Ok(Tested { direct: if case.is_direct() { Some(direct(&file)?) } else { None }, file, offsets, length })
}

/// Makes a scratch file with written contents, for cases in which it does not grow.
pub(super) fn make_data(dir: &Path, attributes: IFlags, length: u64) -> io::Result<File> {
    let file = empty(dir, attributes)?;
    fill(&file, length)?;
    file.sync_all()?;
    Ok(file)
}

/// Returns requests of the given size within a written file of sufficient length. They are a page
/// apart, so that the device cannot merge them.
pub(super) fn within(file: &File, case: Case, bytes: u32, count: u32) -> io::Result<Tested> {
    let stride = (u64::from(bytes).next_multiple_of(PAGE as u64)) + PAGE as u64;
    let first = if case == Case::ColdPartialWrite { PART_OFFSET } else { 0 };
    let offsets = (0..u64::from(count)).map(|number| number * stride + first).collect();
    let direct = case.is_direct().then(|| direct(file)).transpose()?;
    Ok(Tested { file: file.try_clone()?, direct, offsets, length: bytes as usize })
}

/// Drops a scratch file's pages, for cold cases; never those of the probed file.
pub(super) fn cool(file: &File, case: Case, length: u64) -> io::Result<()> {
    if !case.is_cold() {
        return Ok(());
    }
    // Dirty pages are not dropped. Cached pages also make a direct request wait
    // (`kiocb_write_and_wait`, `kiocb_invalidate_pages`, mm/filemap.c).
    file.sync_data()?;
    drop_pages(file, length)
}

/// Makes the scratch file of a case in which it grows, for a number of requests of the given size.
pub(super) fn make_growing(dir: &Path, attributes: IFlags, case: Case, bytes: u32, count: u32) -> io::Result<Tested> {
    let file = empty(dir, attributes)?;
    let (bytes, count, page) = (u64::from(bytes), u64::from(count), PAGE as u64);
    let length = count * bytes;
    if case != Case::DirectUnwritten {
        fill(&file, page)?;
    }
    match case {
        Case::AppendAllocated => allocate(&file, FallocateFlags::KEEP_SIZE, length)?,
        Case::DirectUnwritten => allocate(&file, FallocateFlags::empty(), length)?,
        _ => {}
    }
    file.sync_all()?;
    let offsets = (0..count).map(|number| match case {
        // Consecutive requests are not neighbours, which the device could merge. All are made in
        // the end, since a file of thousands of extents takes seconds to remove (ext4 with
        // `discard`).
        Case::DirectUnwritten => number * SHUFFLE % count * bytes,
        _ => page + number * bytes,
    });
    let offsets = offsets.collect();
    let direct = case.is_direct().then(|| direct(&file)).transpose()?;
    Ok(Tested { file, direct, offsets, length: bytes as usize })
}

/// Opens the same file with direct I/O.
pub(super) fn direct(file: &File) -> io::Result<File> {
    let writes = rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE != OFlags::RDONLY;
    OpenOptions::new().read(true).write(writes).custom_flags(libc::O_DIRECT).open(path_of(file))
}

fn allocate(file: &File, how: FallocateFlags, length: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, how, 0, length + PAGE as u64)?)
}

/// Fills a file with bytes that no file system can compress.
fn fill(file: &File, length: u64) -> io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut chunk = vec![0; 1 << 16];
    let mut offset = 0;
    while offset < length {
        for word in chunk.chunks_exact_mut(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let count = (length - offset).min(chunk.len() as u64);
        file.write_all_at(&chunk[..count as usize], offset)?;
        offset += count;
    }
    Ok(())
}

/// Drops all of a file's pages at once, since part of a large folio is not dropped. Some may stay;
/// each is checked before its request.
pub(super) fn drop_pages(file: &File, length: u64) -> io::Result<()> {
    for attempt in 0..DROP_ATTEMPTS {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        let cached = |offset| page_is_cached(file.as_fd(), offset).unwrap_or(true);
        if !(0..length).step_by(STRIDE as usize).any(cached) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1 << attempt));
    }
    Ok(())
}

/// Returns the errno of an error of std.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    let inside = nowait::Error::inside(error).and_then(nowait::Error::raw_os_error);
    inside.map(Errno::from_raw_os_error).or_else(|| Errno::from_io_error(error)).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_into_allocated_space_fill_it_and_are_no_neighbours_in_turn() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        for count in [96, 768, 2048, 192, 384, 1024, 12, 24, 48, 64, 32] {
            let made = make_growing(dir.path(), IFlags::empty(), Case::DirectUnwritten, PAGE as u32, count);
            // The file system lacks direct I/O or preallocation.
            let Ok(tested) = made else { return eprintln!("skipped: {made:?}", made = made.err()) };
            let near = tested.offsets.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == PAGE as u64);
            assert_eq!(near.count(), 0, "{count}");
            let mut sorted = tested.offsets.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq((0..u64::from(count)).map(|number| number * PAGE as u64)), "{count}");
        }
    }
}
