//! Options of `nowait copy`, and its exit codes.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use nowait_bench::report::figures::parse_bytes;
use nowait_copy::{Follow, Options, Reflink, Sparse, Sync, Update};

use super::USAGE;
use crate::cli;

const EXIT_CODES: &str = "\
Exit codes:
  0    all was copied, or left out as asked
  1    some was not copied, or changed meanwhile, or lost metadata: a line on stderr for each
  2    wrong usage
  3    nothing was copied
  5    a copy that was read back differs
  130  interrupted";

/// Copy files and trees: as fast as the machine can, and never half a file.
///
/// Copies what `cp -a` copies: owner, mode, times, extended attributes and ACLs, hard links, symbolic
/// links, FIFOs, sockets, devices and holes. A file is written under a temporary name in the target's
/// directory, or under none, and gets its own when it is complete: whatever happens, the name has the
/// old file or the new one, whole. A failure is named on stderr, and the other files are copied.
///
/// An existing file is replaced, not written over: other hard links to it keep the old one. If DST
/// itself is a symbolic link to a file, the file it leads to is replaced; a symbolic link within a
/// tree is replaced itself.
///
/// How the data of each file get there is chosen from its size, its holes, the two file systems and
/// the memory: by sharing blocks (reflink), copy_file_range, several direct requests in flight,
/// uncached writes, or plain reads and writes. --explain shows which, and why.
///
/// Ctrl-C ends it within a block. A file that was being copied keeps its old contents; with --resume
/// the same command goes on where it was.
#[derive(Debug, Args)]
#[command(
    after_help = EXIT_CODES,
    args_override_self = true,
    override_usage = "nowait copy [OPTIONS] <SRC>... <DST>"
)]
pub(crate) struct Copy {
    /// Files and directories; and last the name of the copy, or an existing directory: in it the copy
    /// gets the name of SRC. Several SRC need a directory. `SRC/.` stands for what is in SRC, `SRC/` for
    /// SRC itself
    // One argument: two would take a name that begins with a dash for an option, behind `--`, too.
    #[arg(value_name = "SRC... DST", required = true, num_args = 1..)]
    paths: Vec<PathBuf>,

    /// Make durable before the end: nothing; each file before it gets its name; or all, in one go at the
    /// end, which is faster for a tree
    #[arg(long, value_name = "WHAT", default_value = "none")]
    pub sync: SyncArg,

    /// Which blocks of zeros become holes: those of files with holes; all; or none
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub sparse: SparseArg,

    /// Share blocks with the source: where that is possible; or fail; or not at all
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub reflink: ReflinkArg,

    /// Replace existing files: those older than SRC; none; or all. Without it: all; without WHICH: older
    #[arg(short, long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "older")]
    pub update: Option<UpdateArg>,

    /// Copy what symbolic links lead to, not the links: all of them
    #[arg(short = 'L', long, overrides_with_all = ["dereference_args", "no_dereference"])]
    pub dereference: bool,

    /// Copy what symbolic links lead to, not the links: those named as SRC
    #[arg(short = 'H', long, overrides_with_all = ["dereference", "no_dereference"])]
    pub dereference_args: bool,

    /// Copy symbolic links as links (the default)
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "dereference_args"])]
    pub no_dereference: bool,

    /// Leave out what is in directories on which another file system is mounted
    #[arg(short = 'x', long)]
    pub one_file_system: bool,

    /// Leave no pages of either file in the page cache that were not there before
    #[arg(long)]
    pub cache_neutral: bool,

    /// Compute a checksum while copying, then read the copy back from the device and compare
    #[arg(long)]
    pub verify: bool,

    /// Keep a journal of large files, and go on where an interrupted copy was; compare files that are
    /// there already with the same size and time, and leave out those that are the same
    #[arg(long)]
    pub resume: bool,

    /// Show what would be copied; change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Show for each file how its data got there, and why
    #[arg(short = 'v', long, visible_alias = "verbose")]
    pub explain: bool,

    /// Print a line of JSON for each event
    #[arg(long, conflicts_with = "explain")]
    pub json: bool,

    /// Copy at most so many bytes a second (64M, 1G)
    #[arg(long, value_name = "RATE", value_parser = at_least_one)]
    pub bwlimit: Option<u64>,

    /// Have at most so many bytes in the page cache that are not on the device yet (256M)
    #[arg(long, value_name = "SIZE", value_parser = at_least_one)]
    pub max_dirty: Option<u64>,

    /// Copy only files that match, and directories; may be repeated. With a slash it is matched against
    /// the path below SRC, else against the name
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// Leave out files and directories that match; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// Direct requests in flight for a file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub depth: Option<u32>,

    /// Size of a request, from 4K to 64M
    #[arg(long, value_name = "SIZE", value_parser = block_bytes)]
    pub block: Option<u32>,

    /// Files copied at a time [default: twice the number of processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: Option<u32>,

    /// Show how far it is on stderr: if that is a terminal; always; or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub progress: Progress,

    /// Take DST as the name of the copy, also if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,

    /// No effect: all that it asks of `cp` is done
    #[arg(short, long)]
    pub archive: bool,

    /// No effect: directories are always copied with what is in them
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
}

/// Values of --sync.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SyncArg {
    None,
    File,
    All,
}

/// Values of --sparse.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SparseArg {
    Auto,
    Always,
    Never,
}

/// Values of --reflink.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ReflinkArg {
    Auto,
    Always,
    Never,
}

/// Values of --update.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum UpdateArg {
    Older,
    None,
    All,
}

/// Values of --progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Progress {
    Auto,
    Always,
    Never,
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("nothing would ever be copied".to_owned()),
        bytes => Ok(bytes),
    }
}

fn block_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| (4 << 10..=64 << 20).contains(bytes) && bytes % 4096 == 0);
    fits.ok_or_else(|| "not a multiple of 4K from 4K to 64M".to_owned())
}

impl Copy {
    /// Sources and target.
    pub(crate) fn places(&self) -> Result<(&[PathBuf], &Path), cli::Failure> {
        match self.paths.split_last() {
            Some((target, sources)) if !sources.is_empty() => Ok((sources, target)),
            _ => Err(cli::Failure {
                code: USAGE,
                message: "there is no DST: nowait copy [OPTIONS] <SRC>... <DST>".to_owned(),
            }),
        }
    }

    /// The options as the library takes them.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new()
            .sync(match self.sync {
                SyncArg::None => Sync::None,
                SyncArg::File => Sync::File,
                SyncArg::All => Sync::All,
            })
            .sparse(match self.sparse {
                SparseArg::Auto => Sparse::Auto,
                SparseArg::Always => Sparse::Always,
                SparseArg::Never => Sparse::Never,
            })
            .reflink(match self.reflink {
                ReflinkArg::Auto => Reflink::Auto,
                ReflinkArg::Always => Reflink::Always,
                ReflinkArg::Never => Reflink::Never,
            })
            .update(match self.update {
                Some(UpdateArg::Older) => Update::Older,
                Some(UpdateArg::None) => Update::None,
                Some(UpdateArg::All) | None => Update::All,
            })
            .follow(match (self.dereference, self.dereference_args) {
                (true, _) => Follow::Always,
                (_, true) => Follow::Arguments,
                _ => Follow::Never,
            })
            .one_file_system(self.one_file_system)
            .cache_neutral(self.cache_neutral)
            .verify(self.verify)
            .resume(self.resume)
            .dry_run(self.dry_run)
            .no_target_directory(self.no_target_directory)
            .bytes_per_second_max(self.bwlimit)
            .dirty_bytes_max(self.max_dirty);
        for pattern in &self.include {
            options = options.include(pattern);
        }
        for pattern in &self.exclude {
            options = options.exclude(pattern);
        }
        let set = |options: Options, value: Option<u32>, set: fn(Options, u32) -> Options| match value {
            Some(value) => set(options, value),
            None => options,
        };
        let options = set(options, self.depth, Options::depth);
        let options = set(options, self.block, Options::block_bytes);
        set(options, self.jobs, Options::jobs)
    }
}
