//! Cold files: dropping one file's pages from the cache, and counting what is there.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

const PAGE: usize = 4096;
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Whether pages can be dropped.
pub(crate) const DROPS_PAGES: bool = true;

/// Drops the pages of one file. Of the whole file, since a part of a large folio is not dropped. A
/// page that is still being written, or looked at, stays: it is tried again for a while, as it may
/// be for others on a busy machine.
pub(crate) fn drop_pages(path: &Path) {
    if is_in_memory(path) {
        return;
    }
    let file = File::open(path).unwrap();
    for _ in 0..100 {
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        if cached_pages(path) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// On tmpfs the cache is all there is.
pub(crate) fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).unwrap().f_type == TMPFS
}

/// How many of a file's pages are in the cache (`mincore(2)`).
pub(crate) fn cached_pages(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    if len == 0 {
        return 0;
    }
    let mut resident = vec![0u8; len.div_ceil(PAGE)];
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    // SAFETY: a new mapping that nobody else knows, never accessed, and unmapped before the end of
    // the block; `resident` has a byte for each of its pages.
    let result = unsafe {
        let map = mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap();
        let result = libc::mincore(map, len, resident.as_mut_ptr());
        munmap(map, len).unwrap();
        result
    };
    assert_eq!(result, 0, "mincore: {}", std::io::Error::last_os_error());
    resident.iter().filter(|byte| **byte & 1 != 0).count()
}
