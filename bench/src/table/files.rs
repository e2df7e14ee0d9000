//! The table `files`: many small files, each opened, read to its end and closed.
//!
//! The measured time is from the names of the files until all their bytes are in memory. A way
//! knows the maximum length of a file, not the length of each. All ways read the same files in the
//! same random order, hot or cold. For `cold`, the kernel also drops inodes, names and file system
//! metadata. This needs root, and drops the caches of the whole machine. Without root, `data-cold`
//! drops only the pages of the files.

use std::cell::OnceCell;
use std::ops::RangeInclusive;

use super::*;
use crate::machine::tree::Tree;
use crate::measure::work::SmallFiles;
use crate::ways::FileWay;

pub static FILES: Table = Table {
    name: "files",
    about: "Small files opened, read and closed, cold and hot",
    title: "files: small files opened, read whole and closed; files/s",
    takes: &["depths"],
    writes_into: |options| Some((bytes(options), "at most, in small files made for this run, written and synced")),
    cases,
    grids: &[Grid { name: "a file", is_detail: false, columns: &[P50, P99, P999, CPU, SWITCHES] }],
    ..Table::USUAL
};

const LENGTHS: RangeInclusive<u64> = 4 << 10..=16 << 10;
/// Maximum duration of a round at average speed; a shorter round of a full run reads all files.
const LONGEST_ROUND: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TreeState {
    /// Inodes and names are cold, too.
    Cold,
    DataCold,
    Hot,
}

fn files(options: &Options) -> u64 {
    options.files.unwrap_or(if options.quick { 3_000 } else { 100_000 })
}

fn bytes(options: &Options) -> u64 {
    files(options) * LENGTHS.end()
}

fn cases(options: &Options) -> Vec<Case> {
    // The files, which the first case creates.
    let made: Rc<OnceCell<Tree>> = Rc::default();
    let cold = if options.drop_caches { (TreeState::Cold, "cold") } else { (TreeState::DataCold, "data-cold") };
    let time = if options.quick { options.round_time } else { LONGEST_ROUND };
    let mut cases = Vec::new();
    for (state, name) in [cold, (TreeState::Hot, "hot")] {
        for depth in options.or_usual(&options.depths, &[1, 16], &[1, 16, 64]) {
            let ways = ways::filers(options.roster);
            let refused: Vec<Option<String>> = ways.iter().map(|way| way.refused()).collect();
            let tree = made.clone();
            let open = move |ways, run: &mut Run<'_>| {
                make(&tree, run)?;
                Ok(Some(FileCase { ways, state, depth, tree, files: Arc::default() }))
            };
            let case = Case::new(format!("{name} depth={depth}"), ways, Work::For(time), open);
            cases.push(case.refusing(refused).in_directory());
        }
    }
    cases
}

/// Creates the files, if they do not exist.
fn make(tree: &OnceCell<Tree>, run: &mut Run<'_>) -> Result<()> {
    if tree.get().is_some() {
        return Ok(());
    }
    if !run.options.drop_caches {
        let text =
            "files: data-cold drops only pages, not inodes and names; as root, name the table without --quick for both";
        run.report.note_once(Code::InodesWarm, text);
    }
    let (options, course, bytes) = (run.options, &mut *run.course, bytes(run.options));
    require_room(bytes, "run (--quick)", &options.dir)?;
    course.begin("making files", Plan::writing_s(bytes), bytes);
    let step = |bytes| course.step(bytes);
    let made = Tree::make(&options.dir, files(options), LENGTHS, options.seed, run.cancel, step)?;
    tree.get_or_init(|| made);
    Ok(())
}

/// One case, ready to be measured.
struct FileCase {
    ways: Vec<Part<dyn FileWay>>,
    state: TreeState,
    depth: usize,
    tree: Rc<OnceCell<Tree>>,
    /// The same files for all ways of a round.
    files: Arc<[(u64, PathBuf)]>,
}

impl FileCase {
    fn tree(&self) -> &Tree {
        self.tree.get().expect("the case made it when it was opened")
    }
}

impl Bench for FileCase {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let (mut random, count) = (stage.random(place.options.seed), operations.max(2 * self.depth));
        let numbers = random.permutation(self.tree().files()).into_iter().take(count);
        self.files = numbers.map(|number| (number, self.tree().path(number))).collect();
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (tree, files, depth) = (self.tree(), &self.files, self.depth);
        let numbers = files.iter().map(|(number, _)| *number);
        match self.state {
            TreeState::Hot => tree.make_hot(numbers.clone())?,
            TreeState::DataCold => tree.make_cold(numbers.clone())?,
            TreeState::Cold => {
                tree.make_cold(numbers.clone())?;
                tree.forget_inodes(numbers.clone())?;
            }
        }
        let matches = |place: u64, bytes: &[u8]| tree.matches(place, bytes);
        let job = SmallFiles { files, len_max: *LENGTHS.end() as usize, depth, cancel: turn.cancel };
        let outcome = alone(turn.check(&matches), |round| self.ways[turn.index].whole(&job, round));
        let (sample, ()) = turn.sample(outcome, |error| turn.failed(error))?;
        if let Some(place) = sample.wrong {
            return Err(turn.failed(format!("it returned wrong bytes of file {}", place >> 32)));
        }
        let bytes = numbers.map(|number| tree.len_of(number)).sum();
        turn.require("files", &sample, (files.len() as u64, bytes))?;
        turn.require_checksums(&sample.sampled, |place, len| Ok(tree.checksum(place, len)))?;
        Ok(sample)
    }
}
