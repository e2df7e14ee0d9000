//! Oracle: the bytes that a region of a file must hold.

/// The contents of a region that one task uses at a time.
///
/// A change whose future was dropped may be made at any later time, or never. A later change that
/// overlaps it and is complete comes after it: that is the order of changes.
pub(crate) struct Region {
    complete: Vec<u8>,
    given_up: Vec<Change>,
    /// A task uses the region.
    pub(crate) is_taken: bool,
}

struct Change {
    at: usize,
    bytes: Vec<u8>,
}

impl Change {
    fn end(&self) -> usize {
        self.at + self.bytes.len()
    }

    fn byte(&self, place: usize) -> Option<u8> {
        place.checked_sub(self.at).and_then(|index| self.bytes.get(index)).copied()
    }
}

impl Region {
    pub(crate) fn zeroed(length: usize) -> Region {
        Region { complete: vec![0; length], given_up: Vec::new(), is_taken: false }
    }

    /// A change is complete. What was given up before it no longer shows through.
    pub(crate) fn wrote(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.complete[at..end].copy_from_slice(bytes);
        for change in std::mem::take(&mut self.given_up) {
            if change.at < at {
                let kept = change.bytes.len().min(at - change.at);
                self.given_up.push(Change { at: change.at, bytes: change.bytes[..kept].to_vec() });
            }
            if change.end() > end {
                let from = end.max(change.at);
                self.given_up.push(Change { at: from, bytes: change.bytes[from - change.at..].to_vec() });
            }
        }
    }

    /// A change was given up while it was under way.
    pub(crate) fn gave_up(&mut self, at: usize, bytes: &[u8]) {
        self.given_up.push(Change { at, bytes: bytes.to_vec() });
    }

    /// Nothing is under way: the region holds what was just read, and keeps it.
    pub(crate) fn settle(&mut self, read: &[u8]) {
        self.complete.copy_from_slice(read);
        self.given_up.clear();
    }

    /// Returns the first byte of `read`, which begins at `at`, that no order of changes explains.
    pub(crate) fn fault(&self, at: usize, read: &[u8]) -> Option<String> {
        let is_possible = |place: usize, byte: u8| {
            self.complete[place] == byte || self.given_up.iter().any(|change| change.byte(place) == Some(byte))
        };
        let index = read.iter().enumerate().position(|(index, byte)| !is_possible(at + index, *byte))?;
        let place = at + index;
        let given_up: Vec<_> = self.given_up.iter().filter_map(|change| change.byte(place)).collect();
        Some(format!("byte {place} is {}, expected {} or one of {given_up:?}", read[index], self.complete[place]))
    }
}
