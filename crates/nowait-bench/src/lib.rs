//! Workloads, ways and tables: what `nowait bench` measures, as a library.
//!
//! Read downwards; a file uses those above it, never those below.
//!
//! * [`error`]: what can go wrong, sorted by what the user can do about it.
//! * [`sys`]: the few system calls that need `unsafe`: mappings, page-cache residency, CPU usage, kernel workers.
//! * [`random`]: seeded numbers and permutations, so that a run can be repeated exactly.
//! * [`environment`]: where a figure comes from: kernel, file system, device, limits.
//! * [`dirty_limit`]: from how much dirty data on writers are put to sleep.
//! * [`memory_limit`]: a memory cgroup of our own.
//! * [`testfile`]: the file that is read, and how it is made cold, warm or half-cached, *verified*.
//! * [`mounts`]: file systems of our own to write on.
//! * [`pace`]: when an operation is to begin, where a rate is asked for.
//! * [`work`]: what a way is asked to do, as plain data.
//! * [`meter`]: one round on the clock: latencies, CPU of the whole process, switches, punts.
//! * [`ways`]: the ways of doing the work that are compared. Each is one implementation of [`ways::Way`].
//! * [`notes`]: what a report says besides its figures.
//! * [`report`]: the result as plain data, which is also the JSON.
//! * [`words`]: what tables, ways and figures are called, wherever they are shown.
//! * [`preflight`]: what makes figures worth less than they look.
//! * [`axes`]: how the cases of a table lie along a number.
//! * [`verdict`]: what a report says, in sentences.
//! * [`page`]: the report as one page of HTML, with its charts.
//! * [`tables`]: which cases each table has, as plain data.
//! * [`run`]: interleaves the ways over the rounds and fills the report.
//! * [`writes`]: the same for the tables that write.
//! * [`log`]: the same for the table `log`: writers that wait until their record is on stable storage.
//! * [`streams`]: the same for the table `dd`: whole files read, copied or written from their start to their end.
//! * [`prefault`]: the same for the table `prefault`: a cold file that is mapped, and populated or indexed.
//! * [`fio`]: the same work for fio, and what it then says.
//!
//! The rules that make the figures worth reading: every way reads the same file at the same seeded offsets
//! into the same kind of buffer; rounds are interleaved (A B C, B C A, …), because a shared disk drifts; cold
//! is verified before every cold round; CPU is that of the whole process, because a thread's own clock does
//! not see the kernel workers that it caused.

pub mod axes;
pub mod dirty_limit;
pub mod environment;
pub mod error;
pub mod fio;
pub mod log;
pub mod memory_limit;
pub mod meter;
pub mod mounts;
pub mod notes;
pub mod pace;
pub mod page;
pub mod prefault;
pub mod preflight;
pub mod random;
pub mod report;
pub mod run;
pub mod streams;
pub mod sys;
pub mod tables;
pub mod testfile;
pub mod verdict;
pub mod ways;
pub mod words;
pub mod work;
pub mod writes;

pub use error::{Error, ErrorKind, Result};
