//! Workloads, ways and tables: what `nowait bench` measures, as a library.
//!
//! Read downwards; a file uses those above it, but that the loop of all cases uses a table.
//!
//! * [`error`]: what can go wrong, sorted by what the user can do about it.
//! * [`random`]: seeded numbers and permutations, so that a run can be repeated exactly.
//! * [`sys`]: the few system calls that need `unsafe`: mappings, page-cache residency, CPU usage,
//!   kernel workers, processes that disturb.
//! * [`machine`]: [`environment`](machine::environment) (kernel, file system, device, limits),
//!   [`dirty_limit`](machine::dirty_limit), [`testfile`](machine::testfile) (made cold, warm or
//!   half-cached, *verified*), [`tree`](machine::tree) (many small files),
//!   [`neighbour`](machine::neighbour) (other programs that disturb).
//! * [`measure`]: [`options`](measure::options) (what was asked for), [`pace`](measure::pace) (when
//!   operations start, at a rate or by chance), [`work`](measure::work) (what a way is asked to do, as plain data),
//!   [`meter`](measure::meter) (the loop of all cases, one round on the clock, and the row of all rounds),
//!   [`figure`](measure::figure) (figures that only one table has),
//!   [`mixed`](measure::mixed) (tasks that share a runtime: their plan, and what they saw),
//!   [`turn`](measure::turn) (one way's turn, and how its failure is told),
//!   [`progress`](measure::progress) (how long a run takes, and how far it is).
//! * [`ways`]: the ways that are compared, a room for each kind of work.
//! * [`report`], its data: rows and notes, [`figures`](report::figures) as text,
//!   and [`axes`](report::axes) of cases.
//! * [`stats`]: the ratio of two ways, its interval, and what is concluded from it.
//! * [`table`]: a file for each table or a few. Start at [`table::Table`].
//! * [`report`], for its readers: [`preflight`](report::preflight) (what
//!   makes figures worth less than they look), [`verdict`](report::verdict) (sentences),
//!   [`page`](report::page) (HTML with charts).
//! * [`command`]: arguments to tables, a report to text, JSON and a page.
//!
//! The rules that make the figures worth reading: every way reads the same file at the same seeded
//! offsets into the same kind of buffer; rounds are interleaved, in orders drawn by seed, because a
//! shared disk drifts; cold is verified before every cold round; CPU is that of the whole process,
//! because a thread's own clock does not see the kernel workers that it caused.

// Public for the command and for programs of `integrations/`: no interface is promised.
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
