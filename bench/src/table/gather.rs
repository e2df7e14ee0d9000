//! The table `gather`: batches of small records, cold and cached.

use super::columns::Column;
use super::reading::{Case, DEVICE_COLUMNS, Readers, State, Work, asked_for, file_size};
use super::{Phase, Run, Table};
use crate::error::Result;
use crate::measure::options::Options;
use crate::ways::WAYS;

pub struct Gather(pub Readers);

pub static GATHER: Gather = Gather(Readers::gathering(WAYS));

const RECORDS: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096];
const QUICK_RECORDS: [usize; 4] = [1, 8, 64, 512];

impl Gather {
    pub fn cases(options: &Options) -> Vec<Case> {
        let records = options.or_usual(&options.records, &QUICK_RECORDS, &RECORDS);
        let of_state = |(state, suffix)| {
            let case = move |&records: &usize| Case {
                name: format!("records={records},{suffix}"),
                state,
                work: Work::Gather { records },
            };
            records.iter().map(case).collect::<Vec<_>>()
        };
        asked_for([(State::Cold, "cold"), (State::Cached, "cached")].into_iter().flat_map(of_state).collect(), options)
    }
}

impl Table for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn about(&self) -> &'static str {
        "Batches of small records, cold and cached"
    }

    fn title(&self) -> &'static str {
        "gather: batches of random records of 1 to 4 KiB, records/s by records in a batch"
    }

    fn unit(&self) -> &'static str {
        "records/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        self.0.names(&Self::cases(&Options::new(false, 0)))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--records"]
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

    fn figures(&self) -> &'static [Column] {
        DEVICE_COLUMNS
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        match phase {
            Phase::File => self.0.measure(self, &Self::cases(run.options), run),
            _ => Ok(()),
        }
    }

    fn latency(&self) -> &'static str {
        "Latency of a batch"
    }
}
