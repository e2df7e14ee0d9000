//! The table `writes`: a file grows, by depth.
//!
//! A round is as long as its size allows, or what the way writes in a second if that is less.

use super::new_file::{BLOCK, Cases, Rules, free_bytes, require_room};
use super::{Phase, Run, Table, chosen, names, usage};
use crate::error::Result;
use crate::machine::testfile;
use crate::measure::options::Options;
use crate::report::fio;
use crate::ways::{self, Roster, WAYS};

pub struct Writes {
    pub ways: Roster,
}

pub static WRITES: Writes = Writes { ways: WAYS };

const DEPTHS: [usize; 4] = [1, 4, 16, 64];
const QUICK_DEPTHS: [usize; 2] = [1, 16];
const FULL_SIZE: u64 = 64 << 20;
const QUICK_SIZE: u64 = 8 << 20;

impl Writes {
    fn depths(options: &Options) -> Vec<usize> {
        options.or_usual(&options.depths, &QUICK_DEPTHS, &DEPTHS)
    }
}

/// The most that a round writes.
pub(super) fn bytes(options: &Options) -> u64 {
    options.size.unwrap_or(if options.quick { QUICK_SIZE } else { FULL_SIZE })
}

impl Table for Writes {
    fn name(&self) -> &'static str {
        "writes"
    }

    fn about(&self) -> &'static str {
        "A file grows by writes of 4 KiB, by depth"
    }

    fn title(&self) -> &'static str {
        "writes: a new file grows by writes of 4 KiB through the page cache, writes/s"
    }

    fn unit(&self) -> &'static str {
        "writes/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::writers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file is only read; leave it out for the tables that write, or name others"));
        }
        let deepest = Self::depths(options).into_iter().max().unwrap_or(0);
        if !chosen(&ways::writers(self.ways), options).iter().any(|way| way.fewest_in_flight() <= deepest) {
            let (table, all) = (self.name(), names(&ways::writers(self.ways)).join(", "));
            return Err(usage(format!(
                "none of --ways is in the table {table} with these --depths; choose among {all}"
            )));
        }
        Ok(())
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((bytes(options), "a new one for each round, without a name"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        let ways = chosen(&ways::writers(self.ways), options);
        let of_depth = |depth| ways.iter().filter(|way| way.fewest_in_flight() <= depth).count();
        Self::depths(options).into_iter().map(of_depth).collect()
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Directory {
            return Ok(());
        }
        let (bytes, depths) = (bytes(run.options), Self::depths(run.options));
        let free = free_bytes(&testfile::create_nameless(run.dir)?, run.dir)?;
        require_room(free, bytes, "--size", run.dir)?;
        let rules = Rules { table: self.name(), option: "--size", in_time: true, finish: |row, _| row };
        let ways = run.usable(&ways::writers(self.ways));
        Cases { rules, ways: &ways, depths: &depths, by_depth: true, bytes }.measure(run)
    }

    fn fio(&self, options: &Options, place: &fio::Place<'_>, jobs: &mut fio::Jobs) {
        for depth in Self::depths(options) {
            let case = format!("dir={} depth={depth}", place.filesystem);
            jobs.writes(self.name(), &case, BLOCK, depth, place.dir, bytes(options));
        }
    }
}
