//! Which cases each table has, as plain data.

pub mod dd;
pub mod log;
pub mod prefault;
pub mod writes;

/// A table that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Cold random reads of 4 KiB by depth, and the whole file once in random order.
    Reads,
    /// Reads of what is in the page cache, wholly or half.
    Cached,
    /// Batches of small records, cold and cached.
    Gather,
}

impl Table {
    pub const ALL: [Self; 3] = [Self::Reads, Self::Cached, Self::Gather];
}

/// One line of a table: every way does the same work from the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub table: &'static str,
    pub name: String,
    pub state: State,
    pub work: Work,
}

/// What of the file is in the page cache when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Cold,
    Cached,
    /// The first half of each block that is read.
    HalfCached,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Blocks in random order, `depth` in flight for each of `callers` threads.
    Reads { block: usize, depth: usize, callers: usize },
    /// Every block of the file once.
    WholeFile { block: usize, depth: usize },
    /// Batches of `records` random records.
    Gather { records: usize },
}

pub const PAGE_BLOCK: usize = 4 << 10;
const HALF_BLOCK: usize = 64 << 10;
const WHOLE_FILE_DEPTH: usize = 32;

pub const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];
pub const RECORDS: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096];

/// The cases of a table.
pub fn cases(table: Table, depths: &[usize], records: &[usize]) -> Vec<Case> {
    match table {
        Table::Reads => reads(depths),
        Table::Cached => cached(),
        Table::Gather => [State::Cold, State::Cached].into_iter().flat_map(|state| gather(state, records)).collect(),
    }
}

fn reads(depths: &[usize]) -> Vec<Case> {
    let by_depth = depths.iter().map(|&depth| Case {
        table: "reads",
        name: format!("depth={depth}"),
        state: State::Cold,
        work: Work::Reads { block: PAGE_BLOCK, depth, callers: 1 },
    });
    let whole = Case {
        table: "whole",
        name: format!("depth={WHOLE_FILE_DEPTH}"),
        state: State::Cold,
        work: Work::WholeFile { block: PAGE_BLOCK, depth: WHOLE_FILE_DEPTH },
    };
    by_depth.chain([whole]).collect()
}

fn cached() -> Vec<Case> {
    let case = |name: &str, state, block, callers| Case {
        table: "cached",
        name: name.to_owned(),
        state,
        work: Work::Reads { block, depth: 1, callers },
    };
    vec![
        case("threads=1", State::Cached, PAGE_BLOCK, 1),
        case("threads=2", State::Cached, PAGE_BLOCK, 2),
        case("64K,half", State::HalfCached, HALF_BLOCK, 1),
    ]
}

fn gather(state: State, records: &[usize]) -> impl Iterator<Item = Case> {
    let suffix = if state == State::Cold { "cold" } else { "cached" };
    records.iter().map(move |&records| Case {
        table: "gather",
        name: format!("records={records},{suffix}"),
        state,
        work: Work::Gather { records },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let all: Vec<Case> = Table::ALL.into_iter().flat_map(|table| cases(table, &DEPTHS, &RECORDS)).collect();
        assert_eq!(all.len(), 8 + 3 + 24);
        for (i, case) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| (other.table, &other.name) != (case.table, &case.name)));
        }
    }
}
