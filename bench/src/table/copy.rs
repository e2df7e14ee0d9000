//! The table `copy`: a large file, or a tree of small ones, copied by a command, from cold, until
//! the copy is on stable storage.
//!
//! Sources are cold, verified; of a tree inodes and names, too, where the machine's caches may be
//! dropped. On a file system in memory nothing is cold, and the case is called hot. The copy goes
//! to a name that is not there, in the same directory or that of `--to`, and is removed after the
//! round.
//!
//! The bytes of each way are compared once in each case, all of them; after a timed round, samples.
//! Pages of source and copy that are then in the page cache are counted: most commands leave both.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::columns::{Column, Grid, own};
use super::{Bench, Case, Run, Table, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::environment::Environment;
use crate::machine::original::{Folder, Original};
use crate::machine::space::require_room;
use crate::machine::testfile;
use crate::machine::tree::Tree;
use crate::measure::meter::{Figure, Sample};
use crate::measure::options::{Copied, Options};
use crate::measure::progress::Plan;
use crate::measure::turn::{Place, Stage, Turn, alone};
use crate::measure::work::CopyJob;
use crate::report::figures::mib;
use crate::report::notes::Code;
use crate::ways::{self, CopyWay, Part};

pub static COPY: Table = Table {
    name: "copy",
    about: "A large file and a tree of small ones copied by nowait copy, cp, dd, rsync, xcp, fcp and cpz",
    title: "copy: a file or a tree copied by a command, until it is on stable storage; MiB/s",
    unit: "MiB/s",
    compared: |row| mib(row.bytes_per_s),
    takes: &["--copies", "--to"],
    writes_into: |options| {
        let largest = kinds(options).into_iter().map(|kind| source_bytes(kind, options)).max()?;
        Some((largest, "at most, made for this run, random data, written and synced; and a copy of it"))
    },
    cases: |options| {
        let made = Made::default();
        let case = |kind: Copied| {
            // Whether files of the two places can share blocks is known when they are there.
            let mut ways = ways::copiers(options.roster);
            ways.retain(|way| way.suits(kind, true) || way.suits(kind, false));
            let refused: Vec<Option<String>> = ways.iter().map(|way| way.refused()).collect();
            let made = made.clone();
            let guess = Duration::from_secs_f64(0.1 + 2.0 * Plan::writing_s(source_bytes(kind, options)));
            let open = move |ways, run: &mut Run<'_>| Copies::open(ways, kind, made, run);
            Case::new(kind.name(), ways, Work::Exactly(1, guess), open).refusing(refused).in_directory()
        };
        kinds(options).into_iter().map(case).collect()
    },
    grids: &[Grid {
        name: "a copy",
        is_detail: false,
        columns: &[
            Column { name: "ms", cell: |row| own(row, "copy_ms", 1) },
            Column { name: "command ms", cell: |row| own(row, "returned_ms", 1) },
            Column { name: "CPU ms", cell: |row| own(row, "cpu_ms", 1) },
            Column { name: "machine CPU ms", cell: |row| own(row, "machine_cpu_ms", 0) },
            Column { name: "source pages", cell: |row| own(row, "source_pages_cached", 0) },
            Column { name: "copy pages", cell: |row| own(row, "copy_pages_cached", 0) },
            Column {
                name: "metadata",
                cell: |row| Some(if row.own.get("keeps_metadata")?.as_bool()? { "kept" } else { "lost" }.to_owned()),
            },
        ],
    }],
    ..Table::USUAL
};

const LENGTHS: std::ops::RangeInclusive<u64> = 1..=16 << 10;

fn kinds(options: &Options) -> Vec<Copied> {
    let asked = |kind: &Copied| options.copies.is_empty() || options.copies.contains(kind);
    Copied::ALL.into_iter().filter(asked).collect()
}

/// Small files of the tree.
fn files(options: &Options) -> u64 {
    options.files.unwrap_or(if options.quick { 500 } else { 5000 })
}

/// Most bytes of one source.
fn source_bytes(kind: Copied, options: &Options) -> u64 {
    match kind {
        Copied::Tree => files(options) * LENGTHS.end(),
        _ => options.size.unwrap_or(if options.quick { 64 << 20 } else { 2 << 30 }),
    }
}

/// The source that exists, and whether it is the tree: one at a time.
type Made = Rc<RefCell<Option<(bool, Rc<Original>)>>>;

fn original(kind: Copied, made: &Made, run: &mut Run<'_>) -> Result<Rc<Original>> {
    let (mut made, is_tree) = (made.borrow_mut(), kind == Copied::Tree);
    if let Some((_, original)) = made.as_ref().filter(|(tree, _)| *tree == is_tree) {
        return Ok(original.clone());
    }
    made.take();
    let (dir, seed, cancel, course) = (&run.options.dir, run.options.seed, run.cancel, &mut *run.course);
    let (bytes, files) = (source_bytes(kind, run.options), files(run.options));
    let original = if is_tree {
        course.begin("making files", Plan::writing_s(bytes), bytes);
        Original::tree(Tree::make(dir, files, LENGTHS, seed, cancel, |bytes| course.step(bytes))?)
    } else {
        course.begin("making the file", Plan::writing_s(bytes), bytes);
        Original::file(dir, bytes, seed, cancel, |bytes| course.step(bytes))?
    };
    Ok(made.insert((is_tree, Rc::new(original))).1.clone())
}

/// One case, ready to be measured.
struct Copies {
    ways: Vec<Part<dyn CopyWay>>,
    kind: Copied,
    original: Rc<Original>,
    place: String,
    shares: bool,
    is_cold: bool,
    copy: PathBuf,
    _folder: Folder,
}

impl Copies {
    fn open(ways: Vec<Part<dyn CopyWay>>, kind: Copied, made: Made, run: &mut Run<'_>) -> Result<Option<Self>> {
        let options = run.options;
        let (dir, bytes) = (&*options.dir, source_bytes(kind, options));
        let to = options.to.as_deref().unwrap_or(dir);
        let folder = Folder::make(to)?;
        let is_there = made.borrow().is_some();
        let device = |path: &Path| Ok(fs::metadata(path).map_err(|error| Error::io("stat", path, &error))?.dev());
        let sources = if device(dir)? == device(to)? && !is_there { 2 } else { 1 };
        require_room(bytes, "--size", to)?;
        require_room(if is_there { 0 } else { sources * bytes }, "--size", dir)?;
        let shares = shares_blocks(dir, to)?;
        if kind == Copied::Reflink && !shares {
            let text = format!("copy reflink: files of {} and {} cannot share blocks", dir.display(), to.display());
            run.report.note(Code::CaseLeftOut, text);
            return Ok(None);
        }
        let original = original(kind, &made, run)?;
        let is_cold = match original.make_cold(false) {
            Err(error) if error.kind() == ErrorKind::NotCold => false,
            cold => cold.map(|()| true)?,
        };
        let file_system = |path: &Path| Environment::of(path).filesystem.unwrap_or_else(|| "unknown".to_owned());
        let state = if is_cold { "cold" } else { "hot" };
        let place = format!("{state} from={} to={}", file_system(dir), file_system(to));
        let copy = folder.path().join("copy");
        Ok(Some(Self { ways, kind, original, place, shares, is_cold, copy, _folder: folder }))
    }

    /// Off the clock, and so that the next round does not pay for it.
    fn remove_copy(&self) -> Result<()> {
        let removed = match fs::symlink_metadata(&self.copy) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(about) if about.is_dir() => fs::remove_dir_all(&self.copy),
            _ => fs::remove_file(&self.copy),
        };
        let synced = removed.and_then(|()| {
            let parent = self.copy.parent().map_or_else(|| File::open("."), File::open)?;
            Ok(rustix::fs::syncfs(parent)?)
        });
        synced.map_err(|error| Error::io("remove", &self.copy, &error))
    }
}

/// Whether a file in one directory can share the blocks of a file in the other.
fn shares_blocks(from: &Path, to: &Path) -> Result<bool> {
    let (from, to) = (testfile::create_nameless(from)?, testfile::create_nameless(to)?);
    Ok(rustix::fs::ioctl_ficlone(to, from).is_ok())
}

impl Bench for Copies {
    fn named(&self, name: &str) -> String {
        format!("{name} {}", self.place)
    }

    fn takes(&self, index: usize) -> bool {
        self.ways[index].suits(self.kind, self.shares)
    }

    fn prepare(&mut self, _: &Place<'_>, _: Stage, _: usize) -> Result<()> {
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (original, copy, way) = (&*self.original, &self.copy, self.ways[turn.index]);
        self.remove_copy()?;
        if self.is_cold {
            original.make_cold(turn.options.drop_caches)?;
        } else {
            original.make_hot()?;
        }
        let (from, files, bytes) = (original.path(), original.files(), original.bytes());
        let job = CopyJob { kind: self.kind, from: &from, to: copy, files, bytes, cancel: turn.cancel };
        let outcome = alone(None, |round| ways::copy(way.work, &job, round));
        let failed = |error| turn.failed_or_full(&error, bytes, "--size", copy);
        let (mut sample, returned) = turn.sample(outcome, failed)?;
        turn.require("files", &sample, (files, bytes))?;

        // Before they are read to be compared.
        let source_pages = original.cached_pages(&from)?;
        let copy_pages = original.cached_pages(copy)?;
        if let Some(wrong) = original.difference(copy, turn.verifies())? {
            return Err(turn.failed(wrong));
        }
        let kept = original.keeps_metadata(copy).map_err(|error| turn.failed(error))?;
        self.remove_copy()?;
        // From the start of the command until its copy is on stable storage, and to its own end.
        sample.tell("copy_ms", Figure::median(sample.seconds * 1e3));
        sample.tell("returned_ms", Figure::median(returned.as_secs_f64() * 1e3));
        // Of the command and its ring's workers; and of all processors, with it, what writes back.
        sample.tell("cpu_ms", Figure::median(sample.usage.cpu_us() / 1e3));
        if let Some(machine_us) = sample.machine_us {
            sample.tell("machine_cpu_ms", Figure::median(machine_us / 1e3));
        }
        sample.tell("source_pages_cached", Figure::median(source_pages as f64));
        sample.tell("copy_pages_cached", Figure::median(copy_pages as f64));
        sample.tell("keeps_metadata", Figure::Always(kept));
        Ok(sample)
    }
}
