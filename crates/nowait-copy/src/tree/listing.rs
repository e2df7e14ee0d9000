//! Names of a directory in inode order.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// Buffer size for the entries of one call.
const BUFFER_BYTES: usize = 32 << 10;

/// The entries of a directory.
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
    /// Offset of the entry's name in `names`.
    name: u32,
    file_type: FileType,
}

impl Listing {
    /// Lists an open directory in inode order. On most file systems, files are stored in this
    /// order, whereas names are in the order of a hash.
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
            // No file system has 4 GiB of names in one directory.
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

    /// Returns the name of the entry at `index`, and its type if the directory contains it.
    pub(super) fn entry(&self, index: usize) -> (&CStr, FileType) {
        let DirEntry { name, file_type, .. } = self.entries[index];
        // Names are stored with their NULs.
        let name = CStr::from_bytes_until_nul(&self.names[name as usize..]).unwrap_or_default();
        (name, file_type)
    }
}
