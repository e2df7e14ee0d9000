//! Copies a file to another name, as `std::fs::copy` does, with two differences. A signal that
//! interrupts a call does not end the copy, and a copy of a file to itself does not empty the file.

use std::io;
use std::path::Path;

use rustix::fs::FileType;

use super::{AsFd, CWD, Errno, Mode, OFlags, OwnedFd, copy_range, open, retry};
use crate::sys::CopyOutcome;

/// Most bytes of one `copy_file_range(2)`.
const RANGE_BYTES_MAX: usize = 1 << 30;
/// Bytes of one read and write, for files that the kernel does not copy.
const PIECE_BYTES: usize = 256 << 10;

/// Copies contents and permissions of the regular file `from`. Blocks.
pub(crate) fn copy_file(from: &Path, to: &Path) -> io::Result<CopyOutcome> {
    const NO_FILE: CopyOutcome = CopyOutcome::Refused("the source is not a regular file; name a regular file");
    let source = match open(CWD, from, OFlags::RDONLY, Mode::empty()) {
        Err(Errno::SPIPE | Errno::NXIO) => return Ok(NO_FILE),
        opened => opened?,
    };
    let stat = retry(|| rustix::fs::fstat(&source))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(NO_FILE);
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    // Without `O_TRUNC`: source and target may be the same file.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    let target = retry(|| rustix::fs::open(to, flags, mode))?;
    let old = retry(|| rustix::fs::fstat(&target))?;
    // The msdosfs of macOS gives all empty files one number. If they are one file, it loses nothing.
    let may_differ = cfg!(target_os = "macos") && stat.st_size == 0 && old.st_size == 0;
    if !may_differ && (old.st_dev, old.st_ino) == (stat.st_dev, stat.st_ino) {
        return Ok(CopyOutcome::Refused("source and target are one file, which is unchanged; name another target"));
    }
    if FileType::from_raw_mode(old.st_mode) == FileType::RegularFile {
        retry(|| rustix::fs::ftruncate(&target, 0))?;
        // An existing file has another mode, and the umask has reduced that of a new file.
        retry(|| rustix::fs::fchmod(&target, mode))?;
    }
    Ok(CopyOutcome::Bytes(contents(&source, &target)?))
}

/// Copies from the start of `source` to its end; returns the number of bytes.
fn contents(source: &OwnedFd, target: &OwnedFd) -> Result<u64, Errno> {
    let mut copied = 0;
    loop {
        match retry(|| copy_range(source.as_fd(), target.as_fd(), RANGE_BYTES_MAX)) {
            // Files in /proc report a size of zero, so read them. (Linux 5.6 to 5.18 return 0 for
            // other files, too.)
            Ok(0) if copied == 0 => break,
            Ok(0) => return Ok(copied),
            Ok(n) => copied += n as u64,
            // The call is missing, or does not serve these files. Reads and writes return any other
            // error again.
            Err(_) if copied == 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let n = retry(|| rustix::io::read(source, &mut *piece))?;
        if n == 0 {
            return Ok(copied);
        }
        let mut rest = &piece[..n];
        while !rest.is_empty() {
            match retry(|| rustix::io::write(target, rest))? {
                0 => return Err(Errno::IO),
                n => rest = &rest[n..],
            }
        }
        copied += n as u64;
    }
}
