//! Columns in which a table shows its own figures.

use crate::report::figures::micro;
use crate::report::{Latency, Row};

/// A figure of a row: its heading, and the text of its cell; `None` if it is unknown.
#[derive(Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub cell: fn(&Row) -> Option<String>,
}

/// Placement of a line of [`Grid::Rows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// By itself.
    Plain,
    /// Below the grid's name.
    Indented,
    /// Below the name of its case.
    UnderCase,
}

/// Figures below the speeds.
pub enum Grid {
    /// A line per row.
    Rows { name: &'static str, line: Line, has: fn(&Row) -> bool, columns: &'static [Column] },
    /// A line per case, a column per way; then a line with the largest of another figure, if any
    /// row has it.
    Ways { name: &'static str, figure: fn(&Row) -> Option<f64>, largest: (&'static str, fn(&Row) -> Option<f64>) },
}

/// A figure that is drawn along the axis of a table, a line per way.
#[derive(Clone, Copy)]
pub struct Curve {
    pub name: &'static str,
    pub value: fn(&Row) -> Option<f64>,
    pub logarithmic: bool,
}

/// A grid on the page, a line per row under the name of its case.
pub struct PageGrid {
    pub name: &'static str,
    pub caption: &'static str,
    pub columns: &'static [Column],
}

pub(super) const P50: Column = Column { name: "p50 µs", cell: |row| latency(row, |all| all.p50) };
pub(super) const P99: Column = Column { name: "p99 µs", cell: |row| latency(row, |all| all.p99) };
pub(super) const P999: Column = Column { name: "p99.9 µs", cell: |row| latency(row, |all| all.p999) };
pub(super) const LONGEST: Column = Column { name: "longest µs", cell: |row| latency(row, |all| all.max) };

pub(super) fn latency(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    row.latency_ns.as_ref().map(|latency| micro(of(latency)))
}

/// Processor time of the whole process, in µs an operation.
pub(super) fn cpu(row: &Row) -> Option<String> {
    Some(format!("{:.1}", row.cpu_us_per_op.total))
}

/// Time in which a way made ready, off the clock.
pub(super) fn prepared(row: &Row) -> Option<String> {
    Some(format!("{:.1}", row.prepared_ms?))
}

pub(super) fn every(_: &Row) -> bool {
    true
}
