//! Scratch files: beside the file that is asked about, with its attributes, without a name, and in
//! the state that a case asks for.

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

/// Requests are so far apart that a page which one of them reads is none of another's.
pub(super) const STRIDE: u64 = 4 * PAGE as u64;
/// Of a partial write.
const PART: usize = 100;
/// A page just read may sit in another processor's list, and stays then.
const DROP_ATTEMPTS: u32 = 6;

/// Attributes that decide how a file is written, and can be given to another while it is empty.
const ATTRIBUTES: IFlags = IFlags::NOCOW.union(IFlags::COMPRESSED).union(IFlags::JOURNALING).union(IFlags::SYNC);
/// `FS_DAX_FL` of linux/fs.h.
const DAX: IFlags = IFlags::from_bits_retain(0x0200_0000);

/// Attributes of a file that its twin gets; none where the file system has none.
pub(super) fn attributes(file: &File) -> IFlags {
    let kept = ATTRIBUTES.union(DAX);
    rustix::fs::ioctl_getflags(file).map_or(IFlags::empty(), |flags| flags & kept)
}

/// Their names, as `chattr(1)` has them.
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

/// A new file in `dir` that has no name, or no longer.
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

/// The path by which this process can open a file again that has no name.
pub(super) fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Makes the scratch file of a case, for so many requests.
pub(super) fn make(dir: &Path, attributes: IFlags, case: Case, requests: u32) -> io::Result<Tested> {
    let file = nameless(dir)?;
    if !attributes.is_empty() {
        // Attributes that cannot be given are left out, such as compression beside direct I/O.
        let own = rustix::fs::ioctl_getflags(&file).unwrap_or(IFlags::empty());
        let _ = rustix::fs::ioctl_setflags(&file, own | attributes);
    }
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
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
        Case::ColdPartialWrite => number * STRIDE + 1000,
        _ => number * STRIDE,
    });
    let offsets = offsets.collect();
    let length = if case == Case::ColdPartialWrite { PART } else { PAGE };
    Ok(Tested { direct: if case.is_direct() { Some(direct(&file)?) } else { None }, file, offsets, length })
}

/// The same file past the page cache.
pub(super) fn direct(file: &File) -> io::Result<File> {
    let writes = rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE != OFlags::RDONLY;
    OpenOptions::new().read(true).write(writes).custom_flags(libc::O_DIRECT).open(path_of(file))
}

fn allocate(file: &File, how: FallocateFlags, length: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, how, 0, length + PAGE as u64)?)
}

/// Bytes that no file system makes less of.
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

/// Drops a file's pages: all at once, since a part of a large folio is not dropped. Some may stay;
/// each is looked at before it is asked for.
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

/// The errno of an error of std.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
