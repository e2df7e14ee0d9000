//! Values that each byte of a file may have, beside reads, writes and syncs in flight.
//!
//! A byte has a value below [`VALUES`]; a set of values is a mask. A write adds its value when it
//! begins. When it succeeds, only its value is left, and those of writes that were in flight beside
//! it. A write that fails leaves both. A read returns, for each byte, a value that was possible at
//! some time since the read began.

use std::ops::Range;

/// Number of values of a byte.
pub(crate) const VALUES: u64 = 63;

/// Marks a byte that a write may have changed during a read.
const CHANGES: u64 = 1 << 63;

pub(crate) struct Model {
    /// Values that reads may return.
    now: Vec<u64>,
    /// Values that a crash may leave.
    durable: Vec<u64>,
    writes: Vec<InFlight>,
    /// Reads and syncs.
    others: Vec<InFlight>,
    last: u64,
}

/// Operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

struct InFlight {
    id: Id,
    range: Range<usize>,
    value: u64,
    masks: Vec<u64>,
}

impl InFlight {
    /// Adds a value to the bytes of a range.
    fn add(&mut self, range: &Range<usize>, mask: u64) {
        let place = |at: usize| at.clamp(self.range.start, self.range.end) - self.range.start;
        add(&mut self.masks[place(range.start)..place(range.end)], mask);
    }
}

fn add(masks: &mut [u64], mask: u64) {
    masks.iter_mut().for_each(|other| *other |= mask);
}

/// Removes from each mask what the other one lacks.
fn limit(masks: &mut [u64], others: &[u64]) {
    masks.iter_mut().zip(others).for_each(|(mask, other)| *mask &= other);
}

fn bytes_of(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

impl Model {
    /// A durable file, which never has more than `length_max` bytes.
    pub(crate) fn new(contents: &[u8], length_max: usize) -> Model {
        let now: Vec<u64> = (0..length_max).map(|at| 1 << contents.get(at).copied().unwrap_or(0)).collect();
        Model { durable: now.clone(), now, writes: Vec::new(), others: Vec::new(), last: 0 }
    }

    fn id(&mut self) -> Id {
        self.last += 1;
        Id(self.last)
    }

    pub(crate) fn begin_write(&mut self, range: &Range<u64>, value: u8) -> Id {
        let (id, range, mask) = (self.id(), bytes_of(range), 1 << value);
        let mut write = InFlight { id, range: range.clone(), value: mask, masks: vec![mask; range.len()] };
        for other in &mut self.writes {
            write.add(&other.range, other.value);
            other.add(&range, mask);
        }
        self.writes.push(write);
        self.others.iter_mut().for_each(|other| other.add(&range, mask | CHANGES));
        add(&mut self.now[range.clone()], mask);
        add(&mut self.durable[range], mask);
        id
    }

    pub(crate) fn end_write(&mut self, id: Id, is_written: bool) {
        let at = self.writes.iter().position(|write| write.id == id).unwrap();
        let write = self.writes.swap_remove(at);
        if is_written {
            limit(&mut self.now[write.range], &write.masks);
        }
    }

    pub(crate) fn is_write(&self, id: Id) -> bool {
        self.writes.iter().any(|write| write.id == id)
    }

    /// Begins a read, or a sync, which covers what a read would return.
    pub(crate) fn begin(&mut self, range: &Range<u64>) -> Id {
        let (id, range) = (self.id(), bytes_of(range));
        let mut other = InFlight { id, range: range.clone(), value: 0, masks: self.now[range].to_vec() };
        self.writes.iter().for_each(|write| other.add(&write.range, CHANGES));
        self.others.push(other);
        id
    }

    fn end(&mut self, id: Id) -> InFlight {
        let at = self.others.iter().position(|other| other.id == id).unwrap();
        self.others.swap_remove(at)
    }

    /// Ends a read that failed, or was given up.
    pub(crate) fn drop_read(&mut self, id: Id) {
        self.end(id);
    }

    /// Compares what a read returned. If no write was in flight, the file has these bytes.
    pub(crate) fn end_read(&mut self, id: Id, bytes: &[u8]) -> Result<(), String> {
        let read = self.end(id);
        assert_eq!(read.range.len(), bytes.len());
        for ((now, mask), byte) in self.now[read.range.clone()].iter_mut().zip(&read.masks).zip(bytes) {
            if *byte >= VALUES as u8 || mask >> byte & 1 == 0 {
                return wrong(read.range.start, bytes, &read.masks);
            }
            if mask & CHANGES == 0 {
                *now &= 1 << byte;
            }
        }
        Ok(())
    }

    pub(crate) fn end_sync(&mut self, id: Id, is_synced: bool) {
        let sync = self.end(id);
        if is_synced {
            limit(&mut self.durable[sync.range], &sync.masks);
        }
    }

    /// Compares the contents of the file while no write is in flight; those that were given up have
    /// ended.
    pub(crate) fn settle(&mut self, contents: &[u8]) -> Result<(), String> {
        self.writes.clear();
        let whole = self.begin(&(0..contents.len() as u64));
        self.end_read(whole, contents)
    }

    /// Compares the contents after a crash.
    pub(crate) fn check_crashed(&self, contents: &[u8]) -> Result<(), String> {
        wrong(0, contents, &self.durable)
    }

    /// Sets the length. Bytes beyond it read as zeros when the file grows, unless a write in flight
    /// changes them later.
    pub(crate) fn set_len(&mut self, length: u64) {
        let beyond = length as usize..self.now.len();
        self.now[beyond.clone()].fill(1);
        add(&mut self.durable[beyond.clone()], 1);
        for write in &mut self.writes {
            write.add(&beyond, 1);
            let start = write.range.start.max(beyond.start);
            add(&mut self.now[start..write.range.end.max(start)], write.value);
        }
        self.others.iter_mut().for_each(|other| other.add(&beyond, 1 | CHANGES));
    }
}

/// Describes the first byte that has none of its values.
fn wrong(start: usize, bytes: &[u8], masks: &[u64]) -> Result<(), String> {
    let is_wrong = |(byte, mask): (&u8, &u64)| *byte >= VALUES as u8 || mask >> byte & 1 == 0;
    let Some(at) = bytes.iter().zip(masks).position(is_wrong) else { return Ok(()) };
    let values: Vec<_> = (0..VALUES).filter(|value| masks[at] >> value & 1 == 1).collect();
    let beside = if masks[at] & CHANGES == 0 { "" } else { ", beside writes" };
    Err(format!("byte {} is {}, not one of {values:?}{beside}", start + at, bytes[at]))
}
