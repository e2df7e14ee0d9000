//! Workloads, ways and tables: what `nowait bench` measures, as a library.
//!
//! Read downwards; a file uses those above it, never those below.
//!
//! * [`error`]: what can go wrong, sorted by what the user can do about it.
//! * [`sys`]: the few system calls that need `unsafe`: mappings, page-cache residency, CPU usage, kernel workers.
//! * [`random`]: seeded numbers and permutations, so that a run can be repeated exactly.
//! * [`machine::environment`]: where a figure comes from: kernel, file system, device, limits.
//! * [`machine::dirty_limit`]: from how much dirty data on writers are put to sleep.
//! * [`machine::memory_limit`]: a memory cgroup of our own.
//! * [`machine::testfile`]: the file that is read, and how it is made cold, warm or half-cached, *verified*.
//! * [`machine::mounts`]: file systems of our own to write on.
//! * [`measure::pace`]: when an operation is to begin, where a rate is asked for.
//! * [`measure::work`]: what a way is asked to do, as plain data.
//! * [`measure::meter`]: one round on the clock: latencies, CPU of the whole process, switches, punts.
//! * [`ways`]: the ways of doing the work that are compared. Each is one implementation of [`ways::Way`].
//! * [`report::notes`]: what a report says besides its figures.
//! * [`report`]: the result as plain data, which is also the JSON.
//! * [`report::words`]: what tables, ways and figures are called, wherever they are shown.
//! * [`report::preflight`]: what makes figures worth less than they look.
//! * [`report::axes`]: how the cases of a table lie along a number.
//! * [`report::verdict`]: what a report says, in sentences.
//! * [`report::page`]: the report as one page of HTML, with its charts.
//! * [`table`]: which cases each table has, as plain data.
//! * [`measure::run`]: interleaves the ways over the rounds and fills the report.
//! * [`table::writes`]: the same for the tables that write.
//! * [`table::log`]: the same for the table `log`: writers that wait until their record is on stable storage.
//! * [`table::dd`]: the same for the table `dd`: whole files read, copied or written from their start to their end.
//! * [`table::prefault`]: the same for the table `prefault`: a cold file that is mapped, and populated or indexed.
//! * [`report::fio`]: the same work for fio, and what it then says.
//!
//! The rules that make the figures worth reading: every way reads the same file at the same seeded offsets
//! into the same kind of buffer; rounds are interleaved (A B C, B C A, …), because a shared disk drifts; cold
//! is verified before every cold round; CPU is that of the whole process, because a thread's own clock does
//! not see the kernel workers that it caused.

pub mod error;
pub mod machine;
pub mod measure;
pub mod random;
pub mod report;
pub mod sys;
pub mod table;
pub mod ways;

pub use error::{Error, ErrorKind, Result};
