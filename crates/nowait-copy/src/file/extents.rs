//! Ranges of a file that contain data.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::os::data;

/// Extents begin and end at multiples of this, so that direct requests consist of whole blocks. No
/// known device needs larger ones.
pub(crate) const EXTENT_ALIGNMENT: u64 = 4096;

/// Ranges of a file that contain data, sorted and disjoint; the rest are holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents(Vec<Range<u64>>);

impl Extents {
    /// All of a file.
    pub(crate) fn whole(size: u64) -> Self {
        Extents((size > 0).then_some(0..size).into_iter().collect())
    }

    /// Finds the extents of a file (`SEEK_DATA`, `SEEK_HOLE`).
    pub(crate) fn of_file(fd: BorrowedFd<'_>, size: u64) -> Result<Self, Errno> {
        let mut extents = Extents::default();
        let mut offset = 0;
        while offset < size {
            let Some(data) = data::next_data(fd, offset, size)? else { break };
            offset = data.end;
            extents.push(data, size);
        }
        Ok(extents)
    }

    /// Adds a range after the others, widened to whole blocks.
    fn push(&mut self, range: Range<u64>, size: u64) {
        let start = range.start / EXTENT_ALIGNMENT * EXTENT_ALIGNMENT;
        let end = range.end.checked_next_multiple_of(EXTENT_ALIGNMENT).unwrap_or(size).min(size);
        match self.0.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => self.0.push(start..end),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// End of the last extent.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| range.end)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Removes the ranges in `done`, which are sorted and disjoint.
    pub(crate) fn without(&self, done: &[Range<u64>]) -> Extents {
        let mut left = Vec::new();
        let mut done = done.iter().peekable();
        for extent in &self.0 {
            let mut start = extent.start;
            while let Some(range) = done.next_if(|range| range.start < extent.end) {
                if range.start > start {
                    left.push(start..range.start);
                }
                start = start.max(range.end);
            }
            if start < extent.end {
                left.push(start..extent.end);
            }
        }
        Extents(left)
    }

    /// Cuts the extents at multiples of `block`.
    pub(crate) fn pieces(&self, block: u64) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().flat_map(move |extent| {
            let mut start = extent.start;
            std::iter::from_fn(move || {
                let end = (start / block * block).saturating_add(block).min(extent.end);
                let piece = (start < extent.end).then_some(start..end);
                start = end;
                piece
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(ranges: &[Range<u64>], size: u64) -> Extents {
        let mut extents = Extents::default();
        ranges.iter().for_each(|range| extents.push(range.clone(), size));
        extents
    }

    #[test]
    fn ranges_are_widened_to_blocks_and_joined() {
        let joined = extents(&[100..200, 4000..5000, 20_000..20_001, 40_000..41_000], 41_000);
        assert_eq!(joined.0, [0..8192, 16_384..20_480, 36_864..41_000]);
        assert_eq!((joined.bytes(), joined.end()), (8192 + 4096 + 4136, 41_000));
    }

    #[test]
    fn pieces_end_at_round_places_and_cover_the_extents() {
        let pieces: Vec<_> = extents(&[4096..24_000, 32_768..32_769], 40_000).pieces(8192).collect();
        assert_eq!(pieces, [4096..8192, 8192..16_384, 16_384..24_576, 32_768..36_864]);
        assert_eq!(Extents::whole(0).pieces(4096).count(), 0);
        assert_eq!(Extents::whole(5000).pieces(4096).collect::<Vec<_>>(), [0..4096, 4096..5000]);
    }

    #[test]
    fn what_is_done_is_left_out() {
        let all = extents(&[0..40_960, 81_920..90_112], 90_112);
        assert_eq!(all.without(&[]), all);
        let done = [0..4096, 8192..16_384, 36_864..40_960, 86_016..90_112];
        assert_eq!(all.without(&done).0, [4096..8192, 16_384..36_864, 81_920..86_016]);
        assert_eq!(all.without(&all.0).0, []);
    }

    /// A wrong map would copy data as a hole, or omit data.
    #[test]
    fn a_files_extents_hold_all_of_its_data() {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileExt;
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(10 << 20).unwrap();
        for offset in [0, 3 << 20, (10 << 20) - 1] {
            file.write_all_at(&[1], offset).unwrap();
        }
        let file = std::fs::File::open(&path).unwrap();
        let extents = Extents::of_file(file.as_fd(), 10 << 20).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut place = 0;
        for extent in extents.iter() {
            assert!(bytes[place..extent.start as usize].iter().all(|byte| *byte == 0));
            place = extent.end as usize;
        }
        assert_eq!(place as u64, 10 << 20);
        assert!(extents.bytes() < 1 << 20, "{extents:?}: the file system knows holes");
    }
}
