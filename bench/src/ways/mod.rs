//! The compared ways. Each is one [`Way`], declared in one file, and a line of [`WAYS`].
//!
//! A way names the kinds of work that it does ([`Does`]), each with the code that does it. Tables
//! select by kind, and show their ways in the order of the list.

mod cache;
mod drive;
mod log;
mod mixed;
mod nowait;
#[cfg(feature = "peers")]
mod peers;
mod plain;
mod pwritev;
mod queue;
mod ring;
pub mod runtime;
mod scan;
pub(crate) mod stall;
mod threads;
mod tokio;
mod willneed;

use std::fmt;
use std::io;
use std::ops::Deref;

use crate::measure::cache::{HitRate, Hits, PageSet, Trace};
use crate::measure::meter::{Round, Tally};
use crate::measure::mixed::{Mixed, Mixture};
use crate::measure::work::{Commits, Gather, Gathers, Reads, SmallFiles, Writes};

pub(crate) use self::cache::pages_of_misses;
pub use self::log::commit::{Folder, Places, by_writers};
pub(crate) use self::log::durable::await_spare;
pub use self::ring::io_uring_state;

/// The library's way, which the verdict ranks.
pub const OURS: &str = "nowait";
/// The library on a tokio runtime.
pub const ON_TOKIO: &str = "nowait-tokio";
/// The library's page cache, which the verdict ranks in tables of caches.
pub const CACHE: &str = "nowait-cache";
/// The ways of the simplest program.
pub const PLAIN: [&str; 3] = ["pread", "pwrite", "append-fdatasync"];

/// One way of doing some of the measured work.
///
/// All ways follow the same rules:
///
/// * Prepare, call [`Round::start`], work, and call [`Round::stop`].
/// * Read the clock once before each submission of an operation (or batch), and once for each
///   harvest of completions.
/// * Read into the buffer of the caller.
/// * Do nothing for a particular case: a way does not know whether the file is cached.
/// * Report each completion and its bytes to the tally. It computes checksums of some of them on
///   the clock, which the tables compare with the expected ones.
pub struct Way {
    pub name: &'static str,
    /// Description in one line.
    pub words: &'static str,
    /// Hue on the page, below 8. Two ways of a table share a hue only if it has more ways than
    /// hues. `None` for ways of this library, and for others that take a free hue.
    pub hue: Option<usize>,
    /// Returns the reason if this system refuses the way.
    pub refused: fn() -> Option<String>,
    pub does: &'static [Does],
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Way {
    pub const fn new(name: &'static str, words: &'static str, does: &'static [Does]) -> Self {
        Self { name, words, hue: None, refused: || None, does }
    }

    pub const fn hue(mut self, hue: usize) -> Self {
        self.hue = Some(hue);
        self
    }

    pub const fn refused(mut self, refused: fn() -> Option<String>) -> Self {
        self.refused = refused;
        self
    }
}

/// The ways that a run may measure, in the order of columns.
pub type Roster = &'static [&'static Way];

/// A way, in one kind of work.
#[derive(Debug)]
pub struct Part<W: ?Sized + 'static> {
    pub way: &'static Way,
    pub work: &'static W,
}

impl<W: ?Sized> Clone for Part<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: ?Sized> Copy for Part<W> {}

impl<W: ?Sized> Deref for Part<W> {
    type Target = W;

    fn deref(&self) -> &W {
        self.work
    }
}

impl<W: ?Sized> Part<W> {
    pub fn name(&self) -> &'static str {
        self.way.name
    }
}

macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident $of:ident $work:ident in $table:literal)*) => {
        /// A kind of work, and its implementation.
        #[derive(Clone, Copy)]
        pub enum Does {
            $($(#[$about])* $kind(&'static dyn $work),)*
        }

        impl fmt::Debug for Does {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$kind(_) => stringify!($kind),)* })
            }
        }

        impl Does {
            /// Returns the tables that measure this work.
            pub fn table(self) -> &'static str {
                match self { $(Self::$kind(_) => $table,)* }
            }
        }

        $(
            $(#[$about])*
            pub fn $of(roster: Roster) -> Vec<Part<dyn $work>> {
                that_do(roster, |does| if let Does::$kind(work) = does { Some(work) } else { None })
            }
        )*
    };
}

/// Returns the ways of a kind, in the order of the roster.
fn that_do<W: ?Sized>(roster: Roster, pick: impl Fn(Does) -> Option<&'static W>) -> Vec<Part<W>> {
    let part = |way: &'static Way| Some(Part { way, work: way.does.iter().find_map(|does| pick(*does))? });
    roster.iter().filter_map(|way| part(way)).collect()
}

kinds! {
    /// Reads at random through the page cache.
    Reads readers ReadWay in "reads, cached"
    /// Many records in one call.
    Gathers gatherers ReadWay in "gather"
    /// Reads past the page cache (`--direct`), where advice has no effect.
    DirectReads direct_readers ReadWay in "reads"
    /// Blocks in ascending order.
    Scans scanners ReadWay in "scan"
    /// Reads that arrive at random times.
    LoadReads load_readers ReadWay in "load"
    /// Gathers that arrive at random times.
    LoadGathers load_gatherers GatherWay in "load"
    /// Durable appends that arrive at random times.
    LoadAppends load_appenders LogWay in "load"
    /// Writes to a growing file.
    Writes writers WriteWay in "writes"
    /// Writes to a growing file, by a thread with other work.
    Stalls stallers WriteWay in "stall"
    /// Small files.
    Files filers FileWay in "files"
    /// Tasks that share a runtime.
    Mixed mixers MixedWay in "mixed"
    /// Durable records, each awaited by its writer.
    Commits loggers LogWay in "log"
    /// Durable records, with several in flight for each thread.
    Pipelines pipeliners LogWay in "log-pipelined"
    /// Durable records of tasks.
    TaskCommits task_loggers LogWay in "log-tokio"
    /// Reads of cached pages.
    Hits hitters CacheWay in "cache"
    /// Copies of the start of cached pages.
    Copies copiers CacheWay in "cache"
    /// Reads of pages that are not cached, each of which evicts another.
    Misses missers ReadWay in "cache-misses"
    /// Choice of the pages that stay cached.
    Policies policies PolicyWay in "cache-policy"
}

/// All ways, in the order of columns.
pub static WAYS: Roster = &[
    &plain::PREAD,
    &plain::PWRITE,
    &pwritev::PWRITEV,
    &mixed::PLAIN,
    &scan::BUFREADER,
    &threads::THREADS,
    &willneed::WILLNEED,
    &scan::TOUCH,
    &cache::MMAP,
    &ring::RING,
    &tokio::TOKIO,
    #[cfg(feature = "peers")]
    &peers::tokio_fs::TOKIO_FS,
    #[cfg(feature = "peers")]
    &peers::tokio_uring::TOKIO_URING,
    #[cfg(feature = "peers")]
    &peers::compio::COMPIO,
    #[cfg(feature = "peers")]
    &peers::monoio::MONOIO,
    #[cfg(feature = "peers")]
    &peers::glommio::GLOMMIO,
    #[cfg(feature = "peers")]
    &peers::glommio::GLOMMIO_DMA,
    &log::commit::APPEND_FDATASYNC,
    &log::commit::DIRECT_DSYNC,
    &log::commit::RING_DSYNC,
    &log::batch::THREAD_BATCH,
    &log::batch::THREAD_BATCH_DIRECT,
    &log::batch::THREAD_BATCH_PIPELINED,
    &log::batch::THREAD_BATCH_DIRECT_PIPELINED,
    &log::batch::THREAD_BATCH_TOKIO,
    &log::batch::THREAD_BATCH_DIRECT_TOKIO,
    #[cfg(feature = "peers")]
    &peers::okaywal::OKAYWAL,
    #[cfg(feature = "peers")]
    &peers::raft_engine::RAFT_ENGINE,
    #[cfg(feature = "peers")]
    &peers::fjall::FJALL,
    #[cfg(feature = "peers")]
    &peers::fsys::FSYS,
    #[cfg(feature = "peers")]
    &peers::fsys::FSYS_DIRECT,
    #[cfg(feature = "rocksdb")]
    &peers::rocksdb::ROCKSDB,
    #[cfg(feature = "peers")]
    &peers::caches::QUICK_CACHE,
    #[cfg(feature = "peers")]
    &peers::caches::MOKA,
    #[cfg(feature = "peers")]
    &peers::caches::FOYER,
    &nowait::NOWAIT,
    &stall::NOWAIT_STRICT,
    &scan::NOWAIT_STREAM,
    &nowait::NOWAIT_AWAIT,
    &nowait::NOWAIT_AIO,
    &nowait::NOWAIT_YOUNG,
    &nowait::NOWAIT_TOKIO,
    &cache::NOWAIT_CACHE,
];

pub fn named(name: &str) -> Option<&'static Way> {
    WAYS.iter().copied().find(|way| way.name == name)
}

/// Returns the rows of a Markdown table of all ways.
pub fn glossary() -> String {
    let row = |way: &Way| {
        let mut tables: Vec<&str> = way.does.iter().flat_map(|does| does.table().split(", ")).collect();
        tables.sort_unstable();
        tables.dedup();
        format!("| `{}` | {} | {} |\n", way.name, way.words.replace('|', "\\|"), tables.join(", "))
    };
    WAYS.iter().map(|way| row(way)).collect()
}

/// Returns the names of all ways.
pub fn names() -> Vec<&'static str> {
    WAYS.iter().map(|way| way.name).collect()
}

/// One way of reading at random.
pub trait ReadWay: Sync {
    /// True for a way with only one read in flight and no gathers. It takes part only in cases of
    /// single reads at depth 1.
    fn one_at_a_time(&self) -> bool {
        false
    }

    /// True for a way with a file position. It takes part only in cases of successive blocks, one
    /// at a time.
    fn keeps_a_place(&self) -> bool {
        false
    }

    /// Completes all reads of `job`, with `job.depth` in flight. `buffer` has a block for each of
    /// those. A way that has [load reads](Does::LoadReads) starts each when the job's schedule says
    /// so, and counts latency from there.
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;

    /// Completes all batches of `job`, one after the other, each into the start of `output`, its
    /// records in order.
    fn gather(&self, _: &Gather<'_>, _: &mut [u8], _: &mut Round<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// One way of writing.
pub trait WriteWay: Sync {
    /// Minimum depth of the cases in which it takes part.
    fn fewest_in_flight(&self) -> usize {
        1
    }

    /// Completes all writes of `job`, with `job.depth` in flight. `buffer` has a prepared block for
    /// each of those; a way that must own its buffers takes [`Writes::buffers`]. A block is placed
    /// ([`crate::measure::work::Contents::place`]) just before the clock is read for its
    /// submission.
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of writing durable records.
pub trait LogWay: Sync {
    /// True if it bypasses the page cache, and so needs a file system that allows `O_DIRECT`.
    fn direct(&self) -> bool;

    /// True if it supports several records of a writer in flight ([`Commits::in_flight`]). Other
    /// ways get a writer for each of these records.
    fn pipelines(&self) -> bool {
        false
    }

    /// Maximum number of bytes that a record of `size` bytes takes in the file; 0 for a way that
    /// creates its own files.
    fn room(&self, _size: usize) -> usize {
        0
    }

    /// Makes every record of `job` durable, from threads or tasks that each wait for their own
    /// records. Returns how many bytes of the file they took, if known.
    ///
    /// Afterwards the way reads the records back, and reports their numbers and bytes to the tally
    /// ([`crate::measure::meter::Tally::found`]): all records if the round verifies, otherwise
    /// those that [are sampled](Commits::is_sampled). A way that creates its own files may omit
    /// this in rounds that do not verify.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>>;
}

/// One way of serving gathers that arrive, with several in flight.
pub trait GatherWay: Sync {
    /// Starts each gather of `job` when it arrives, or as soon as fewer than `job.depth` are in
    /// flight. Latency counts from the arrival. `buffer` has room for `job.depth` gathers.
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of reading many files.
pub trait FileWay: Sync {
    /// Returns the reason if this system refuses this part of the way, but not others.
    fn refused(&self) -> Option<String> {
        None
    }

    /// Reads all bytes of each file of `job` into memory. Offsets in the tally are
    /// [places](crate::machine::tree::Tree::place) of a tree.
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of reading from tasks that share a runtime.
pub trait MixedWay: Sync {
    /// Completes all reads of `job.plan`, each list by a separate task, beside a heartbeat of the
    /// same runtime and the neighbour of the job. The clock stops when the last task has completed.
    /// The runtime is created before the clock starts; verification already initializes it.
    ///
    /// A task starts its next read when it has the bytes of the last one. A way whose reads await
    /// nothing yields after each, so that other tasks run.
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture>;
}

/// One way of keeping pages in memory.
pub trait CacheWay: Sync {
    /// Caches all pages of the set, before the first round.
    fn open(&self, set: &PageSet<'_>) -> io::Result<Box<dyn CachedPages>>;
}

/// Pages of a [`PageSet`], all cached, which several threads read.
pub trait CachedPages: Sync {
    /// Does all reads of `job`, of eight bytes each.
    fn words(&self, job: &Hits<'_>, tally: &mut Tally<'_>) -> io::Result<()>;

    /// Does all reads of `job`, each into the start of `buffer`.
    fn copies(&self, _: &Hits<'_>, _: &mut [u8], _: &mut Tally<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// One way of choosing the pages that stay cached.
pub trait PolicyWay: Sync {
    /// Replays a trace with a new cache ([`Trace::replay`]).
    fn replay(&self, trace: &Trace<'_>, round: &mut Round<'_>) -> io::Result<HitRate>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NOWAIT_WRITE_DOCS=1` writes the table. Peers have a separate page.
    #[test]
    #[cfg(not(feature = "peers"))]
    fn the_guide_has_every_way() {
        const HEAD: &str = "| way | what it does | tables |\n|---|---|---|\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/bench.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, after) = page.split_once(HEAD).unwrap();
        let end = after.find("\n\n").unwrap() + 1;
        let made = [before, HEAD, &glossary(), &after[end..]].concat();
        if std::env::var_os("NOWAIT_WRITE_DOCS").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        assert!(made == page, "NOWAIT_WRITE_DOCS=1 cargo test --lib the_guide_has_every_way, in bench/");
    }

    #[test]
    fn every_way_has_a_name_of_its_own_words_and_work() {
        for (index, way) in WAYS.iter().enumerate() {
            assert!(WAYS[..index].iter().all(|other| other.name != way.name), "{}", way.name);
            assert!(!way.words.is_empty() && !way.words.ends_with('.') && !way.does.is_empty(), "{}", way.name);
            assert_eq!(way.hue.is_none(), way.name.starts_with(OURS), "{}", way.name);
            assert!(way.hue.is_none_or(|hue| hue < 8), "{}", way.name);
            // Only the first entry of a kind is measured.
            let kinds: Vec<_> = way.does.iter().map(std::mem::discriminant).collect();
            assert!((1..kinds.len()).all(|at| !kinds[..at].contains(&kinds[at])), "{}", way.name);
        }
    }
}
