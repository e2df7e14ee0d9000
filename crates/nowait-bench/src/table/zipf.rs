//! The table `zipf`: random reads of a file that is four times as large as the page cache may be.
//!
//! Compared are reads of 4 KiB whose places follow a Zipf distribution, in a memory cgroup of our
//! own, so that the page cache is always full. Popular pages lie anywhere in the file. The cache
//! begins with the most popular ones; then every way finds it as the round before left it. Each has
//! places of its own, drawn from the same distribution: with the same ones a way would find what
//! the one before it had just brought in.

use super::columns::{Column, Grid, Line, P50, P99, P999, cpu, every};
use super::new_file::{free_bytes, require_room};
use super::reading::{Case, Hits, Readers, State, Work, as_it_is, read_popular};
use super::{Phase, Run, Table, limited, usage};
use crate::error::Result;
use crate::machine::testfile::{self, TestFile};
use crate::measure::options::Options;
use crate::report::notes::Code;
use crate::sys::PAGE;

pub struct Zipf(pub Readers);

pub static ZIPF: Zipf = Zipf(Readers::ALL);

const DEPTHS: [usize; 3] = [1, 16, 64];
const QUICK_DEPTHS: [usize; 2] = [1, 64];
/// Exponents of the distribution, in hundredths.
const EXPONENTS: [u32; 2] = [99, 120];

const FULL_SIZE: u64 = 1 << 30;
const QUICK_SIZE: u64 = 128 << 20;
/// The file is so many times as large as what the cgroup allows.
const BEYOND: u64 = 4;
/// A cgroup that allows less has no room for the process.
const LIMIT_MIN: u64 = 16 << 20;

const HITS: Column = Column { name: "hits", cell: |row| Some(percent(row.figures::<Hits>().hit_fraction?)) };
const INLINE: Column = Column { name: "inline", cell: |row| Some(percent(row.inline_fraction?)) };

const COLUMNS: &[Column] = &[HITS, INLINE, P50, P99, P999, Column { name: "CPU µs", cell: cpu }];

fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

impl Zipf {
    fn size(options: &Options) -> u64 {
        options.size.unwrap_or(if options.quick { QUICK_SIZE } else { FULL_SIZE })
    }

    pub fn cases(options: &Options) -> Vec<Case> {
        let depths = options.or_usual(&options.depths, &QUICK_DEPTHS, &DEPTHS);
        let case = |exponent: u32, depth: usize| Case {
            name: format!("s={:.2} depth={depth}", f64::from(exponent) / 100.0),
            state: State::AsLeft,
            work: Work::Zipf { exponent, depth },
        };
        EXPONENTS.into_iter().flat_map(|exponent| depths.iter().map(move |&depth| case(exponent, depth))).collect()
    }
}

impl Table for Zipf {
    fn name(&self) -> &'static str {
        "zipf"
    }

    fn about(&self) -> &'static str {
        "Random reads by a Zipf distribution of a file four times as large as the page cache may be; as root"
    }

    fn title(&self) -> &'static str {
        "zipf: random reads of 4 KiB by a Zipf distribution, in a cgroup of a quarter of the file; operations/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        self.0.names(&Self::cases(&Options::new(false, 0)))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths"]
    }

    fn toured(&self) -> bool {
        false
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("the file of zipf is made for its memory cgroup; leave out --file"));
        }
        if Self::size(options) < LIMIT_MIN * BEYOND {
            return Err(usage(format!("zipf needs a --size of {} MiB, or more", (LIMIT_MIN * BEYOND) >> 20)));
        }
        self.0.check(options, &Self::cases(options))
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((Self::size(options), "made for this run, random data, written and synced"))
    }

    fn timed_rounds(&self, options: &Options) -> usize {
        self.0.timed_rounds(options, &Self::cases(options))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Limit {
            return Ok(());
        }
        let (dir, options, size, table) = (run.dir, run.options, Self::size(run.options), self.name());
        let limit = size / BEYOND;
        require_room(free_bytes(&testfile::create_nameless(dir)?, dir)?, size, "--size", dir)?;
        run.progress.begin("making the file", size);
        let file = TestFile::make(dir, size, options.seed, run.cancel, |bytes| run.progress.step(bytes))?;
        // From here on, the pages that are read are those of the cgroup.
        let _limited = match limited(&file, limit)? {
            Ok(limited) => limited,
            Err(why) => {
                run.report.note(Code::CaseLeftOut, format!("{table} is left out: {why}"));
                return Ok(());
            }
        };
        let text = format!("{table}: a file of {} MiB, in a cgroup that allows {} MiB", size >> 20, limit >> 20);
        run.report.note(Code::MemoryLimit, text);
        read_popular(&file, options.seed, limit / PAGE, run.cancel)?;
        self.0.measure_on(&file, self, &Self::cases(options), run, as_it_is)
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a read", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[HITS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn cases_are_named_by_exponent_and_depth() {
        let names: Vec<String> = Zipf::cases(&Options::new(true, 1)).into_iter().map(|case| case.name).collect();
        assert_eq!(names[..2], ["s=0.99 depth=1", "s=0.99 depth=64"]);
        assert_eq!(names.len(), 4);
        let small = Options { size: Some(1 << 20), ..Options::new(true, 1) };
        assert_eq!(ZIPF.check(&small).unwrap_err().kind(), ErrorKind::Usage);
    }
}
