//! The ways that are compared. A new one is a file in one of the rooms, by what it does, and a line
//! in the list of each table that it takes part in. One that does several kinds of work lives where
//! it reads.

mod copy;
mod files;
mod log;
mod mixed;
mod queue;
mod ranges;
mod read;
mod readwrite;
pub mod runtime;
mod slots;
pub(crate) mod write;

use std::io;
use std::process::Command;

use crate::measure::meter::{Apart, Round};
use crate::measure::mixed::{Mixed, Mixture};
use crate::measure::options::Copied;
use crate::measure::work::{
    Appends, Commits, CopyJob, Gather, Gathers, Ranges, Reads, ReadsAndWrites, SmallFiles, Spread, Writes,
};

pub(crate) use copy::command::copy;
pub use log::commit::{Folder, by_pipelines, by_writers};
pub(crate) use log::durable::await_spare;
pub(crate) use read::nowait::{FirstRead, first_read};
pub use read::ring::io_uring_state;

/// The library's own way, whose standing is told.
pub const OURS: &str = "nowait";
/// The same on a tokio runtime.
pub const ON_TOKIO: &str = "nowait-tokio";
/// The ways of a program that knows none of the others.
pub const PLAIN: [&str; 3] = ["pread", "pwrite", "append-fdatasync"];

/// One way of doing the work: its name, and whether this system allows it.
///
/// The rules, the same for all, so that only the ways differ: prepare first, then [`Round::start`],
/// work, [`Round::stop`]. Read the clock once before each submission of an operation (or batch) and
/// once per harvest of completions, and tell the tally of each. Read into the buffer that the
/// caller gives. Do nothing for a particular case: a way does not know whether the file is cached.
/// Tell the tally of the bytes themselves: of a part of them it keeps checksums on the clock, which
/// the tables compare with those of what is to be there.
pub trait Way: Sync {
    fn name(&self) -> &'static str;

    /// Why this system refuses the way, if it does.
    fn refused(&self) -> Option<String> {
        None
    }
}

/// One way of reading at random.
pub trait ReadWay: Way {
    /// Starts each read when the job's schedule says so, and counts latency from there.
    fn paced(&self) -> bool {
        false
    }

    /// Has one read in flight whatever the depth, and gathers nothing: takes part in cases of single
    /// reads at depth 1.
    fn one_at_a_time(&self) -> bool {
        false
    }

    /// Completes all reads of `job`, `job.depth` of them in flight at a time. `buffer` has a block
    /// for each of those.
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;

    /// Completes all batches of `job`, one after the other, each into the start of `output`, its
    /// records in order.
    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of writing.
pub trait WriteWay: Way {
    /// Takes part in cases with so many writes in flight, and more.
    fn fewest_in_flight(&self) -> usize {
        1
    }

    /// Completes all writes of `job`, `job.depth` of them in flight at a time. `buffer` has a
    /// prepared block for each of those; a way that must own its buffers takes [`Writes::buffers`].
    /// A block is placed ([`crate::measure::work::Contents::place`]) just before the clock is read
    /// for its submission.
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of having records on stable storage.
pub trait LogWay: Way {
    /// Goes past the page cache, and so needs a file system that allows `O_DIRECT`.
    fn direct(&self) -> bool;

    /// Supports one writer only.
    fn alone(&self) -> bool {
        false
    }

    /// Has several records of a writer under way ([`Commits::in_flight`]). A way that has not gets a
    /// writer for each of them.
    fn pipelines(&self) -> bool {
        false
    }

    /// The most bytes of the file that a record of `size` bytes takes; 0 for a way that makes files
    /// of its own.
    fn room(&self, _size: usize) -> usize {
        0
    }

    /// Has every record of `job` on stable storage, from threads, or tasks, of which each waits for
    /// its own, and says how many bytes of the file they took, if it knows. Afterwards it finds each of them,
    /// if the round verifies, or else those that [are sampled](Commits::is_sampled), and tells the
    /// tally ([`crate::measure::meter::Tally::found`]) its number and its bytes. In rounds that do
    /// not verify, a way that makes files of its own may leave it out.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>>;
}

/// One way of gathering as requests for that arrive, several at a time.
pub trait GatherWay: Way {
    /// Begins each gather of `job` when it arrives, or as soon after that as one of `job.depth` is
    /// free, and counts latency from the arrival. `buffer` has room for each of those.
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of having records on stable storage as they arrive.
pub trait AppendWay: Way {
    /// Goes past the page cache, and so needs a file system that allows `O_DIRECT`.
    fn direct(&self) -> bool {
        false
    }

    /// The most bytes of the job's file that a record of `size` bytes takes; 0 for a way that makes
    /// files of its own.
    fn room(&self, _size: usize) -> usize {
        0
    }

    /// Begins each append of `job` when its record arrives, or as soon after that as one of
    /// `job.depth` is free, and counts latency from the arrival. Afterwards, if the round verifies,
    /// it finds each record, tells the tally ([`crate::measure::meter::Tally::verify`]) its number
    /// and its bytes, and says how many there were.
    fn appends(&self, job: &Appends<'_>, round: &mut Round<'_>) -> io::Result<usize>;
}

/// One way of reading many files.
pub trait FileWay: Way {
    /// Has all bytes of each file of `job` in memory. Places of the tally are
    /// [those](crate::machine::tree::Tree::place) of a tree.
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()>;

    /// Completes all reads of `job`, `job.depth` of them in flight at a time. `buffer` has a block
    /// for each of those.
    fn spread(&self, job: &Spread<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of reading ranges of a file, each into memory of its own.
pub trait RangeWay: Way {
    /// Goes past the page cache, and so needs a file system that allows `O_DIRECT`.
    fn direct(&self) -> bool {
        false
    }

    /// Reads all ranges of `job` from tasks of tokio. The memory of a range is new, and given up
    /// when the tally has seen its bytes.
    fn ranges(&self, job: &Ranges<'_>, round: &mut Round<'_>) -> io::Result<()>;
}

/// One way of copying a file, or a tree, by name.
pub trait CopyWay: Way {
    /// Takes part in copies of this kind. `shares`: source and target can share blocks.
    fn suits(&self, _: Copied, _shares: bool) -> bool {
        true
    }

    /// The command that does it.
    fn command(&self, job: &CopyJob<'_>) -> Command;
}

/// One way of reading a file and writing to it durably at the same time.
pub trait ReadWriteWay: Way {
    /// Completes all of `job`, `job.depth` of its accesses in flight at a time. A write is complete
    /// when its bytes are on stable storage. `buffer` has a block for each of those in flight; a
    /// block to be written is [made](crate::measure::work::Template) just before the clock is read
    /// for its submission.
    fn read_write(&self, job: &ReadsAndWrites<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<Apart>;
}

/// One way of reading blocks of a cold file in ascending order.
pub trait RowWay: Way {
    /// Keeps a place in the file, and reads from there on: takes part in cases of blocks that follow
    /// each other, one at a time.
    fn keeps_a_place(&self) -> bool {
        false
    }

    /// Copies every block into `buffer`, which has room for each of the `job.depth` that a way has
    /// under way, if it does not wait for one after the other.
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// Such reads have no schedule.
impl<W: ReadWay> RowWay for W {
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        self.reads(&Reads { pace: None, ..*job }, buffer, round)
    }
}

/// One way of reading from tasks that share a runtime.
pub trait MixedWay: Way {
    /// Completes all reads of `job.plan`, the list of each task in a task of its own, beside a
    /// heartbeat of the same runtime and the job's neighbour. The clock stops when the last task is
    /// through. A runtime is made before the clock starts; what a way makes on first use in it is
    /// there after the verification.
    ///
    /// A task begins its next read when it has its bytes. A way that would never let others run,
    /// since its reads do not await anything, gives way after each; a way that awaits does not.
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture>;
}

/// Every way that reads, in the order of the tables.
pub const fn readers() -> &'static [&'static dyn ReadWay] {
    &[
        &read::pread::Pread,
        &read::threads::Threads,
        &read::willneed::WillNeed,
        &read::libaio::Libaio,
        &read::ring::PLAIN,
        &read::ring::TUNED,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::awaits::Await,
        &read::nowait::Tokio,
        &read::awaits::TokioAwait,
    ]
}

/// Every way of the table of scans, in its order. (Through the page cache libaio is `pread` with
/// more calls.)
pub const fn scanners() -> &'static [&'static dyn RowWay] {
    &[
        &read::pread::Pread,
        &read::bufreader::BufReader,
        &read::threads::Threads,
        &read::willneed::WillNeed,
        &read::touch::Touch,
        &read::ring::TUNED,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::stream::Blocks,
        &read::nowait::Tokio,
    ]
}

/// Every way that reads past the page cache, in the order of the tables. There advice means
/// nothing, and libaio is asynchronous.
pub const fn direct_readers() -> &'static [&'static dyn ReadWay] {
    &[
        &read::pread::Pread,
        &read::threads::Threads,
        &read::libaio::Libaio,
        &read::ring::PLAIN,
        &read::ring::TUNED,
        &read::nowait::Blocking,
        &read::awaits::Await,
        &read::nowait::Aio,
        &read::nowait::Tokio,
        &read::awaits::TokioAwait,
    ]
}

/// Every way of the table of writes, in its order.
pub const fn writers() -> &'static [&'static dyn WriteWay] {
    &[
        &write::pwrite::Pwrite,
        &write::pwritev::Pwritev,
        &read::threads::Threads,
        &read::libaio::Libaio,
        &read::ring::PLAIN,
        &read::ring::TUNED,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::nowait::Tokio,
    ]
}

/// Every way of the table of stalls, in its order.
pub const fn stallers() -> &'static [&'static dyn WriteWay] {
    &[
        &write::heartbeat::Blocking,
        &write::heartbeat::Ring,
        &write::heartbeat::Tokio,
        &write::heartbeat::Futures { name: OURS, strict: false },
        &write::heartbeat::Futures { name: "nowait-strict", strict: true },
    ]
}

/// Every way of the table of the log, in its order.
pub const fn loggers() -> &'static [&'static dyn LogWay] {
    &[
        &log::commit::AppendFdatasync,
        &log::commit::DirectDsync,
        &log::batch::BUFFERED,
        &log::batch::DIRECT,
        &log::own_ring::LINKED,
        &log::own_ring::DSYNC,
        &log::durable::USUAL,
        &log::durable::REFUSED,
    ]
}

/// Every way of the table of pipelined appends, in its order.
pub const fn pipeliners() -> &'static [&'static dyn LogWay] {
    &[
        &log::batch::BUFFERED,
        &log::batch::DIRECT,
        &log::batch::PIPELINED,
        &log::batch::DIRECT_PIPELINED,
        &log::durable::USUAL,
        &log::durable::THREADS,
    ]
}

/// Every way of the table of appends from tasks, in its order.
pub const fn task_loggers() -> &'static [&'static dyn LogWay] {
    &[&log::batch::DIRECT, &log::tasks::BUFFERED, &log::tasks::DIRECT, &log::tasks::Tickets]
}

/// Every way that reads what arrives by chance, in the order of the table of load.
pub const fn load_readers() -> &'static [&'static dyn ReadWay] {
    &[
        &read::threads::Threads,
        &read::ring::TUNED,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::nowait::Tokio,
    ]
}

/// Every way that gathers it.
pub const fn load_gatherers() -> &'static [&'static dyn GatherWay] {
    &[
        &read::threads::Threads,
        &read::ring::TUNED,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::nowait::Tokio,
    ]
}

/// Every way that appends it.
pub const fn load_appenders() -> &'static [&'static dyn AppendWay] {
    &[log::arriving::THREADS, log::arriving::FUTURES, &log::arriving::Tasks]
}

/// Every way of the table of copies, in its order.
pub const fn copiers() -> &'static [&'static dyn CopyWay] {
    &[
        &copy::command::Cp,
        &copy::command::Dd,
        &copy::command::Rsync,
        &copy::command::Xcp,
        &copy::command::FCP,
        &copy::command::CPZ,
        &copy::command::Nowait,
    ]
}

/// Every way of the table of files, in its order.
pub const fn filers() -> &'static [&'static dyn FileWay] {
    &[
        &read::pread::Pread,
        &read::threads::Threads,
        &files::ring::Ring,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::nowait::Tokio,
    ]
}

/// Every way of the table of ranges, in its order.
pub const fn rangers() -> &'static [&'static dyn RangeWay] {
    &[
        &ranges::MMAP,
        &ranges::MMAP_POPULATE,
        &ranges::PREAD,
        &ranges::PREAD_DIRECT,
        &ranges::TokioFs,
        &ranges::LIBRARY,
        &ranges::LIBRARY_DIRECT,
    ]
}

/// Every way of the table of reads beside durable writes, in its order.
pub const fn readwriters() -> &'static [&'static dyn ReadWriteWay] {
    &[
        &readwrite::threads::FDATASYNC,
        &readwrite::threads::DSYNC,
        &readwrite::ring::FDATASYNC,
        &readwrite::ring::DSYNC,
        &read::spawn_blocking::SpawnBlocking,
        &read::nowait::Blocking,
        &read::nowait::Tokio,
    ]
}

/// Every way of the table of mixed loads, in its order.
pub const fn mixers() -> &'static [&'static dyn MixedWay] {
    &[
        &mixed::plain::Plain,
        &mixed::spawn_blocking::SpawnBlocking,
        &mixed::ring::Ring,
        &mixed::nowait::BlockOn,
        &mixed::nowait::OnTokio,
        &mixed::nowait::OnSmol,
    ]
}

pub fn reader(name: &str) -> Option<&'static dyn ReadWay> {
    readers().iter().chain(direct_readers()).copied().find(|way| way.name() == name)
}
