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

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, Line, every};
use super::new_file::{free_bytes, no_room, require_room};
use super::{Phase, Run, Table, chosen, names, require_ways, usage};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::environment::Environment;
use crate::machine::original::{Folder, Original};
use crate::machine::testfile;
use crate::machine::tree::Tree;
use crate::measure::interleave::{Case, Stage};
use crate::measure::meter::Sample;
use crate::measure::options::{Copied, Options};
use crate::measure::progress::Plan;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::CopyJob;
use crate::report::figures::mib;
use crate::report::notes::Code;
use crate::report::{Row, median};
use crate::ways::{self, CopyWay, Part, Roster, WAYS};

pub struct Copies {
    pub ways: Roster,
    pub sizes: Sizes,
}

/// Size of the large file, and number of small ones.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub bytes: u64,
    pub quick_bytes: u64,
    pub files: u64,
    pub quick_files: u64,
}

pub static COPY: Copies =
    Copies { ways: WAYS, sizes: Sizes { bytes: 2 << 30, quick_bytes: 64 << 20, files: 5000, quick_files: 500 } };

const LENGTHS: std::ops::RangeInclusive<u64> = 1..=16 << 10;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// From the start of the command until its copy is on stable storage, the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_ms: Option<f64>,
    /// From the start of the command to its end, the median. The rest is the sync.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned_ms: Option<f64>,
    /// Processor time of the command, and of its ring's workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<f64>,
    /// Busy time of all processors in the meantime, the median: with it, what writes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_cpu_ms: Option<f64>,
    /// Pages in the page cache after a round, the medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_pages_cached: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_pages_cached: Option<f64>,
    /// Whether modes, owners and modification times are those of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keeps_metadata: Option<bool>,
}

/// Results of a way's rounds besides their samples.
#[derive(Default, Clone)]
struct Left {
    returned: Vec<Duration>,
    source_pages: Vec<u64>,
    copy_pages: Vec<u64>,
    keeps_metadata: Option<bool>,
}

impl Figures {
    fn of(samples: &[Sample], left: &Left) -> Self {
        let of = |values: Vec<f64>| (!values.is_empty()).then(|| median(&values));
        let pages = |pages: &[u64]| of(pages.iter().map(|&pages| pages as f64).collect());
        Self {
            copy_ms: of(samples.iter().map(|sample| sample.seconds * 1e3).collect()),
            returned_ms: of(left.returned.iter().map(|time| time.as_secs_f64() * 1e3).collect()),
            cpu_ms: of(samples.iter().map(|sample| sample.usage.cpu_us() / 1e3).collect()),
            machine_cpu_ms: of(samples.iter().filter_map(|sample| Some(sample.machine_us? / 1e3)).collect()),
            source_pages_cached: pages(&left.source_pages),
            copy_pages_cached: pages(&left.copy_pages),
            keeps_metadata: left.keeps_metadata,
        }
    }
}

const COLUMNS: &[Column] = &[
    Column { name: "ms", cell: |row| Some(format!("{:.1}", row.figures::<Figures>().copy_ms?)) },
    Column { name: "command ms", cell: |row| Some(format!("{:.1}", row.figures::<Figures>().returned_ms?)) },
    Column { name: "CPU ms", cell: |row| Some(format!("{:.1}", row.figures::<Figures>().cpu_ms?)) },
    Column { name: "machine CPU ms", cell: |row| Some(format!("{:.0}", row.figures::<Figures>().machine_cpu_ms?)) },
    Column { name: "source pages", cell: |row| Some(format!("{:.0}", row.figures::<Figures>().source_pages_cached?)) },
    Column { name: "copy pages", cell: |row| Some(format!("{:.0}", row.figures::<Figures>().copy_pages_cached?)) },
    Column { name: "metadata", cell: metadata },
];

fn metadata(row: &Row) -> Option<String> {
    Some(if row.figures::<Figures>().keeps_metadata? { "kept" } else { "lost" }.to_owned())
}

impl Copies {
    fn kinds(options: &Options) -> Vec<Copied> {
        let asked = |kind: &Copied| options.copies.is_empty() || options.copies.contains(kind);
        Copied::ALL.into_iter().filter(asked).collect()
    }

    fn bytes(&self, options: &Options) -> u64 {
        options.size.unwrap_or(if options.quick { self.sizes.quick_bytes } else { self.sizes.bytes })
    }

    fn files(&self, options: &Options) -> u64 {
        if options.quick { self.sizes.quick_files } else { self.sizes.files }
    }

    /// Of one source.
    fn largest(&self, options: &Options) -> u64 {
        let of = |kind: &Copied| match kind {
            Copied::Tree => self.files(options) * LENGTHS.end(),
            _ => self.bytes(options),
        };
        Self::kinds(options).iter().map(of).max().unwrap_or(0)
    }
}

impl Table for Copies {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn about(&self) -> &'static str {
        "A large file and a tree of small ones copied by nowait copy, cp, dd, rsync, xcp, fcp and cpz"
    }

    fn title(&self) -> &'static str {
        "copy: a file or a tree copied by a command, until it is on stable storage; MiB/s"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn compared(&self, row: &Row) -> f64 {
        mib(row.bytes_per_s)
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::copiers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--copies", "--to"]
    }

    fn toured(&self) -> bool {
        false
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file names one file; leave it out of copy"));
        }
        require_ways(self.name(), &ways::copiers(self.ways), options)
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((self.largest(options), "at most, made for this run, random data, written and synced; and a copy of it"))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        vec![chosen(&ways::copiers(self.ways), options).len(); Self::kinds(options).len()]
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Directory {
            return Ok(());
        }
        let (options, dir) = (run.options, run.dir);
        let to = options.to.as_deref().unwrap_or(dir);
        let copies = Folder::make(to)?;
        let is_same = same_file_system(dir, copies.path())?;
        let room = |copies: u64| copies * self.largest(options);
        require_room(free_bytes(&testfile::create_nameless(to)?, to)?, room(1), "--size", to)?;
        require_room(
            free_bytes(&testfile::create_nameless(dir)?, dir)?,
            room(if is_same { 2 } else { 1 }),
            "--size",
            dir,
        )?;
        let noted = |way: &str| format!("copy: {way}");
        let refused = |part: Part<dyn CopyWay>| (part.way.refused)().or_else(|| part.refused());
        let usable = run.usable_as(&ways::copiers(self.ways), noted, refused);
        let shares = shares_blocks(dir, copies.path())?;

        let file_system = |path: &Path| Environment::of(path).filesystem.unwrap_or_else(|| "unknown".to_owned());
        let place = format!("from={} to={}", file_system(dir), file_system(copies.path()));
        let mut large: Option<Original> = None;
        for kind in Self::kinds(options) {
            if kind == Copied::Reflink && !shares {
                let text = format!("copy reflink: files of {} and {} cannot share blocks", dir.display(), to.display());
                run.report.note(Code::CaseLeftOut, text);
                continue;
            }
            let tree;
            let original = if kind == Copied::Tree {
                drop(large.take());
                tree = self.make_tree(run)?;
                &tree
            } else {
                if large.is_none() {
                    large = Some(self.make_file(run)?);
                }
                large.as_ref().ok_or_else(|| Error::new(ErrorKind::Other, "there is no file to copy"))?
            };
            let ways: Vec<_> = usable.iter().copied().filter(|way| way.suits(kind, shares)).collect();
            self.case(kind, &place, original, &copies, &ways, run)?;
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a copy", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        COLUMNS
    }
}

impl Copies {
    fn make_file(&self, run: &mut Run<'_>) -> Result<Original> {
        let (bytes, seed) = (self.bytes(run.options), run.options.seed);
        run.course.begin("making the file", Plan::writing_s(bytes), bytes);
        Original::file(run.dir, bytes, seed, run.cancel, |bytes| run.course.step(bytes))
    }

    fn make_tree(&self, run: &mut Run<'_>) -> Result<Original> {
        let (files, seed) = (self.files(run.options), run.options.seed);
        run.course.begin("making files", Plan::writing_s(files * LENGTHS.end()), files);
        let tree = Tree::make(run.dir, files, LENGTHS, seed, run.cancel, |files| run.course.step(files))?;
        Ok(Original::Tree(tree))
    }

    fn case(
        &self,
        kind: Copied,
        place: &str,
        original: &Original,
        copies: &Folder,
        ways: &[Part<dyn CopyWay>],
        run: &mut Run<'_>,
    ) -> Result<()> {
        let (table, options, cancel) = (self.name(), run.options, run.cancel);
        let is_cold = match original.make_cold(false) {
            Err(error) if error.kind() == ErrorKind::NotCold => false,
            cold => cold.map(|()| true)?,
        };
        let state = if is_cold { "cold" } else { "hot" };
        let name = format!("{} {state} {place}", kind.name());
        let left = vec![Left::default(); ways.len()];
        let copy = copies.path().join("copy");
        let mut bench = Bench { table, name: &name, kind, ways, original, copy, is_cold, options, cancel, left };
        let timed = run.case(table, &name, ways, &mut bench)?;
        let row = |((way, samples), left): ((&Part<dyn CopyWay>, &Vec<Sample>), &Left)| {
            Row::of(table, &name, way.name(), samples).with(Figures::of(samples, left))
        };
        let rows: Vec<Row> = ways.iter().zip(&timed).zip(&bench.left).map(row).collect();
        run.report.rows.extend(rows);
        Ok(())
    }
}

fn same_file_system(one: &Path, other: &Path) -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let device =
        |path: &Path| fs::metadata(path).map(|about| about.dev()).map_err(|error| Error::io("stat", path, &error));
    Ok(device(one)? == device(other)?)
}

/// Whether a file in one directory can share the blocks of a file in the other.
fn shares_blocks(from: &Path, to: &Path) -> Result<bool> {
    let (from, to) = (testfile::create_nameless(from)?, testfile::create_nameless(to)?);
    Ok(rustix::fs::ioctl_ficlone(to, from).is_ok())
}

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    name: &'a str,
    kind: Copied,
    ways: &'a [Part<dyn CopyWay>],
    original: &'a Original,
    copy: PathBuf,
    is_cold: bool,
    options: &'a Options,
    cancel: &'a AtomicBool,
    left: Vec<Left>,
}

impl Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (sample, left) = self.turn(self.ways[way], stage == Stage::Verify)?;
        let all = &mut self.left[way];
        if stage == Stage::Verify {
            all.keeps_metadata = left.keeps_metadata;
        } else {
            all.returned.extend(left.returned);
            all.source_pages.extend(left.source_pages);
            all.copy_pages.extend(left.copy_pages);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        self.turn(self.ways[way], stage == Stage::Verify).map(|(sample, _)| sample)
    }
}

impl Bench<'_> {
    /// One way, once.
    fn turn(&self, way: Part<dyn CopyWay>, verify: bool) -> Result<(Sample, Left)> {
        let turn = Turn { way: way.name(), table: self.table, case: self.name, cancel: self.cancel };
        let (original, copy) = (self.original, &self.copy);
        self.remove_copy()?;
        if self.is_cold {
            original.make_cold(self.options.drop_caches)?;
        } else {
            original.make_hot()?;
        }
        let from = original.path();
        let (files, bytes) = (original.files(), original.bytes());
        let job = CopyJob { kind: self.kind, from: &from, to: copy, files, bytes, cancel: self.cancel };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(bytes, "--size", copy, &error.to_string())
            }
            _ => turn.failed(error),
        };
        let outcome = alone(None, |round| ways::copy(way.work, &job, round));
        let (sample, returned) = turn.sample(outcome, failed)?;
        turn.require("files", &sample, (files, bytes))?;

        // Before they are read to be compared.
        let source_pages = vec![original.cached_pages(&from)?];
        let copy_pages = vec![original.cached_pages(copy)?];
        if let Some(wrong) = original.difference(copy, verify)? {
            return Err(turn.failed(wrong));
        }
        let kept = original.keeps_metadata(copy).map_err(|error| turn.failed(error))?;
        self.remove_copy()?;
        Ok((sample, Left { returned: vec![returned], source_pages, copy_pages, keeps_metadata: Some(kept) }))
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
