//! Names of a directory, in parts, each in inode order.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// Buffer size for the entries of one call.
const BUFFER_BYTES: usize = 32 << 10;

/// Number of entries after which a part ends. It bounds the memory for a directory of millions.
const PART_ENTRIES: usize = 1 << 16;

/// Some entries of a directory.
#[derive(Default)]
pub(super) struct Listing {
    /// Names, each with its NUL.
    names: Vec<u8>,
    entries: Vec<DirEntry>,
    /// True if the directory has more entries, which the next part contains.
    pub(super) has_more: bool,
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
    /// Lists the next part of an open directory in inode order. On most file systems, files are
    /// stored in this order, whereas names are in the order of a hash.
    pub(super) fn next_part(dir: BorrowedFd<'_>) -> Result<Self, Errno> {
        Self::read(dir, PART_ENTRIES)
    }

    /// Ends a part with the entries of the call that reaches `enough`.
    fn read(dir: BorrowedFd<'_>, enough: usize) -> Result<Self, Errno> {
        let mut listing = Listing::default();
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            // A part is far shorter than 4 GiB.
            let at = u32::try_from(listing.names.len()).map_err(|_| Errno::OVERFLOW)?;
            listing.names.extend_from_slice(name.to_bytes_with_nul());
            listing.entries.push(DirEntry { inode: entry.ino(), name: at, file_type: entry.file_type() });
            // The kernel continues after the entries of the last call.
            if listing.len() >= enough && entries.is_buffer_empty() {
                listing.has_more = true;
                break;
            }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::ffi::CString;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn parts_contain_each_entry_once() {
        const ENTRIES: usize = 5000;
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        for number in 0..ENTRIES {
            std::os::unix::fs::symlink("nowhere", folder.path().join(number.to_string())).unwrap();
        }
        let dir = std::fs::File::open(folder.path()).unwrap();
        let (mut names, mut parts) = (HashSet::new(), 0);
        loop {
            let part = Listing::read(dir.as_fd(), 1000).unwrap();
            for index in 0..part.len() {
                let (name, _) = part.entry(index);
                assert!(names.insert(CString::from(name)), "{name:?} is in two parts");
            }
            parts += 1;
            if !part.has_more {
                break;
            }
            assert!(part.len() >= 1000);
        }
        assert_eq!(names.len(), ENTRIES);
        assert!((2..=6).contains(&parts), "{parts}");
    }
}
