//! Figures as text, and the descriptions of tables and ways, for all outputs.

use crate::report::{Report, Row};
use crate::table::columns::Column;
use crate::{table, ways};

/// Figures that the rows of all tables have.
pub static COLUMNS: [Column; 18] = [
    Column { name: "per s", cell: |row| Some(short(row.ops_per_s)) },
    Column { name: "MiB/s", cell: |row| Some(decimals(mib(row.bytes_per_s), 1)) },
    Column { name: "min–max", cell: spread },
    Column { name: "rounds", cell: |row| Some(row.rounds.len().to_string()) },
    Column { name: "p50 µs", cell: |row| Some(micro(row.latency_ns?.p50)) },
    Column { name: "p99 µs", cell: |row| Some(micro(row.latency_ns?.p99)) },
    Column { name: "p99.9 µs", cell: |row| Some(micro(row.latency_ns?.p999)) },
    Column { name: "p99.99 µs", cell: |row| Some(micro(row.latency_ns?.p9999?)) },
    Column { name: "max µs", cell: |row| Some(micro(row.latency_ns?.max)) },
    Column { name: "CPU µs", cell: |row| Some(decimals(row.cpu_us_per_op.total, 1)) },
    Column { name: "caller", cell: |row| Some(decimals(row.cpu_us_per_op.caller, 1)) },
    Column { name: "ring", cell: |row| Some(decimals(row.cpu_us_per_op.ring_workers?, 1)) },
    Column { name: "pool", cell: |row| Some(decimals(row.cpu_us_per_op.pool, 1)) },
    Column { name: "system", cell: |row| Some(decimals(row.cpu_us_per_op.system?, 1)) },
    Column { name: "csw", cell: |row| Some(decimals(row.context_switches_per_op, 2)) },
    Column { name: "punts", cell: |row| Some(decimals(row.punts_per_op?, 2)) },
    Column { name: "inline", cell: |row| Some(decimals(row.inline_fraction?, 2)) },
    Column { name: "prepared ms", cell: |row| Some(decimals(row.prepared_ms?, 1)) },
];

/// Explains [`COLUMNS`].
pub const MEANINGS: &str = "min–max: the slowest and the fastest round, relative to the median. p50 to max: latency. CPU: \
    processor time of the whole process per operation, the sum of caller, ring and pool. caller: that of the threads that \
    make the requests. ring: that of the kernel workers of its rings. pool: that of its other threads. system: other time \
    of the machine's processors per operation (other kernel threads, interrupts, other programs). csw: context switches \
    per operation. punts: requests handed to kernel workers, per operation. inline: share of requests served on the \
    caller's thread without waiting. prepared: time that the way needed before the clock started. Empty, or a ?: unknown.";

/// Returns the columns with a value in any row of the table.
pub fn known<'a>(report: &Report, table: &str, columns: impl Iterator<Item = &'a Column>) -> Vec<&'a Column> {
    let rows = || report.rows.iter().filter(|row| row.table == table);
    columns.filter(|column| rows().any(|row| (column.cell)(row).is_some())).collect()
}

/// Formats the slowest and the fastest round, relative to the median.
fn spread(row: &Row) -> Option<String> {
    let (slowest, fastest) = row.spread();
    (!row.rounds.is_empty()).then(|| format!("{slowest:.2}–{fastest:.2}"))
}

pub fn decimals(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}")
}

pub fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// Formats a ratio in three characters.
pub fn share(ratio: f64) -> String {
    if ratio < 0.995 { format!("{ratio:.2}").replacen("0.", ".", 1) } else { "1.0".to_owned() }
}

/// Formats a number in about four characters: `987`, `9.87k`, `98.7k`, `987k`, `1.23M`.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        small if small < 999.5 => (small, ""),
        middle if middle < 999_500.0 => (middle / 1e3, "k"),
        large => (large / 1e6, "M"),
    };
    let decimals = if unit.is_empty() || scaled >= 99.95 {
        0
    } else if scaled >= 9.995 {
        1
    } else {
        2
    };
    format!("{scaled:.decimals$}{unit}")
}

/// Formats nanoseconds in microseconds.
pub fn micro(nanoseconds: u64) -> String {
    let micro = nanoseconds as f64 / 1e3;
    if micro < 9.95 { format!("{micro:.1}") } else { format!("{micro:.0}") }
}

/// Formats as `512`, `16K`, `1M`, `1G`.
pub fn size_of(bytes: usize) -> String {
    match bytes {
        gib if gib > 0 && gib % (1 << 30) == 0 => format!("{}G", gib >> 30),
        mib if mib % (1 << 20) == 0 => format!("{}M", mib >> 20),
        kib if kib % (1 << 10) == 0 => format!("{}K", kib >> 10),
        bytes => bytes.to_string(),
    }
}

/// Formats as `512 bytes`, `16 KiB`, `3 MiB`, in the largest unit that is not zero.
pub fn whole_size_of(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

/// Share of the best below which a way has collapsed.
pub const COLLAPSED: f64 = 0.5;

pub fn title(table: &str) -> &str {
    table::by_name(table).map_or(table, |known| known.title)
}

/// Describes a way of the report; empty if neither the report nor this crate knows it.
pub fn meaning<'a>(report: &'a Report, way: &str) -> &'a str {
    let own = || ways::named(way).map_or("", |way| way.words);
    report.ways.get(way).map_or_else(own, String::as_str)
}

/// Unit of [`compared`].
pub fn unit(table: &str) -> &'static str {
    table::known(table).unit
}

/// Returns the figure of a row that its table compares.
pub fn compared(row: &Row) -> f64 {
    (table::known(&row.table).compared)(row)
}

/// Returns the best of the compared figures of a case, above 0.
pub fn best_compared(rows: &[&Row]) -> f64 {
    rows.iter().map(|row| compared(row)).fold(f64::MIN_POSITIVE, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_short() {
        assert_eq!(
            [512, 1536, 4096, 3 << 19, 1 << 20, 1 << 30].map(size_of),
            ["512", "1536", "4K", "1536K", "1M", "1G"]
        );
    }

    #[test]
    fn what_is_there_is_never_told_as_none() {
        assert_eq!([0, 1023, 4096, 3 << 19].map(whole_size_of), ["0 bytes", "1023 bytes", "4 KiB", "1 MiB"]);
    }

    #[test]
    fn numbers_stay_short() {
        let all = [0.4, 999.0, 999.9, 9_994.0, 12_345.0, 99_960.0, 999_499.0, 1_234_567.0].map(short);
        assert_eq!(all, ["0", "999", "1.00k", "9.99k", "12.3k", "100k", "999k", "1.23M"]);
    }

    #[test]
    fn a_way_from_elsewhere_brings_its_meaning_which_the_json_keeps() {
        let ways = [("other", "other 1.2.3: as it is")].map(|(way, meaning)| (way.to_owned(), meaning.to_owned()));
        let json = serde_json::to_string(&Report { ways: ways.into(), ..Report::default() }).unwrap();
        let report: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(meaning(&report, "other"), "other 1.2.3: as it is");
        assert_eq!(meaning(&report, "pread"), ways::named("pread").unwrap().words);
        assert_eq!(meaning(&report, "unheard-of"), "");
    }
}
