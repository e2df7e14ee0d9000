//! The table `files`: many small files, each opened, read to its end and closed; and random reads
//! of hundreds of open files by thousands of tasks.
//!
//! Compared is the time from the names of the files to the bytes of all of them in memory; and from
//! places in open files to a block of each. Ways do not know how long a file is, only what no file
//! exceeds. All read the same files in the same random order, hot or cold. `cold` has the inodes
//! and names forgotten, too, and what describes them on the disk: that takes root, and drops the
//! caches of the whole machine. Without it `data-cold` drops the files' own pages.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::columns::{CPU, Grid, P50, P99, P999, SWITCHES};
use super::{Bench, Case, Run, Table, Work, open_for_random};
use crate::error::Result;
use crate::machine::space::require_room;
use crate::machine::tree::Tree;
use crate::measure::meter::Sample;
use crate::measure::options::Options;
use crate::measure::progress::Plan;
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::{Buffer, SmallFiles, Spread};
use crate::report::notes::Code;
use crate::ways::{self, FileWay, Part};

pub static FILES: Table = Table {
    name: "files",
    about: "Small files opened, read and closed, cold and hot; and hundreds of open files read by thousands of tasks",
    title: "files: small files opened, read whole and closed; 4 KiB of open files at random; operations/s",
    takes: &["--depths"],
    writes_into: |options| {
        let (small, open) = (Kind::small(options).bytes(), Kind::open(options).bytes());
        Some((small + open, "at most, in small files made for this run, written and synced"))
    },
    cases,
    grids: &[Grid { name: "a file, or a block", is_detail: false, columns: &[P50, P99, P999, CPU, SWITCHES] }],
    ..Table::USUAL
};

const BLOCK: usize = 4 << 10;
/// A round of a full run takes all files, unless it would be longer than this at a middling speed.
const LONGEST_ROUND: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// With inodes and names.
    Cold,
    DataCold,
    Hot,
}

/// Files that are read: whole, or blocks of those that are open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    whole: bool,
    files: u64,
    lengths: RangeInclusive<u64>,
}

impl Kind {
    fn small(options: &Options) -> Self {
        let files = options.files.unwrap_or(if options.quick { 3_000 } else { 100_000 });
        Self { whole: true, files, lengths: 4 << 10..=16 << 10 }
    }

    fn open(options: &Options) -> Self {
        let (files, len) = if options.quick { (128, 256 << 10) } else { (256, 2 << 20) };
        Self { whole: false, files: options.files.map_or(files, |small| files.min(small)), lengths: len..=len }
    }

    fn bytes(&self) -> u64 {
        self.files * self.lengths.end()
    }
}

/// The files that exist: those of one kind at a time.
type Made = Rc<RefCell<Option<(Kind, Arc<Tree>)>>>;

fn cases(options: &Options) -> Vec<Case> {
    let made = Made::default();
    let (small, open) = (Kind::small(options), Kind::open(options));
    let case = |name: String, kind: &Kind, state, depth: usize| {
        let ways = ways::filers(options.roster);
        let refused: Vec<Option<String>> = ways.iter().map(|way| way.refused()).collect();
        let long = kind.whole && !options.quick;
        let time = if long { LONGEST_ROUND } else { options.round_time };
        let (kind, made) = (kind.clone(), made.clone());
        let open = move |ways, run: &mut Run<'_>| {
            let tree = tree(&kind, &made, run)?;
            let path = |number| tree.path(number);
            let open = |number| Ok(Arc::new(open_for_random(OpenOptions::new().read(true), &path(number))?));
            let open = if kind.whole { Vec::new() } else { (0..kind.files).map(open).collect::<Result<_>>()? };
            Ok(Some(Reading { ways, kind, state, depth, tree, open, inputs: Inputs::default() }))
        };
        Case::new(name, ways, Work::For(time), open).refusing(refused).in_directory().if_cold()
    };
    let mut cases = Vec::new();
    let cold = if options.drop_caches { (State::Cold, "cold") } else { (State::DataCold, "data-cold") };
    for (state, name) in [cold, (State::Hot, "hot")] {
        for depth in options.or_usual(&options.depths, &[1, 16], &[1, 16, 64]) {
            cases.push(case(format!("{name} depth={depth}"), &small, state, depth));
        }
    }
    // Open files have their inodes in memory.
    for (state, name) in [(State::DataCold, "data-cold"), (State::Hot, "hot")] {
        let tasks = options.files.map_or(if options.quick { 1000 } else { 4000 }, |small| small as usize);
        cases.push(case(format!("open={} {name} depth={tasks}", open.files), &open, state, tasks));
    }
    cases
}

/// The files of this kind. Those of another are removed before.
fn tree(kind: &Kind, made: &Made, run: &mut Run<'_>) -> Result<Arc<Tree>> {
    let mut made = made.borrow_mut();
    if let Some((_, tree)) = made.as_ref().filter(|(is, _)| is == kind) {
        return Ok(tree.clone());
    }
    if !run.options.drop_caches {
        let text = "files: inodes and names stayed in memory where bytes were cold; root, without --quick, drops them";
        run.report.note_once(Code::InodesWarm, text);
    }
    made.take();
    let (dir, seed, course) = (&run.options.dir, run.options.seed, &mut *run.course);
    require_room(kind.bytes(), "run (--quick)", dir)?;
    course.begin("making files", Plan::writing_s(kind.bytes()), kind.bytes());
    let tree = Tree::make(dir, kind.files, kind.lengths.clone(), seed, run.cancel, |bytes| course.step(bytes))?;
    Ok(made.insert((kind.clone(), Arc::new(tree))).1.clone())
}

/// One case, ready to be measured.
struct Reading {
    ways: Vec<Part<dyn FileWay>>,
    kind: Kind,
    state: State,
    depth: usize,
    tree: Arc<Tree>,
    open: Vec<Arc<File>>,
    inputs: Inputs,
}

/// The same for every way of a round.
#[derive(Default)]
struct Inputs {
    files: Arc<[(u64, PathBuf)]>,
    places: Arc<[(u32, u64)]>,
    bytes: u64,
}

impl Reading {
    fn make_state(&self) -> Result<()> {
        let whole = self.inputs.files.iter().map(|(number, _)| *number);
        let open = 0..self.open.len() as u64;
        match (self.state, self.kind.whole) {
            (State::Hot, true) => self.tree.make_hot(whole),
            (State::Hot, false) => self.tree.make_hot(open),
            (_, false) => self.tree.make_cold(open),
            (State::DataCold, true) => self.tree.make_cold(whole),
            (State::Cold, true) => {
                self.tree.make_cold(whole.clone())?;
                self.tree.forget_inodes(whole)
            }
        }
    }
}

impl Bench for Reading {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let (mut random, count) = (stage.random(place.options.seed), operations.max(2 * self.depth));
        if self.kind.whole {
            let numbers: Vec<u64> = random.permutation(self.tree.files()).into_iter().take(count).collect();
            let bytes = numbers.iter().map(|&number| self.tree.len_of(number)).sum();
            let files = numbers.into_iter().map(|number| (number, self.tree.path(number))).collect();
            self.inputs = Inputs { files, bytes, ..Inputs::default() };
            return Ok(());
        }
        let of_file = self.tree.len_max() / BLOCK as u64;
        let places = random.permutation(self.tree.files() * of_file).into_iter();
        let place = |place: u64| ((place / of_file) as u32, place % of_file * BLOCK as u64);
        // Each once, or round and round where all are hot.
        let places: Arc<[(u32, u64)]> = match self.state {
            State::Hot => places.cycle().take(count).map(place).collect(),
            _ => places.take(count).map(place).collect(),
        };
        self.inputs = Inputs { bytes: (places.len() * BLOCK) as u64, places, ..Inputs::default() };
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        self.make_state()?;
        let (way, depth, cancel) = (self.ways[turn.index], self.depth, turn.cancel);
        let Inputs { files, places, bytes } = &self.inputs;
        let matches = |place: u64, bytes: &[u8]| self.tree.matches(place, bytes, self.kind.whole);
        let check = turn.check(&matches);
        let outcome = if self.kind.whole {
            let job = SmallFiles { files, len_max: self.tree.len_max() as usize, depth, cancel };
            alone(check, |round| way.whole(&job, round))
        } else {
            let job = Spread { files: &self.open, places, block: BLOCK, depth, cancel };
            let mut buffer = Buffer::new(BLOCK * depth);
            alone(check, |round| way.spread(&job, buffer.bytes(), round))
        };
        let (sample, ()) = turn.sample(outcome, |error| turn.failed(error))?;
        if let Some(place) = sample.wrong {
            return Err(turn.failed(format!("it returned wrong bytes of file {}", place >> 32)));
        }
        turn.require("reads", &sample, ((files.len() + places.len()) as u64, *bytes))?;
        turn.require_checksums(&sample.sampled, |place, len| Ok(self.tree.checksum(place, len)))?;
        Ok(sample)
    }
}
