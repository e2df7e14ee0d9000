//! The cases that are measured.

use super::Options;

/// Kind of request, cache, connections and neighbours.
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    /// Number of places where requests read, at multiples of `bytes`.
    pub(super) places: u64,
    pub(super) cache: Option<Cache>,
    pub(super) connections: u32,
    pub(super) is_busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Range,
    Put,
    Append,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    Cold,
    Cached,
}

const RANGE_BYTES: [u64; 3] = [4 << 10, 512 << 10, 8 << 20];
const PUT_BYTES: u64 = 64 << 10;
const RECORD_BYTES: u64 = 200;
const CONNECTIONS: [u32; 2] = [1, 64];

impl Case {
    /// All cases. Cold ones read the whole file, cached ones its first bytes.
    pub(super) fn all(cold_bytes: u64, cached_bytes: u64) -> impl Iterator<Item = Case> {
        let mut requests = Vec::new();
        for bytes in RANGE_BYTES {
            for (cache, file_bytes) in [(Cache::Cached, cached_bytes), (Cache::Cold, cold_bytes)] {
                requests.push((Kind::Range, bytes, file_bytes / bytes, Some(cache)));
            }
        }
        requests.extend([(Kind::Put, PUT_BYTES, 1, None), (Kind::Append, RECORD_BYTES, 1, None)]);
        requests.into_iter().flat_map(|(kind, bytes, places, cache)| {
            let axes = [false, true].into_iter().flat_map(|is_busy| CONNECTIONS.map(|n| (is_busy, n)));
            axes.map(move |(is_busy, connections)| Case { kind, bytes, places, cache, connections, is_busy })
        })
    }

    pub(super) fn name(&self) -> String {
        let cache = match self.cache {
            Some(Cache::Cold) => "cold ",
            Some(Cache::Cached) => "cached ",
            None => "",
        };
        let kind = match (self.kind, self.bytes) {
            (Kind::Append, _) => "append".to_owned(),
            (Kind::Put, bytes) => format!("put {}K", bytes >> 10),
            (Kind::Range, bytes) if bytes < 1 << 20 => format!("{}K", bytes >> 10),
            (Kind::Range, bytes) => format!("{}M", bytes >> 20),
        };
        let neighbours = if self.is_busy { "busy" } else { "idle" };
        format!("{cache}{kind} c={} {neighbours}", self.connections)
    }

    pub(super) fn is_chosen(&self, only: &[String]) -> bool {
        only.is_empty() || only.iter().any(|text| self.name().contains(text.as_str()))
    }

    /// Duration of a round: shorter where the device would reach the end of the file, longer so that
    /// each connection receives several bodies.
    pub(super) fn seconds(&self, options: &Options) -> u64 {
        let reads_much = self.cache == Some(Cache::Cold) && self.bytes >= 512 << 10 && !self.is_busy;
        let shares_much = self.bytes >= 8 << 20 && self.connections > 1;
        match (reads_much, shares_much) {
            (true, _) => 1,
            (false, true) => options.seconds.max(5),
            (false, false) => options.seconds,
        }
    }
}
