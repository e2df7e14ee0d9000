//! Common loops of threads, tasks and futures over operations of any kind: reads, writes, and small
//! files that are opened, read and closed. A way that implements [`Drive`] takes part in all their
//! tables.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::join_all;
use nowait::Buf;

use super::runtime::{finish, runtime};
use super::{FileWay, GatherWay, ReadWay, WriteWay};
use crate::machine::tree::Tree;
use crate::measure::meter::{Round, SAMPLED_EVERY, Sampled, Tally};
use crate::measure::pace::{Arrivals, Pace, Schedule};
use crate::measure::work::{Contents, Gather, Gathers, Reads, SmallFiles, Writes};
use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    /// A write through the page cache.
    Write,
    /// A write that is complete when it is on stable storage.
    DurableWrite,
    /// A file, opened, read to its end and closed.
    Whole,
    /// Many records in one call.
    Gather,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub kind: Kind,
    /// Index of the file in [`RoundPlan::files`]; for a whole file, its number in
    /// [`RoundPlan::path`]; for a gather, the number of the gather.
    pub file: usize,
    pub offset: u64,
    /// 0 for a whole file.
    pub len: usize,
    /// Identifies its bytes for verification.
    place: u64,
}

impl Operation {
    /// Reads the first file.
    pub(super) fn read(offset: u64, len: usize) -> Self {
        Self { kind: Kind::Read, file: 0, offset, len, place: offset }
    }

    pub(super) fn write(offset: u64, len: usize) -> Self {
        Self { kind: Kind::Write, ..Self::read(offset, len) }
    }

    /// Reads the whole file with the first path.
    pub(super) fn whole(place: u64) -> Self {
        Self { kind: Kind::Whole, ..Self { place, ..Self::read(0, 0) } }
    }

    pub(super) fn durable(offset: u64, len: usize) -> Self {
        Self { kind: Kind::DurableWrite, ..Self::read(offset, len) }
    }
}

/// Operations of a round, which tasks share.
pub(super) struct RoundPlan {
    list: List,
    /// Files as opened for all ways.
    pub files: Vec<Arc<File>>,
    /// Path for ways that open the file.
    path: PathBuf,
    pub direct: bool,
    pub block: usize,
    pub depth: usize,
    pace: Option<Pace>,
}

enum List {
    Reads {
        offsets: Vec<u64>,
        size: u64,
    },
    Writes {
        blocks: usize,
        contents: Contents,
    },
    Whole {
        files: Arc<[(u64, PathBuf)]>,
        len_max: usize,
    },
    /// All records, and their number in each gather.
    Gathers {
        extents: Vec<(u64, usize)>,
        records: usize,
    },
}

/// Opening of a plan's files by a way.
pub(super) enum FileOpening<'a> {
    /// Uses the open files.
    AsGiven,
    ByName {
        path: &'a Path,
        reads: bool,
        writes: bool,
    },
    /// Opens no files: each operation opens its file.
    Nothing,
}

impl RoundPlan {
    fn new(list: List, files: Vec<Arc<File>>, block: usize, depth: usize) -> Self {
        Self { list, files, path: PathBuf::new(), direct: false, block, depth, pace: None }
    }

    fn count(&self) -> usize {
        match &self.list {
            List::Reads { offsets, .. } => offsets.len(),
            List::Writes { blocks, .. } => *blocks,
            List::Whole { files, .. } => files.len(),
            List::Gathers { extents, records } => extents.len() / records,
        }
    }

    #[inline]
    fn get(&self, index: usize) -> Option<Operation> {
        let of_block = |kind, offset| Operation { kind, file: 0, offset, len: self.block, place: offset };
        match &self.list {
            List::Reads { offsets, size } => {
                let offset = *offsets.get(index)?;
                let len = self.block.min(size.saturating_sub(offset) as usize);
                Some(Operation { len, ..of_block(Kind::Read, offset) })
            }
            List::Writes { blocks, .. } => {
                (index < *blocks).then(|| of_block(Kind::Write, (index * self.block) as u64))
            }
            List::Whole { files, .. } => {
                let place = Tree::place(files.get(index)?.0);
                Some(Operation { file: index, ..Operation::whole(place) })
            }
            List::Gathers { .. } => {
                (index < self.count()).then(|| Operation { file: index, ..of_block(Kind::Gather, 0) })
            }
        }
    }

    /// Returns the name of a whole file.
    pub(super) fn path(&self, operation: Operation) -> &Path {
        match &self.list {
            List::Whole { files, .. } => &files[operation.file].1,
            _ => &self.path,
        }
    }

    /// Returns offset and length of each record of a gather.
    pub(super) fn extents(&self, operation: Operation) -> &[(u64, usize)] {
        match &self.list {
            List::Gathers { extents, records } => &extents[operation.file * records..][..*records],
            _ => &[],
        }
    }

    /// Returns the number of records of a gather; 0 for other operations.
    pub(super) fn records(&self) -> usize {
        if let List::Gathers { records, .. } = self.list { records } else { 0 }
    }

    /// Returns the names of whole files, for system calls.
    pub(super) fn paths(&self) -> io::Result<Vec<CString>> {
        let List::Whole { files, .. } = &self.list else { return Ok(Vec::new()) };
        Ok(files.iter().map(|(_, path)| CString::new(path.as_os_str().as_bytes())).collect::<Result<_, _>>()?)
    }

    /// Returns the maximum length of a whole file.
    pub(super) fn len_max(&self) -> usize {
        if let List::Whole { len_max, .. } = self.list { len_max } else { self.block }
    }

    pub(super) fn open(&self) -> FileOpening<'_> {
        let path = &*self.path;
        match self.list {
            List::Reads { .. } | List::Gathers { .. } if self.direct => {
                FileOpening::ByName { path, reads: true, writes: false }
            }
            List::Reads { .. } | List::Gathers { .. } => FileOpening::AsGiven,
            List::Writes { .. } => FileOpening::ByName { path, reads: false, writes: true },
            List::Whole { .. } => FileOpening::Nothing,
        }
    }

    /// Returns a touched buffer for one operation in flight.
    pub(super) fn buffer(&self) -> Buf {
        if let List::Whole { .. } = self.list {
            return Buf::zeroed(0);
        }
        let mut buffer = touched(self.block);
        if let List::Writes { contents, .. } = self.list {
            contents.prepare(&mut buffer, self.block);
        }
        buffer
    }

    /// Prepares the bytes of a write.
    #[inline]
    pub(super) fn make(&self, operation: Operation, block: &mut [u8]) {
        if let List::Writes { contents, .. } = &self.list {
            contents.place(block, operation.offset);
        }
    }

    /// Starts the schedule now.
    pub(super) fn schedule(&self) -> Schedule {
        Schedule::new(self.pace.as_ref())
    }

    /// Reports a complete operation to the tally.
    #[inline]
    pub(super) fn tell(&self, operation: Operation, bytes: &[u8], moments: (Instant, Instant), tally: &mut Tally<'_>) {
        match self.list {
            List::Gathers { .. } => {
                let extents = self.extents(operation);
                let offsets: Vec<u64> = extents.iter().map(|(offset, _)| *offset).collect();
                tally.gathered(&offsets, bytes.chunks(extents[0].1), bytes.len(), moments);
            }
            _ => tally.block(operation.place, bytes, moments.0, moments.1),
        }
    }
}

/// A plan, which ends early after an interrupt.
pub(super) struct Job<'a> {
    pub plan: Arc<RoundPlan>,
    cancel: &'a AtomicBool,
}

impl Job<'_> {
    /// Returns the operation of this index; `None` after the last, or after an interrupt.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Operation> {
        if self.cancel.load(Ordering::Relaxed) { None } else { self.plan.get(index) }
    }
}

impl Deref for Job<'_> {
    type Target = RoundPlan;

    fn deref(&self) -> &RoundPlan {
        &self.plan
    }
}

/// A way of keeping operations in flight.
pub(super) trait Drive: Sync {
    /// Completes all operations of `job`, with `job.depth` of them in flight. `buffer` has a block
    /// for each of these, with contents if they are writes; it is empty for whole files.
    fn drive(&self, job: &Job<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;

    /// See [`ReadWay::gather`].
    fn gather(&self, _: &Gather<'_>, _: &mut [u8], _: &mut Round<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// See [`GatherWay::gathers`].
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let extents = job.offsets.iter().map(|&offset| (offset, job.block)).collect();
        let list = List::Gathers { extents, records: job.records };
        let plan = RoundPlan {
            path: job.target.path.into(),
            direct: job.target.direct,
            pace: Some(job.pace.clone()),
            ..RoundPlan::new(list, vec![Arc::new(job.target.file.try_clone()?)], job.output_len(), job.depth)
        };
        self.drive(&Job { plan: Arc::new(plan), cancel: job.cancel }, buffer, round)
    }

    /// See [`ReadWay::one_at_a_time`].
    fn one_at_a_time(&self) -> bool {
        false
    }

    /// See [`FileWay::refused`].
    fn refuses_files(&self) -> Option<String> {
        None
    }
}

impl<D: Drive> ReadWay for D {
    fn one_at_a_time(&self) -> bool {
        Drive::one_at_a_time(self)
    }

    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let list = List::Reads { offsets: job.offsets.into(), size: job.target.size };
        let plan = RoundPlan {
            path: job.target.path.into(),
            direct: job.target.direct,
            pace: job.pace.cloned(),
            ..RoundPlan::new(list, vec![Arc::new(job.target.file.try_clone()?)], job.block, job.depth)
        };
        self.drive(&Job { plan: Arc::new(plan), cancel: job.cancel }, buffer, round)
    }

    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Drive::gather(self, job, output, round)
    }
}

impl<D: Drive> GatherWay for D {
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        Drive::gathers(self, job, buffer, round)
    }
}

impl<D: Drive> WriteWay for D {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let list = List::Writes { blocks: job.blocks as usize, contents: job.contents };
        let plan = RoundPlan::new(list, vec![job.file.clone()], job.block, job.depth);
        let plan = RoundPlan { path: job.path.into(), ..plan };
        self.drive(&Job { plan: Arc::new(plan), cancel: job.cancel }, buffer, round)
    }
}

impl<D: Drive> FileWay for D {
    fn refused(&self) -> Option<String> {
        self.refuses_files()
    }

    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let list = List::Whole { files: job.files.clone(), len_max: job.len_max };
        let plan = Arc::new(RoundPlan::new(list, Vec::new(), 0, job.depth));
        self.drive(&Job { plan, cancel: job.cancel }, &mut [], round)
    }
}

/// Runs one thread's loop: performs the operations that `take` returns, one after the other. `call`
/// transfers the bytes of the block, or returns those of a whole file.
pub(super) fn work<B: AsRef<[u8]>>(
    job: &Job<'_>,
    schedule: &Schedule,
    mut take: impl FnMut() -> usize,
    buffer: &mut [u8],
    tally: &mut Tally<'_>,
    mut call: impl FnMut(Operation, &mut [u8]) -> io::Result<Option<B>>,
) -> io::Result<()> {
    loop {
        let index = take();
        let Some(operation) = job.get(index) else { return Ok(()) };
        let block = &mut buffer[..operation.len];
        job.make(operation, block);
        let started = schedule.wait(index);
        let whole = call(operation, block)?;
        let bytes = whole.as_ref().map_or(&*block, AsRef::as_ref);
        job.tell(operation, bytes, (started, Instant::now()), tally);
    }
}

/// Runs a job on this thread, one operation after the other.
pub(super) fn in_turn<B: AsRef<[u8]>>(
    job: &Job<'_>,
    buffer: &mut [u8],
    round: &mut Round<'_>,
    call: impl FnMut(Operation, &mut [u8]) -> io::Result<Option<B>>,
) -> io::Result<()> {
    round.start();
    let mut next = 0..;
    work(job, &job.schedule(), || next.next().unwrap_or(usize::MAX), buffer, &mut round.tally, call)?;
    round.stop();
    Ok(())
}

/// Returns a touched buffer of whole pages. Ways that are compared have their data aligned alike: a
/// cached read into memory that is not aligned to 64 bytes takes up to three times as long, where the
/// kernel copies by `rep movsb`.
pub(super) fn touched(len: usize) -> Buf {
    let mut buffer = Buf::zeroed(len);
    buffer.fill(0xa5);
    buffer
}

/// Open files that a way's futures read and write.
pub(super) trait Handle: Clone + Send + Sync + 'static {
    /// Transfers the bytes of the buffer; for a read, the first `len`.
    fn one(&self, operation: Operation, buffer: Buf) -> impl Future<Output = io::Result<Buf>> + Send;

    /// Reads a file to its end.
    fn whole(&self, _: &Path) -> impl Future<Output = io::Result<Vec<u8>>> + Send {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Reads these records into the buffer, one after the other.
    fn gather(&self, _: &[(u64, usize)], _: Buf) -> impl Future<Output = io::Result<Buf>> + Send {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Lets other tasks run after each operation, if the operations do not yield.
    fn give_way(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Fills the buffer.
    fn read(&self, buffer: Buf, offset: u64) -> impl Future<Output = io::Result<Buf>> + Send {
        let len = buffer.len();
        self.one(Operation::read(offset, len), buffer)
    }

    fn write(&self, buffer: Buf, offset: u64) -> impl Future<Output = io::Result<Buf>> + Send {
        let len = buffer.len();
        self.one(Operation::write(offset, len), buffer)
    }
}

/// Returns whether the operation's bytes are prepared before the clock is read.
fn is_made(operation: Operation) -> bool {
    operation.kind == Kind::Write
}

/// Performs one operation; returns the buffer, and the bytes of a whole file.
async fn one(
    handle: &impl Handle,
    plan: &RoundPlan,
    operation: Operation,
    buffer: Buf,
) -> io::Result<(Buf, Option<Vec<u8>>)> {
    match operation.kind {
        Kind::Whole => Ok((buffer, Some(handle.whole(plan.path(operation)).await?))),
        Kind::Gather => Ok((handle.gather(plan.extents(operation), buffer).await?, None)),
        _ => Ok((handle.one(operation, buffer).await?, None)),
    }
}

/// Runs a job as loops in one future of this thread, under `nowait::block_on`.
pub(super) fn in_block_on(handle: &impl Handle, job: &Job<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let arrivals = Arrivals::new(job.pace.as_ref(), job.count());
    let buffers: Vec<Buf> = (0..job.depth).map(|_| job.buffer()).collect();
    round.start();
    let told = RefCell::new(&mut round.tally);
    let loops = buffers.into_iter().map(|mut buffer| {
        let (arrivals, told) = (&arrivals, &told);
        async move {
            while let Some((index, mut started)) = arrivals.next().await {
                let Some(operation) = job.get(index) else { break };
                job.make(operation, &mut buffer);
                if is_made(operation) {
                    started = Instant::now();
                }
                let whole;
                (buffer, whole) = one(handle, &job.plan, operation, buffer).await?;
                let bytes = whole.as_deref().unwrap_or(&buffer[..operation.len]);
                job.tell(operation, bytes, (started, Instant::now()), &mut told.borrow_mut());
            }
            io::Result::Ok(())
        }
    });
    let result = nowait::block_on(join_all(loops)).into_iter().collect();
    round.stop();
    result
}

/// Observations of one task. With thousands of tasks, a histogram for each would need more of the
/// processor's caches than the measured work. So they are stored, and reported after the clock has
/// stopped.
struct Noted {
    seen: Vec<(usize, Instant, Instant)>,
    /// A task may have too few operations for a sample, so a hash of an operation's place selects
    /// it.
    sampled_one_in: u64,
    sampled: Vec<Sampled>,
    /// The bytes, if the round compares them.
    bytes: Option<Vec<(u64, Vec<u8>)>>,
}

impl Noted {
    fn new(plan: &RoundPlan, round: &Tally<'_>) -> Self {
        let seen = Vec::with_capacity(plan.count().div_ceil(plan.depth) * 2);
        let sampled_one_in = (SAMPLED_EVERY / plan.len_max().max(1) as u64).max(1);
        Self { seen, sampled_one_in, sampled: Vec::new(), bytes: round.verifies().then(Vec::new) }
    }

    #[inline]
    fn add(&mut self, plan: &RoundPlan, operation: Operation, bytes: &[u8], started: Instant) {
        self.seen.push((bytes.len(), started, Instant::now()));
        if operation.kind == Kind::Gather {
            return self.add_gather(plan.extents(operation), bytes);
        }
        if let Some(kept) = &mut self.bytes {
            kept.push((operation.place, bytes.to_vec()));
        } else if Random::at(operation.place, 0).below(self.sampled_one_in) == 0 {
            self.sampled.push(Sampled::of(operation.place, bytes));
        }
    }

    fn add_gather(&mut self, extents: &[(u64, usize)], bytes: &[u8]) {
        let (first, len) = extents[0];
        let mut records = extents.iter().map(|(offset, _)| *offset).zip(bytes.chunks(len));
        if let Some(kept) = &mut self.bytes {
            kept.extend(records.map(|(offset, record)| (offset, record.to_vec())));
        } else if Random::at(first, 0).below(self.sampled_one_in) == 0 {
            // Each gather samples another record.
            let sampled = records.nth((first / len as u64) as usize % extents.len());
            self.sampled.extend(sampled.map(|(offset, record)| Sampled::of(offset, record)));
        }
    }

    fn tell(self, tally: &mut Tally<'_>) {
        for (place, bytes) in self.bytes.into_iter().flatten() {
            tally.verify(place, &bytes);
        }
        let mut sampled = self.sampled.into_iter();
        for (len, started, now) in self.seen {
            tally.seen(len, sampled.next(), started, now);
        }
    }
}

/// Runs a job as tasks of tokio's multi-thread runtime, one for each operation in flight.
pub(super) fn on_tokio(handle: &impl Handle, job: &Job<'_>, round: &mut Round<'_>) -> io::Result<()> {
    let arrivals = Arrivals::new(job.pace.as_ref(), job.count());
    let tasks = (0..job.depth).map(|_| {
        let (handle, plan, arrivals) = (handle.clone(), job.plan.clone(), arrivals.clone());
        let (mut noted, mut buffer) = (Noted::new(&plan, &round.tally), plan.buffer());
        async move {
            while let Some((index, mut started)) = arrivals.next().await {
                let Some(operation) = plan.get(index) else { break };
                plan.make(operation, &mut buffer);
                if is_made(operation) {
                    started = Instant::now();
                }
                let whole;
                (buffer, whole) = one(&handle, &plan, operation, buffer).await?;
                noted.add(&plan, operation, whole.as_deref().unwrap_or(&buffer[..operation.len]), started);
            }
            io::Result::Ok(noted)
        }
    });
    let tasks: Vec<_> = tasks.collect();
    round.start();
    let noted = finish(tasks.into_iter().map(|task| runtime().spawn(task)).collect());
    round.stop();
    noted?.into_iter().for_each(|noted| noted.tell(&mut round.tally));
    Ok(())
}
