//! Names of a directory, in the order of their inodes.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// Bytes of entries that the kernel returns in a call.
const BUFFER_BYTES: usize = 32 << 10;

/// A directory as it was listed.
#[derive(Default)]
pub(super) struct Listing {
    /// Names, each with its NUL.
    names: Vec<u8>,
    entries: Vec<DirEntry>,
}

/// Name in a directory.
#[derive(Clone, Copy)]
struct DirEntry {
    inode: u64,
    /// Where in `names` its name begins.
    name: u32,
    file_type: FileType,
}

impl Listing {
    /// Lists an open directory. In the order of inodes, since the files of most file systems lie on
    /// the disk in that order, and their names in that of a hash.
    pub(super) fn read(dir: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut listing = Listing::default();
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            // Four GiB of names in one directory are more than any file system has.
            let at = u32::try_from(listing.names.len()).map_err(|_| Errno::OVERFLOW)?;
            listing.names.extend_from_slice(name.to_bytes_with_nul());
            listing.entries.push(DirEntry { inode: entry.ino(), name: at, file_type: entry.file_type() });
        }
        listing.entries.sort_unstable_by_key(|entry| entry.inode);
        Ok(listing)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry at `index`: its name, and its type as far as the directory says.
    pub(super) fn entry(&self, index: usize) -> (&CStr, FileType) {
        let DirEntry { name, file_type, .. } = self.entries[index];
        // Names are stored with their NULs.
        let name = CStr::from_bytes_until_nul(&self.names[name as usize..]).unwrap_or_default();
        (name, file_type)
    }
}
