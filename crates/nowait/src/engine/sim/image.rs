//! The bytes of a simulated file, in pages that images share, and its sectors.

use std::ops::Range;
use std::sync::Arc;

/// The bytes that a device writes as a whole or not at all.
pub(super) const SECTOR: usize = 512;

/// How many sectors a range touches.
pub(super) fn sectors(start: usize, length: usize) -> usize {
    (start + length).div_ceil(SECTOR) - start / SECTOR
}

/// The part of a range that lies in one of the sectors that it touches; counted from its start.
pub(super) fn in_sector(start: usize, length: usize, sector: usize) -> Range<usize> {
    let first = (start / SECTOR + sector) * SECTOR;
    first.max(start) - start..(first + SECTOR).min(start + length) - start
}

/// The unit in which images share bytes.
pub(super) const PAGE: usize = 4096;

pub(super) type Page = Arc<[u8; PAGE]>;

/// The bytes of a file. A clone copies none of them, and later each page that one of both changes.
#[derive(Clone, Default)]
pub(super) struct Image {
    /// Zero behind the end of the file.
    pub(super) pages: Vec<Page>,
    length: usize,
}

impl Image {
    pub(super) fn new(bytes: &[u8]) -> Image {
        let mut image = Image::default();
        image.put(0, bytes);
        image
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn resize(&mut self, length: usize) {
        if length < self.length && length % PAGE != 0 {
            Arc::make_mut(&mut self.pages[length / PAGE])[length % PAGE..].fill(0);
        }
        let count = length.div_ceil(PAGE);
        if count > self.pages.len() {
            let zeros = Arc::new([0; PAGE]);
            self.pages.resize(count, zeros);
        }
        self.pages.truncate(count);
        self.length = length;
    }

    pub(super) fn put(&mut self, start: usize, bytes: &[u8]) {
        self.resize(self.length.max(start + bytes.len()));
        let mut done = 0;
        while done < bytes.len() {
            let inside = (start + done) % PAGE;
            let n = (PAGE - inside).min(bytes.len() - done);
            let page = Arc::make_mut(&mut self.pages[(start + done) / PAGE]);
            page[inside..inside + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
    }

    /// Bytes of a range inside the file.
    pub(super) fn get(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len());
        while bytes.len() < range.len() {
            let place = range.start + bytes.len();
            let rest = &self.pages[place / PAGE][place % PAGE..];
            bytes.extend_from_slice(&rest[..rest.len().min(range.end - place)]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_as_long_and_holds_what_a_vector_would() {
        let mut random = crate::engine::sim::world::Random(1);
        let mut below = |n: usize| (random.next() % n as u64) as usize;
        let (mut image, mut bytes) = (Image::default(), Vec::new());
        for number in 0..2000 {
            let (place, before) = (below(3 * PAGE), (image.clone(), bytes.clone()));
            match below(3) {
                0 => {
                    image.resize(place);
                    bytes.resize(place, 0);
                }
                _ => {
                    let data = vec![number as u8; below(2 * PAGE)];
                    image.put(place, &data);
                    bytes.resize(bytes.len().max(place + data.len()), 0);
                    bytes[place..place + data.len()].copy_from_slice(&data);
                }
            }
            assert_eq!(image.len(), bytes.len());
            let start = below(bytes.len() + 1);
            let end = start + below(bytes.len() - start + 1);
            assert!(image.get(0..bytes.len()) == bytes && image.get(start..end) == bytes[start..end], "{number}");
            assert!(before.0.get(0..before.1.len()) == before.1, "a clone stays as it was");
        }
    }
}
