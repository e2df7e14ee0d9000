//! Options of a copy.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nowait::Nowait;

use crate::report::Event;

/// Durability of a copy on completion.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// Nothing is durable: after a power loss a file may be the old one, the new one, or empty.
    #[default]
    None,
    /// Each file is synced before it gets its name: even after a power loss, the name leads to the
    /// complete old or new file.
    File,
    /// One sync at the end makes the whole copy durable, which is fast for a tree. A file that
    /// replaces another is synced before it gets its name, as by [`File`](SyncPolicy::File).
    All,
}

/// Treatment of holes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sparse {
    /// Holes of the source stay holes. In a file with holes, blocks of zeros become holes, too.
    #[default]
    Auto,
    /// Every block of zeros becomes a hole.
    Always,
    /// Every block is written; the copy has no holes.
    Never,
}

/// Sharing of blocks with the source.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reflink {
    /// Shares blocks if the file system supports it.
    #[default]
    Auto,
    /// Shares blocks, or fails.
    Always,
    /// Never shares blocks: all data is written.
    Never,
}

/// Treatment of files that exist in the target.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Update {
    /// They are replaced.
    #[default]
    All,
    /// They are replaced if the source's modification time is later.
    Older,
    /// They are kept.
    None,
}

/// Selection of the symbolic links in the source that are followed. The copy of a followed link is
/// a copy of its target.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Follow {
    /// None: links are copied as links.
    #[default]
    Never,
    /// Links that are given as a source.
    Arguments,
    /// All links. A link to a directory above it is a failure. Files that several names lead to are
    /// copied once; the names of the copy are hard links.
    Always,
}

/// Callback for events.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&Event<'_>) + Send + Sync>);

/// Options of a copy. The defaults are those of `nowait copy`: like `cp -a`, except that an
/// existing file is replaced atomically.
#[derive(Clone, Default)]
pub struct Options {
    pub(crate) sync: SyncPolicy,
    pub(crate) sparse: Sparse,
    pub(crate) reflink: Reflink,
    pub(crate) update: Update,
    pub(crate) follow: Follow,
    pub(crate) one_file_system: bool,
    pub(crate) cache_neutral: bool,
    pub(crate) verify: bool,
    pub(crate) resume: bool,
    pub(crate) dry_run: bool,
    pub(crate) count_first: bool,
    pub(crate) no_target_directory: bool,
    pub(crate) replace_target_link: bool,
    pub(crate) bytes_per_second_max: Option<u64>,
    pub(crate) dirty_bytes_max: Option<u64>,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) depth: Option<u32>,
    pub(crate) block_bytes: Option<u32>,
    pub(crate) jobs: Option<u32>,
    pub(crate) instance: Option<Nowait>,
    pub(crate) observer: Option<Observer>,
    pub(crate) cancel_flag: Option<Arc<AtomicBool>>,
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what is durable when the copy returns.
    pub fn sync(mut self, sync: SyncPolicy) -> Self {
        self.sync = sync;
        self
    }

    /// Sets the treatment of holes.
    pub fn sparse(mut self, sparse: Sparse) -> Self {
        self.sparse = sparse;
        self
    }

    /// Sets whether copies may share blocks with their source.
    pub fn reflink(mut self, reflink: Reflink) -> Self {
        self.reflink = reflink;
        self
    }

    /// Sets the treatment of files that exist in the target.
    pub fn update(mut self, update: Update) -> Self {
        self.update = update;
        self
    }

    /// Sets which symbolic links of the source are followed.
    pub fn follow(mut self, follow: Follow) -> Self {
        self.follow = follow;
        self
    }

    /// Stays on the source's file system: copies mount points as directories, without their
    /// contents. The target may be on one of the mounted file systems.
    pub fn one_file_system(mut self, on: bool) -> Self {
        self.one_file_system = on;
        self
    }

    /// Leaves no additional pages of source or target in the page cache.
    pub fn cache_neutral(mut self, on: bool) -> Self {
        self.cache_neutral = on;
        self
    }

    /// Computes a checksum while copying, reads the copy back past the page cache, and compares the
    /// two.
    pub fn verify(mut self, on: bool) -> Self {
        self.verify = on;
        self
    }

    /// Keeps the copied part of a file, and a journal, if a copy ends early. The next copy resumes
    /// there, after checking that source, part and journal still match. If the target is already a
    /// complete copy, only differing metadata is set.
    pub fn resume(mut self, on: bool) -> Self {
        self.resume = on;
        self
    }

    /// Reports what would be copied; changes nothing.
    pub fn dry_run(mut self, on: bool) -> Self {
        self.dry_run = on;
        self
    }

    /// Counts the files and bytes to copy on another thread, so that [`Progress`](crate::Progress)
    /// reports the total and the time left.
    pub fn count_first(mut self, on: bool) -> Self {
        self.count_first = on;
        self
    }

    /// Uses the target as the name of the copy, even if it is a directory. Only one source is then
    /// allowed.
    pub fn no_target_directory(mut self, on: bool) -> Self {
        self.no_target_directory = on;
        self
    }

    /// Replaces a target that is a symbolic link to a file, instead of the file that it refers to.
    /// Also replaces other hard links to the source, and symbolic links to it, by copies; without
    /// this option each is a failure.
    pub fn replace_target_link(mut self, on: bool) -> Self {
        self.replace_target_link = on;
        self
    }

    /// Limits the rate, in bytes per second. Default: `None`, no limit.
    pub fn bytes_per_second_max(mut self, bytes: Option<u64>) -> Self {
        self.bytes_per_second_max = bytes;
        self
    }

    /// Limits the bytes of this copy that are in the page cache and not yet on the device. Default:
    /// `None`, only the system's limit.
    pub fn dirty_bytes_max(mut self, bytes: Option<u64>) -> Self {
        self.dirty_bytes_max = bytes;
        self
    }

    /// Copies only files that match a pattern; may be called again for more patterns. A pattern
    /// with a slash is matched against the path below the source. A pattern without a slash is
    /// matched against the name, including the name of the source itself. A pattern that ends in a
    /// slash is refused, since all directories are copied.
    pub fn include(mut self, pattern: impl Into<String>) -> Self {
        self.include.push(pattern.into());
        self
    }

    /// Skips files, and directories with their contents, that match a pattern. Takes precedence
    /// over [`include`](Options::include). A pattern that ends in a slash matches only directories.
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.exclude.push(pattern.into());
        self
    }

    /// Sets the number of direct requests in flight per file, from 1 to 64. Default: chosen from
    /// the block size.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth.clamp(1, 64));
        self
    }

    /// Sets the size of a request in bytes, from 4 KiB to 64 MiB, rounded down to a multiple of 4
    /// KiB. Default: chosen for each file.
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = Some((bytes / 4096 * 4096).clamp(4096, 64 << 20));
        self
    }

    /// Sets the number of files copied at a time, from 1 to 256. Default: twice the number of
    /// processors; one while the copy shares blocks on btrfs, where more are slower.
    pub fn jobs(mut self, jobs: u32) -> Self {
        self.jobs = Some(jobs.clamp(1, 256));
        self
    }

    /// Copies only by operations of this instance, for tests on a simulated disk (`nowait::sim`).
    /// Such a copy covers data and names of regular files, but no metadata and no trees.
    pub fn instance(mut self, instance: &Nowait) -> Self {
        self.instance = Some(instance.clone());
        self
    }

    /// Cancels the copy, as [`Started::cancel`](crate::Started::cancel) does, once `flag` is true. A
    /// handler of signals may set it.
    pub fn cancel_flag(mut self, flag: Arc<AtomicBool>) -> Self {
        self.cancel_flag = Some(flag);
        self
    }

    /// Calls `observer` for each [`Event`], from any thread of the copy.
    ///
    /// A panic of the observer ends the copy as [`Started::cancel`](crate::Started::cancel) does. Calls
    /// in progress on other threads finish; later events are not reported. No file is partial.
    /// [`copy`](crate::copy()) and [`Started::wait`](crate::Started::wait) then panic with the payload of
    /// the first panic.
    pub fn on_event(mut self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observer)));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("sync", &self.sync)
            .field("sparse", &self.sparse)
            .field("reflink", &self.reflink)
            .field("update", &self.update)
            .field("follow", &self.follow)
            .field("one_file_system", &self.one_file_system)
            .field("cache_neutral", &self.cache_neutral)
            .field("verify", &self.verify)
            .field("resume", &self.resume)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}
