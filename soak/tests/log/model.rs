//! Oracle of a log: what a writer's events say about the records that a reader must find.

use std::collections::BTreeMap;
use std::path::Path;

use nowait::ErrorKind;
use nowait_log::read;

use crate::common;

/// Bytes of a record before its contents: their seed.
const SEED_BYTES: usize = 8;

/// A record whose contents follow from its seed and its length.
pub(crate) fn record(seed: u64, length: usize) -> Vec<u8> {
    [&seed.to_le_bytes()[..], &common::contents(length, seed)].concat()
}

/// Returns the seed of a whole record.
fn seed_of(bytes: &[u8]) -> Option<u64> {
    let seed = u64::from_le_bytes(bytes.get(..SEED_BYTES)?.try_into().ok()?);
    (record(seed, bytes.len() - SEED_BYTES) == bytes).then_some(seed)
}

/// All records that can be read from a log's directory, without opening it for writing.
pub(crate) struct Found {
    first: u64,
    last: u64,
    records: BTreeMap<u64, Vec<u8>>,
}

impl Found {
    pub(crate) fn read(dir: &Path) -> Result<Found, String> {
        let (mut reader, recovery) = match read(dir, 1).wait() {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Found { first: 1, last: 0, records: BTreeMap::new() });
            }
            Err(error) => return Err(format!("read: {error}")),
        };
        if !recovery.damage.is_empty() {
            return Err(format!("damage: {:?}", recovery.damage));
        }
        let (first, last) = (recovery.first_lsn, recovery.last_lsn);
        if first > 1 {
            reader = read(dir, first).wait().map_err(|error| format!("read: {error}"))?.0;
        }
        let mut records = BTreeMap::new();
        while let Some(record) = reader.next().wait().map_err(|error| format!("next: {error}"))? {
            records.insert(record.lsn, record.bytes.to_vec());
        }
        Ok(Found { first, last, records })
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }
}

#[derive(Default)]
pub(crate) struct Model {
    /// Seeds of the records by LSN, as far as events name them.
    seeds: BTreeMap<u64, u64>,
    pub(crate) durable: u64,
    /// Records before this one may have been given up.
    prefix: u64,
    /// End of a cut that has begun.
    cutting: Option<u64>,
    batches: Vec<(u64, u64)>,
}

impl Model {
    /// Takes in one event of a writer. An error: it contradicts the earlier ones.
    pub(crate) fn event(&mut self, line: &str) -> Result<(), String> {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        match (name, &*numbers) {
            ("open", &[_, last]) => {
                self.check_last(last)?;
                self.keep(last);
            }
            ("appended", &[lsn, seed]) => _ = self.seeds.insert(lsn, seed),
            ("batch", &[first, last]) => self.batches.push((first, last)),
            ("durable", &[lsn]) => self.durable = self.durable.max(lsn),
            ("prefix", &[lsn]) => self.prefix = self.prefix.max(lsn),
            ("cutting", &[lsn]) => self.cutting = Some(lsn),
            ("cut", &[lsn]) => self.keep(lsn),
            ("uncut", _) | ("closed", _) => self.cutting = None,
            _ => return Err(format!("the writer says {line:?}")),
        }
        Ok(())
    }

    /// Everything up to `last` is durable, and nothing behind it is left.
    fn keep(&mut self, last: u64) {
        self.durable = last;
        self.cutting = None;
        self.prefix = self.prefix.min(last + 1);
        self.seeds.split_off(&(last + 1));
        self.batches.retain(|(_, end)| *end <= last);
    }

    fn check_last(&self, last: u64) -> Result<(), String> {
        let cut = self.cutting.is_some_and(|end| end == last);
        if last < self.durable && !cut {
            return Err(format!("the last is {last}; {} was durable, cutting {:?}", self.durable, self.cutting));
        }
        Ok(())
    }

    /// Compares with what is in the directory after a kill or a cut of power, and goes on from it.
    pub(crate) fn check(&mut self, found: &Found) -> Result<(), String> {
        let Found { first, last, records } = found;
        self.check_last(*last)?;
        if *first > self.prefix.max(1) {
            return Err(format!("the first is {first}, and only those before {} were given up", self.prefix));
        }
        for lsn in *first..=*last {
            let bytes = records.get(&lsn).ok_or_else(|| format!("record {lsn} cannot be read"))?;
            let seed = seed_of(bytes).ok_or_else(|| format!("record {lsn} has other bytes"))?;
            // The writer may have ended before it named the record.
            if *self.seeds.entry(lsn).or_insert(seed) != seed {
                return Err(format!("record {lsn} is another one"));
            }
        }
        if let Some((lsn, _)) = records.range(last + 1..).next() {
            return Err(format!("record {lsn} lies behind the last, {last}"));
        }
        let split = self.batches.iter().find(|(from, to)| from <= last && to > last);
        if let Some((from, to)) = split.filter(|_| self.cutting != Some(*last)) {
            return Err(format!("of the batch {from} to {to} only records up to {last} are left"));
        }
        self.keep(*last);
        Ok(())
    }
}
