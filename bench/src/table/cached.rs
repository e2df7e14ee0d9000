//! The table `cached`: random reads of what is in the page cache, wholly or half.

use super::reading::{Case, PAGE_BLOCK, Readers, State, Work, asked_for, file_size};
use super::{Phase, Run, Table, listed};
use crate::error::Result;
use crate::measure::options::Options;
use crate::report::figures::micro;
use crate::report::{Report, fio};
use crate::ways::{PLAIN, WAYS};

pub struct Cached(pub Readers);

pub static CACHED: Cached = Cached(Readers::reading(WAYS));

const HALF_BLOCK: usize = 64 << 10;

/// From this ratio on a way's cost is worth a word.
const DEARER: f64 = 1.3;

impl Cached {
    pub fn cases(options: &Options) -> Vec<Case> {
        let case = |name: &str, state, block, callers| Case {
            name: name.to_owned(),
            state,
            work: Work::Reads { block, depth: 1, callers },
        };
        let all = vec![
            case("threads=1", State::Cached, PAGE_BLOCK, 1),
            case("threads=2", State::Cached, PAGE_BLOCK, 2),
            case("64K,half", State::HalfCached, HALF_BLOCK, 1),
        ];
        asked_for(all, options)
    }
}

impl Table for Cached {
    fn name(&self) -> &'static str {
        "cached"
    }

    fn about(&self) -> &'static str {
        "Random reads of a file that is cached, all or half of it"
    }

    fn title(&self) -> &'static str {
        "cached: random reads of 4 KiB that are cached, and of 64 KiB of which half is; operations/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        self.0.names(&Self::cases(&Options::new(false, 0)))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--rate"]
    }

    fn usual(&self) -> bool {
        true
    }

    fn check(&self, options: &Options) -> Result<()> {
        self.0.check(options, &Self::cases(options))
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(file_size(options))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        self.0.case_ways(options, &Self::cases(options))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        match phase {
            Phase::File => self.0.measure(self, &Self::cases(run.options), run),
            _ => Ok(()),
        }
    }

    fn fio(&self, options: &Options, place: &fio::Place<'_>, jobs: &mut fio::Jobs) {
        Readers::fio(self.name(), options, &Self::cases(options), place, jobs);
    }

    /// The cost of a read that needs no disk.
    fn advice(&self, report: &Report) -> Option<String> {
        let (_, rows) = report.cases(self.name()).into_iter().next()?;
        let plain = rows.iter().find(|row| PLAIN.contains(&row.way.as_str()))?;
        let mut dearer: Vec<(f64, &str)> = rows
            .iter()
            .map(|row| (plain.ops_per_s / row.ops_per_s, row.way.as_str()))
            .filter(|(x, _)| *x >= DEARER)
            .collect();
        dearer.sort_by(|a, b| b.0.total_cmp(&a.0));
        let latency = plain.latency_ns.map_or_else(String::new, |latency| format!(" {} µs of", micro(latency.p50)));
        let costs = match dearer.as_slice() {
            [] => "no other way costs much more".to_owned(),
            all => {
                let each: Vec<String> = all.iter().map(|(ratio, way)| format!("{way} {ratio:.1} times")).collect();
                format!("as much of it costs {}", listed(&each))
            }
        };
        Some(format!("A cached read takes{latency} time by {}; {costs}.", plain.way))
    }
}
