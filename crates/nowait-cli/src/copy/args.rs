//! Options of `nowait copy`, and its exit codes.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use nowait_copy::{Follow, Options, Reflink, Sparse, SyncPolicy, Update};

use crate::cli;

/// Exit code of wrong usage.
pub(super) const USAGE: u8 = 2;

const EXIT_CODES: &str = "\
Exit codes:
  0    all was copied, or left out as asked
  1    some was not copied, or changed meanwhile, or lost metadata: a line on stderr for each
  2    wrong usage
  3    nothing was copied
  5    a copy that was read back differs
  130  interrupted";

/// Copy files and trees, by the fastest way for each file, without partial files.
///
/// The command preserves what `cp -a` preserves: owner, mode, times, extended attributes and ACLs,
/// hard links, symbolic links, FIFOs, sockets, devices and holes. A new file has a temporary name,
/// or no name, until it is complete. So its name always refers to the old file or the complete new
/// one. The command reports each failure on stderr and copies the other files.
///
/// The command replaces existing files and does not overwrite them: other hard links keep the old
/// file. If DST is a symbolic link to a file, the target of the link is replaced. Within a tree,
/// the symbolic link itself is replaced.
///
/// The way to copy a file depends on its size, its holes, the two file systems and the free memory.
/// It is a reflink (shared blocks), copy_file_range, several direct requests in flight, uncached
/// writes, or plain reads and writes. --explain shows the way and the reason.
///
/// Ctrl-C ends the command within a block. A file in progress keeps its old contents. To continue an
/// interrupted copy, run `nowait copy --resume -T SRC DST` again. For a tree, -T is necessary: the
/// interrupted copy has created DST, and without -T the command would copy into DST/SRC, as `cp` does.
#[derive(Debug, Args)]
#[command(
    after_help = EXIT_CODES,
    args_override_self = true,
    override_usage = "nowait copy [OPTIONS] <SRC>... <DST>"
)]
pub(crate) struct Copy {
    /// Sources and target. DST is the name of the copy, or an existing directory in which the copy
    /// gets the name of SRC. With several SRC, DST must be a directory. `SRC/.` means the contents
    /// of SRC, `SRC/` means SRC itself
    // One argument: two would take a name that begins with a dash for an option, behind `--`, too.
    #[arg(value_name = "SRC... DST", required = true, num_args = 1..)]
    paths: Vec<PathBuf>,

    /// Make durable: nothing; each file before it gets its name; or everything at the end, which is
    /// faster for a tree
    #[arg(long, value_name = "WHAT", default_value = "none")]
    pub sync: SyncArg,

    /// Turn blocks of zeros into holes: in files with holes; in all files; or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub sparse: SparseArg,

    /// Share blocks with the source: auto (if possible; the default), always (or fail), or never.
    /// --reflink alone means always
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "auto", default_missing_value = "always")]
    pub reflink: ReflinkArg,

    /// Replace existing files: those older than SRC; none; or all. The default is all; without
    /// WHICH, it is older
    #[arg(short, long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "older")]
    pub update: Option<UpdateArg>,

    /// Follow all symbolic links, and copy their targets
    #[arg(short = 'L', long, overrides_with_all = ["dereference_args", "no_dereference"])]
    pub dereference: bool,

    /// Follow symbolic links given as SRC, and copy their targets
    #[arg(short = 'H', long, overrides_with_all = ["dereference", "no_dereference"])]
    pub dereference_args: bool,

    /// Copy symbolic links as links (the default)
    #[arg(short = 'P', short_alias = 'd', long, overrides_with_all = ["dereference", "dereference_args"])]
    pub no_dereference: bool,

    /// Stay on one file system: skip the contents of mount points
    #[arg(short = 'x', long)]
    pub one_file_system: bool,

    /// Leave the page cache as it was: drop the pages that the copy added
    #[arg(long)]
    pub cache_neutral: bool,

    /// Compute a checksum while copying, then read the copy back from the device and compare
    #[arg(long)]
    pub verify: bool,

    /// Keep a journal of large files, and continue an interrupted copy. Compare existing files of
    /// the same size and time, and skip those with the same contents
    #[arg(long)]
    pub resume: bool,

    /// Show what would be copied; change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Show for each file how it was copied, and why
    #[arg(short = 'v', long, visible_alias = "verbose")]
    pub explain: bool,

    /// Print a line of JSON for each event
    #[arg(long, conflicts_with = "explain")]
    pub json: bool,

    /// Limit the bytes copied per second: 20M, 1G, 500B. A bare number is in KiB, as with rsync; 0
    /// means no limit
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second)]
    pub bwlimit: Option<u64>,

    /// Limit the dirty bytes of the copy in the page cache, for example 256M
    #[arg(long, value_name = "SIZE", value_parser = at_least_one)]
    pub max_dirty: Option<u64>,

    /// Copy only files that match, and all directories; may be repeated. A pattern with a slash
    /// matches the path below SRC; other patterns match the name, also that of SRC
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// Skip files and directories that match; may be repeated. A pattern that ends with a slash
    /// matches only directories
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// Number of direct requests in flight for a file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub depth: Option<u32>,

    /// Size of a request, from 4K to 64M
    #[arg(long, value_name = "SIZE", value_parser = block_bytes)]
    pub block: Option<u32>,

    /// Number of files copied at a time [default: twice the number of processors; one while blocks are
    /// shared on btrfs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: Option<u32>,

    /// Show progress on stderr: auto (on a terminal; the default), always (with totals at the end), or
    /// never. --progress alone means always
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "auto", default_missing_value = "always")]
    pub progress: Progress,

    /// Use DST as the name of the copy, even if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,

    /// Copy all SRC into this existing directory; replaces DST
    #[arg(short = 't', long, value_name = "DIR", conflicts_with = "no_target_directory")]
    pub target_directory: Option<PathBuf>,

    /// No effect: a copy always does what `cp -a` does
    #[arg(short, long)]
    pub archive: bool,

    /// No effect: mode, ownership and timestamps are always kept
    #[arg(short = 'p', overrides_with = "preserve")]
    _p: bool,

    /// No effect: mode, ownership, timestamps, links, xattr and more are always kept
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true, default_missing_value = "mode")]
    #[arg(value_parser = preserved)]
    preserve: Option<String>,

    /// No effect: files that cannot be opened for writing are always replaced
    #[arg(short, long)]
    force: bool,

    /// If DST is a symbolic link to a file, replace the link and keep the file. Also replace hard
    /// and symbolic links to SRC itself, which are failures otherwise
    #[arg(long)]
    remove_destination: bool,

    #[command(flatten)]
    elsewhere: Elsewhere,

    /// No effect: directories are always copied with their contents
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
}

/// Options of `cp` and `rsync` that this command lacks; the error names a replacement.
#[derive(Debug, Args)]
struct Elsewhere {
    #[arg(short = 'i', long, hide = true)]
    interactive: bool,
    #[arg(long, hide = true)]
    no_clobber: bool,
    #[arg(short = 'l', long, hide = true)]
    link: bool,
    #[arg(short = 's', long, hide = true)]
    symbolic_link: bool,
    #[arg(short = 'b', long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "existing")]
    backup: Option<String>,
    #[arg(long, hide = true)]
    parents: bool,
    #[arg(long, hide = true, num_args = 1)]
    no_preserve: Option<String>,
    #[arg(long, hide = true)]
    delete: bool,
}

impl Elsewhere {
    /// Returns the first of these options that was given, and what to use instead.
    fn first(&self) -> Option<(&'static str, &'static str)> {
        let options = [
            (
                self.interactive,
                "-i",
                "use --update=none to keep existing files, or --dry-run to see what would be copied",
            ),
            (self.no_clobber, "--no-clobber", "use --update=none (-n is --dry-run)"),
            (self.link, "--link", "use `cp -al`"),
            (self.symbolic_link, "--symbolic-link", "use `cp -as`"),
            (self.backup.is_some(), "--backup", "use `cp -ab`, or keep the old tree by hard links (`cp -al`) first"),
            (self.parents, "--parents", "use `cp -a --parents`, or copy the topmost directory with --include"),
            (self.no_preserve.is_some(), "--no-preserve", "use `cp -a --no-preserve`: this command keeps all metadata"),
            (self.delete, "--delete", "use `rsync -a --delete`: this command removes nothing from the target"),
        ];
        options.into_iter().find(|(is_given, ..)| *is_given).map(|(_, option, instead)| (option, instead))
    }
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

/// `4096`, `512K`, `64M`, `4G`, `1T`; powers of two.
fn parse_bytes(text: &str) -> Result<u64, String> {
    // Fractions, exponents and separators are no sizes here: of a rate, a number alone is in KiB.
    let number = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a size such as 512M or 4G".to_owned());
    }
    let binary = parse_size::Config::new().with_binary();
    binary.parse_size(text).map_err(|error| format!("not a size such as 512M or 4G: {error}"))
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("a limit of 0 would block the copy".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Accepts the words of `cp --preserve`.
fn preserved(text: &str) -> Result<String, String> {
    const WORDS: [&str; 7] = ["mode", "ownership", "timestamps", "links", "context", "xattr", "all"];
    match text.split(',').find(|word| !WORDS.contains(word)) {
        Some(word) => Err(format!("{word} is not one of {}", WORDS.join(", "))),
        None => Ok(text.to_owned()),
    }
}

/// Parses a rate as rsync does: a bare number is in KiB.
fn bytes_per_second(text: &str) -> Result<u64, String> {
    let is_bare = text.trim().bytes().all(|byte| byte.is_ascii_digit());
    parse_bytes(&if is_bare { format!("{}K", text.trim()) } else { text.to_owned() })
        .map_err(|_| "not a rate such as 20M, 500B, or 2048 (in KiB)".to_owned())
}

fn block_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| (4 << 10..=64 << 20).contains(bytes) && bytes % 4096 == 0);
    fits.ok_or_else(|| "not a multiple of 4K from 4K to 64M".to_owned())
}

impl Copy {
    /// Sources and target.
    pub(crate) fn places(&self) -> Result<(&[PathBuf], &Path), cli::Failure> {
        let wrong = |message: String| Err(cli::Failure { code: USAGE, message });
        if let Some((option, instead)) = self.elsewhere.first() {
            return wrong(format!("copy has no {option}; {instead}"));
        }
        match (&self.target_directory, self.paths.split_last()) {
            (Some(dir), _) if !dir.is_dir() => wrong(format!(
                "-t {}: no such directory; name one that exists, or name the copy as DST",
                nowait_copy::shown(dir)
            )),
            (Some(dir), _) => Ok((&self.paths, dir)),
            (None, Some((target, sources))) if !sources.is_empty() => Ok((sources, target)),
            _ => cli::end_without("copy", "<DST>"),
        }
    }

    /// Returns the limit on bytes copied per second.
    pub(crate) fn bytes_per_second_max(&self) -> Option<u64> {
        self.bwlimit.filter(|bytes| *bytes > 0)
    }

    /// The options as the library takes them.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new()
            .sync(match self.sync {
                SyncArg::None => SyncPolicy::None,
                SyncArg::File => SyncPolicy::File,
                SyncArg::All => SyncPolicy::All,
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
            .replace_target_link(self.remove_destination)
            .bytes_per_second_max(self.bytes_per_second_max())
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
