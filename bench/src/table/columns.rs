//! Columns with figures of only one table, in the printed report and on the page.

use crate::report::Row;
use crate::report::figures::{mib, micro};
use crate::table::listed;
use crate::ways::OURS;

/// A figure of a row: its heading, and the text of its cell; `None` if it is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub cell: fn(&Row) -> Option<String>,
}

/// Figures below the speeds: under each case, a line per way.
#[derive(Debug)]
pub struct Grid {
    pub name: &'static str,
    /// Printed only with `-v`.
    pub is_detail: bool,
    pub columns: &'static [Column],
}

/// A figure drawn along the axis of a table, as a line per way.
#[derive(Clone, Copy, Debug)]
pub struct Curve {
    pub name: &'static str,
    pub value: fn(&Row) -> Option<f64>,
    pub logarithmic: bool,
}

pub(super) const P50: Column = Column { name: "p50 µs", cell: |row| Some(micro(row.latency_ns?.p50)) };
pub(super) const P99: Column = Column { name: "p99 µs", cell: |row| Some(micro(row.latency_ns?.p99)) };
pub(super) const P999: Column = Column { name: "p99.9 µs", cell: |row| Some(micro(row.latency_ns?.p999)) };
pub(super) const LONGEST: Column = Column { name: "longest µs", cell: |row| Some(micro(row.latency_ns?.max)) };
/// Processor time of the whole process, in µs per operation.
pub(super) const CPU: Column = Column { name: "CPU µs", cell: |row| Some(format!("{:.1}", row.cpu_us_per_op.total)) };
pub(super) const SWITCHES: Column =
    Column { name: "csw", cell: |row| Some(format!("{:.2}", row.context_switches_per_op)) };
pub(super) const MIB: Column = Column { name: "MiB/s", cell: |row| Some(format!("{:.0}", mib(row.bytes_per_s))) };

/// Formats a figure that only the row's table has.
pub(super) fn own(row: &Row, name: &str, decimals: usize) -> Option<String> {
    Some(format!("{:.decimals$}", row.figure(name)?))
}

/// Formats the largest figure of a case, the smallest, and those of this library, in ms:
/// `0.30 ms with b, 0.10 ms with a, 0.20 ms with nowait`
pub(super) fn from_worst(rows: &[&Row], with: &str, figure: impl Fn(&Row) -> Option<u64>) -> Option<String> {
    let mut ways: Vec<(u64, &str)> = rows.iter().filter_map(|row| Some((figure(row)?, row.way.as_str()))).collect();
    ways.sort_unstable();
    let ms = |nanoseconds: u64| format!("{:.2} ms", nanoseconds as f64 / 1e6);
    let ((most, worst), others) = ways.split_last()?;
    let is_told = |(index, (_, way)): &(usize, &(u64, &str))| *index == 0 || way.starts_with(OURS);
    let of = |(figure, way): &(u64, &str)| format!("{} {with} {way}", ms(*figure));
    let told: Vec<String> = others.iter().enumerate().filter(is_told).map(|(_, other)| of(other)).collect();
    (!told.is_empty()).then(|| format!("{}, {}", of(&(*most, *worst)), told.join(", ")))
}

/// The ways of a case by their p99, the lowest first: `a 12 µs and b 15 µs`
pub(super) fn by_p99(rows: &[&Row]) -> String {
    let mut ways: Vec<(u64, &str)> =
        rows.iter().filter_map(|row| Some((row.latency_ns?.p99, row.way.as_str()))).collect();
    ways.sort_unstable();
    listed(&ways.iter().map(|(p99, way)| format!("{way} {} µs", micro(*p99))).collect::<Vec<_>>())
}
