//! The library of `nowait bench`: workloads, ways and tables.
//!
//! A file uses only those above it in this list. The exception is `meter`, the loop of all cases,
//! which uses `table`.
//!
//! * [`error`]: errors, sorted by what the user can do about them.
//! * [`random`]: seeded numbers and permutations, so that a run can be repeated exactly.
//! * [`sys`]: the few system calls that need `unsafe`: mappings, page-cache residency, CPU usage,
//!   kernel workers, child processes for disturbances.
//! * [`machine`]: [`environment`](machine::environment) (kernel, file system, device, limits),
//!   [`dirty_limit`](machine::dirty_limit), [`testfile`](machine::testfile) (made cold, warm or
//!   half-cached, *verified*), [`tree`](machine::tree) (many small files),
//!   [`neighbour`](machine::neighbour) (competing programs).
//! * [`measure`]: [`options`](measure::options) (of the command line), [`pace`](measure::pace)
//!   (when operations start: at a rate or at random times), [`work`](measure::work) (the job of a
//!   way, as plain data), [`meter`](measure::meter) (the loop of all cases, one round on the clock,
//!   and the row of all rounds), [`cache`](measure::cache) (reads of cached pages, and traces),
//!   [`figure`](measure::figure) (figures that only one table has),
//!   [`mixed`](measure::mixed) (tasks that share a runtime: plan and results),
//!   [`turn`](measure::turn) (one way's turn, and its errors), [`progress`](measure::progress)
//!   (duration and progress of a run).
//! * [`ways`]: the compared ways, in groups by kind of work.
//! * [`report`], its data: rows and notes, [`figures`](report::figures) as text,
//!   and [`axes`](report::axes) of cases.
//! * [`stats`]: the ratio of two ways, its interval, and the conclusion.
//! * [`table`]: one or a few tables in each file. Start at [`table::Table`].
//! * [`report`], for its readers: [`preflight`](report::preflight)
//!   (conditions that distort the figures), [`verdict`](report::verdict) (sentences),
//!   [`page`](report::page) (HTML with charts).
//! * [`command`]: arguments to tables, a report to text, JSON and a page.
//!
//! Rules of all measurements:
//!
//! * All ways read the same file at the same seeded offsets into the same kind of buffer.
//! * Rounds are interleaved, in orders drawn by seed, because the speed of a shared disk drifts.
//! * The page cache is verified before every cold round.
//! * CPU time is that of the whole process, because a thread's clock does not include kernel
//!   workers.

// Items are public for the command and the programs of `integrations/`; the interface is not
// stable.
#![allow(missing_docs)]

pub mod command;
pub mod error;
pub mod machine;
pub mod measure;
pub mod random;
pub mod report;
pub mod stats;
pub mod sys;
pub mod table;
pub mod ways;

pub use error::{Error, ErrorKind, Result};
