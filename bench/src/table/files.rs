//! The table `files`: many small files, each opened, read to its end and closed; and random reads
//! of hundreds of open files by thousands of tasks.
//!
//! Compared is the time from the names of the files to the bytes of all of them in memory; and from
//! places in open files to a block of each. Ways do not know how long a file is, only what no file
//! exceeds. All read the same files in the same random order, hot or cold. `cold` has the inodes
//! and names forgotten, too, and what describes them on the disk: that takes root, and drops the
//! caches of the whole machine. Without it `data-cold` drops the files' own pages.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::columns::{Column, Grid, Line, P50, P99, P999, cpu, every};
use super::new_file::{free_bytes, require_room};
use super::{Phase, Run, Table, chosen, names, operations_in, require_ways, rows, usage};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile;
use crate::machine::tree::Tree;
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Sample};
use crate::measure::options::Options;
use crate::measure::progress::Plan;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Buffer, SmallFiles, Spread};
use crate::report::Row;
use crate::report::notes::Code;
use crate::sys;
use crate::ways::{self, FileWay, Part, Roster, WAYS};

pub struct Files {
    pub ways: Roster,
    pub sizes: Sizes,
}

/// Numbers of files, and their lengths.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub small: u64,
    pub quick_small: u64,
    pub open: u64,
    pub quick_open: u64,
    pub open_len: u64,
    pub quick_open_len: u64,
    /// Tasks that read the open files.
    pub tasks: usize,
    pub quick_tasks: usize,
}

impl Sizes {
    pub const USUAL: Self = Self {
        small: 100_000,
        quick_small: 3_000,
        open: 256,
        quick_open: 128,
        open_len: 2 << 20,
        quick_open_len: 256 << 10,
        tasks: 4000,
        quick_tasks: 1000,
    };
}

pub static FILES: Files = Files { ways: WAYS, sizes: Sizes::USUAL };

const LENGTHS: std::ops::RangeInclusive<u64> = 4 << 10..=16 << 10;
const BLOCK: usize = 4 << 10;
const DEPTHS: [usize; 3] = [1, 16, 64];
const QUICK_DEPTHS: [usize; 2] = [1, 16];

/// Operations that are verified, and that tell a way's speed.
const VERIFIED: usize = 256;
const WARM_UP: usize = 1024;
/// A round of a full run takes all files, unless it would be longer than this at a middling speed.
const LONGEST_ROUND: Duration = Duration::from_secs(20);

const COLUMNS: &[Column] = &[
    P50,
    P99,
    P999,
    Column { name: "CPU µs", cell: cpu },
    Column { name: "csw", cell: |row| Some(format!("{:.2}", row.context_switches_per_op)) },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// With inodes and names.
    Cold,
    DataCold,
    Hot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Whole,
    Spread,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::DataCold => "data-cold",
            Self::Hot => "hot",
        }
    }
}

impl Files {
    /// Small files, open files, the length of one of these, and the tasks that read them.
    fn sizes(&self, options: &Options) -> (u64, u64, u64, usize) {
        let Sizes { small, quick_small, open, quick_open, open_len, quick_open_len, tasks, quick_tasks } = self.sizes;
        match options.quick {
            true => (quick_small, quick_open, quick_open_len, quick_tasks),
            false => (small, open, open_len, tasks),
        }
    }

    fn depths(options: &Options) -> Vec<usize> {
        options.or_usual(&options.depths, &QUICK_DEPTHS, &DEPTHS)
    }

    fn bytes(&self, options: &Options) -> u64 {
        let (small, open, open_len, _) = self.sizes(options);
        small * LENGTHS.end() + open * open_len
    }
}

impl Table for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn about(&self) -> &'static str {
        "Small files opened, read and closed, cold and hot; and hundreds of open files read by thousands of tasks"
    }

    fn title(&self) -> &'static str {
        "files: small files opened, read whole and closed; 4 KiB of open files at random; operations/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::filers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths"]
    }

    fn toured(&self) -> bool {
        false
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file names one file; leave it out of files"));
        }
        require_ways(self.name(), &ways::filers(self.ways), options)
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((self.bytes(options), "at most, in small files made for this run, written and synced"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        let cases = 2 * (Self::depths(options).len() + 1);
        vec![chosen(&ways::filers(self.ways), options).len(); cases]
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Directory {
            return Ok(());
        }
        let (options, dir) = (run.options, run.dir);
        let (small, open, open_len, tasks) = self.sizes(options);
        require_room(free_bytes(&testfile::create_nameless(dir)?, dir)?, self.bytes(options), "run (--quick)", dir)?;
        let noted = |way: &str| format!("files: {way}");
        let refused = |part: Part<dyn FileWay>| (part.way.refused)().or_else(|| part.refused());
        let ways = run.usable_as(&ways::filers(self.ways), noted, refused);
        let cold = if options.drop_caches { State::Cold } else { State::DataCold };
        if cold == State::DataCold {
            let text =
                "files: inodes and names stayed in memory where bytes were cold; root, without --quick, drops them";
            run.report.note(Code::InodesWarm, text);
        }
        let whole = Self::depths(options).into_iter();
        let whole = [cold, State::Hot].into_iter().flat_map(|state| whole.clone().map(move |depth| (state, depth)));
        self.cases(Work::Whole, small, LENGTHS, whole.collect(), &ways, run)?;
        // Open files have their inodes in memory.
        let spread = vec![(State::DataCold, tasks), (State::Hot, tasks)];
        self.cases(Work::Spread, open, open_len..=open_len, spread, &ways, run)
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] =
            &[Grid::Rows { name: "a file, or a block", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }
}

impl Files {
    /// Makes files, and measures cases with them.
    fn cases(
        &self,
        work: Work,
        files: u64,
        lengths: std::ops::RangeInclusive<u64>,
        cases: Vec<(State, usize)>,
        ways: &[Part<dyn FileWay>],
        run: &mut Run<'_>,
    ) -> Result<()> {
        let (table, options, cancel) = (self.name(), run.options, run.cancel);
        run.course.begin("making files", Plan::writing_s(files * lengths.end()), files);
        let tree = Tree::make(run.dir, files, lengths, options.seed, cancel, |files| run.course.step(files))?;
        for (state, depth) in cases {
            let name = match work {
                Work::Whole => format!("{} depth={depth}", state.name()),
                Work::Spread => format!("open={files} {} depth={depth}", state.name()),
            };
            let open = match work {
                Work::Whole => Vec::new(),
                Work::Spread => (0..files).map(|number| opened(&tree, number)).collect::<Result<_>>()?,
            };
            let (count, inputs) = (VERIFIED, Inputs::default());
            let mut bench =
                Bench { table, ways, name, work, state, depth, tree: &tree, open, options, cancel, count, inputs };
            let name = bench.name.clone();
            let timed = match run.case(table, &name, ways, &mut bench) {
                Err(error) if error.kind() == ErrorKind::NotCold => {
                    run.report.note(Code::CaseLeftOut, format!("{table} {name}: {error}"));
                    continue;
                }
                timed => timed?,
            };
            let rows: Vec<Row> = rows(table, &bench.name, ways, &timed);
            run.report.rows.extend(rows);
        }
        Ok(())
    }
}

/// Without readahead.
fn opened(tree: &Tree, number: u64) -> Result<Arc<std::fs::File>> {
    let file = tree.open(number)?;
    sys::expect_random(&file).map_err(|error| Error::io("fadvise RANDOM on", &tree.path(number), &error))?;
    Ok(Arc::new(file))
}

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    ways: &'a [Part<dyn FileWay>],
    name: String,
    work: Work,
    state: State,
    depth: usize,
    tree: &'a Tree,
    open: Vec<Arc<std::fs::File>>,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Operations of a timed round.
    count: usize,
    inputs: Inputs,
}

/// The same for every way of a round.
#[derive(Default)]
struct Inputs {
    files: Arc<[(u64, PathBuf)]>,
    places: Arc<[(u32, u64)]>,
    bytes: u64,
}

impl interleave::Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn prepare(&mut self, stage: Stage) {
        let count = match stage {
            Stage::Verify => VERIFIED,
            Stage::WarmUp => WARM_UP,
            Stage::Timed(_) => self.count,
        };
        let (mut random, count) = (stage.random(self.options.seed), count.max(2 * self.depth));
        self.inputs = match self.work {
            Work::Whole => {
                let numbers: Vec<u64> = random.permutation(self.tree.files()).into_iter().take(count).collect();
                let bytes = numbers.iter().map(|&number| self.tree.len_of(number)).sum();
                let files = numbers.into_iter().map(|number| (number, self.tree.path(number))).collect();
                Inputs { files, bytes, ..Inputs::default() }
            }
            Work::Spread => {
                let of_file = self.tree.len_max() / BLOCK as u64;
                let places = random.permutation(self.tree.files() * of_file).into_iter();
                let place = |place: u64| ((place / of_file) as u32, place % of_file * BLOCK as u64);
                // Each once, or round and round where all are hot.
                let places: Arc<[(u32, u64)]> = match self.state {
                    State::Hot => places.cycle().take(count).map(place).collect(),
                    _ => places.take(count).map(place).collect(),
                };
                Inputs { bytes: (places.len() * BLOCK) as u64, places, ..Inputs::default() }
            }
        };
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.make_state()?;
        self.turn(self.ways[way], stage == Stage::Verify)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if stage == Stage::WarmUp {
            let time = match (self.options.quick, self.work) {
                (false, Work::Whole) => LONGEST_ROUND,
                _ => self.options.round_time,
            };
            self.count = operations_in(time, samples);
        }
    }
}

impl Bench<'_> {
    fn make_state(&self) -> Result<()> {
        let whole = self.inputs.files.iter().map(|(number, _)| *number);
        let open = 0..self.open.len() as u64;
        match (self.state, self.work) {
            (State::Hot, Work::Whole) => self.tree.make_hot(whole),
            (State::Hot, Work::Spread) => self.tree.make_hot(open),
            (_, Work::Spread) => self.tree.make_cold(open),
            (State::DataCold, Work::Whole) => self.tree.make_cold(whole),
            (State::Cold, Work::Whole) => {
                self.tree.make_cold(whole.clone())?;
                self.tree.forget_inodes(whole)
            }
        }
    }

    /// One way, once.
    fn turn(&self, way: Part<dyn FileWay>, verify: bool) -> Result<Sample> {
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let (depth, cancel, Inputs { files, places, bytes }) = (self.depth, self.cancel, &self.inputs);
        let whole = self.work == Work::Whole;
        let matches = |place: u64, bytes: &[u8]| self.tree.matches(place, bytes, whole);
        let check: Option<&Check<'_>> = if verify { Some(&matches) } else { None };
        let (outcome, operations) = match self.work {
            Work::Whole => {
                let job = SmallFiles { files, len_max: self.tree.len_max() as usize, depth, cancel };
                (alone(check, |round| way.whole(&job, round)), files.len())
            }
            Work::Spread => {
                let job = Spread { files: &self.open, places, block: BLOCK, depth, cancel };
                let mut buffer = Buffer::new(BLOCK * depth);
                (alone(check, |round| way.spread(&job, buffer.bytes(), round)), places.len())
            }
        };
        let (sample, ()) = turn.sample(outcome, |error| turn.failed(error))?;
        if let Some(place) = sample.wrong {
            return Err(turn.failed(format!("it returned wrong bytes of file {}", place >> 32)));
        }
        turn.require("reads", &sample, (operations as u64, *bytes))?;
        turn.require_checksums(&sample.sampled, |place, len| Ok(self.tree.checksum(place, len)))?;
        Ok(sample)
    }
}
