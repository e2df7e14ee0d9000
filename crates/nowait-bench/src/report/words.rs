//! What tables, ways and figures are called, wherever they are shown.

use crate::report::{Report, Row};

/// Below this share of the best, a way has collapsed.
pub const COLLAPSED: f64 = 0.5;

pub fn title(table: &str) -> &str {
    match table {
        "reads" => "reads: cold random reads of 4 KiB, operations/s by depth",
        "whole" => "whole: every 4 KiB of the file once, cold, in random order, operations/s",
        "cached" => "cached: random reads of 4 KiB that are cached, and of 64 KiB of which half is; operations/s",
        "gather" => "gather: batches of random records of 1 to 4 KiB, records/s by records in a batch",
        "writes" => "writes: a new file grows by writes of 4 KiB through the page cache, writes/s",
        "stall" => "stall: pages populated, or writes beyond a limit of dirty data or memory, beside other work; per s",
        "dd" => {
            "dd: a whole file in order: read cold, copied or written, and synced; past the page cache or through it; MiB/s"
        }
        "prefault" => "prefault: a cold file is mapped: all its pages are to be there, or random rows; pages/s, rows/s",
        "log" => "log: writers that append a record and wait until it is on stable storage, commits/s",
        other => other,
    }
}

/// What a way of the report does; nothing of one that neither it nor this crate knows.
pub fn meaning<'a>(report: &'a Report, way: &str) -> &'a str {
    report.ways.get(way).map_or_else(|| own_meaning(way), String::as_str)
}

fn own_meaning(way: &str) -> &'static str {
    match way {
        "pread" | "pwrite" => "one call at a time on one thread, whatever the depth",
        "threads" => "as many native threads as the depth, each in plain calls",
        "willneed" => "WILLNEED: for as many reads as the depth, then pread in order; of a map, then touch",
        "touch" => "a map without any advice: each page is there when it is touched",
        "map-populate" => "mmap with MAP_POPULATE",
        "madvise" => "madvise(MADV_POPULATE_READ) of all in one call",
        "thread" => "a thread that touches one page after the other, the calling thread asking how far it is",
        "random" => "a map with MADV_RANDOM: no readahead",
        "pread-buffered" => "the loop of pread through the page cache, with the kernel's readahead",
        "dd" => "the installed dd, past the page cache (iflag=direct, oflag=direct conv=fdatasync); writes /dev/zero",
        "cat" => "the installed cat, through the page cache",
        "libaio" => "io_submit; through the page cache it does everything inside the submission",
        "ring-plain" => "io_uring as it is usually driven: no flags, one submission a call",
        "ring" => "io_uring driven as well as we know how to, by hand, from one thread",
        "tokio" => "tokio with spawn_blocking, as tokio::fs does it",
        "append-fdatasync" => "each writer: a lock, a write, an fdatasync",
        "direct-dsync" => "one writer: pwritev2(RWF_DSYNC) of whole blocks past the page cache",
        "thread-batch" => "one thread for all: what has come meanwhile in a write and an fdatasync",
        "thread-batch-direct" => "the same with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
        "ring-linked" => "each writer: a ring of its own, a write and an fdatasync linked to it",
        "ring-dsync" => "each writer: a ring of its own, whole blocks with RWF_DSYNC past the page cache",
        "nowait" => "this library: its log; else blocking at depth 1, block_on with more in flight",
        "nowait-buffered" => "this library, through the page cache",
        "nowait-strict" => "this library, never a plain call on the caller's thread",
        "nowait-rotating" => "this library's log with segments of 4 MiB: a round goes through several",
        "nowait-refused" => "this library's log without io_uring",
        "nowait-aio" => "this library by libaio, as where io_uring is refused: block_on at every depth",
        "nowait-tokio" => "this library, on tokio's multi-thread runtime",
        "fio-psync" | "fio-io_uring" | "fio-libaio" => {
            "fio with this engine, on its own clock, not interleaved with the others"
        }
        _ => "",
    }
}

/// What [`compared`] counts.
pub fn unit(table: &str) -> &'static str {
    match table {
        "dd" => "MiB/s",
        "log" => "commits/s",
        "gather" => "records/s",
        "stall" => "per s",
        "prefault" => "pages or rows/s",
        "writes" => "writes/s",
        _ => "ops/s",
    }
}

/// What the cells of a table compare.
pub fn compared(row: &Row) -> f64 {
    if row.table == "dd" { mib(row.bytes_per_s) } else { row.ops_per_s }
}

pub fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// Three characters.
pub fn share(ratio: f64) -> String {
    if ratio < 0.995 { format!("{ratio:.2}").replacen("0.", ".", 1) } else { "1.0".to_owned() }
}

/// Four characters or so: `987`, `9.87k`, `98.7k`, `987k`, `1.23M`.
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

/// `4096`, `512K`, `64M`, `4G`, `1T`; powers of two.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.trim_end_matches("IB").trim_end_matches('B');
    let (digits, shift) = match number.char_indices().last() {
        Some((at, 'K')) => (&number[..at], 10),
        Some((at, 'M')) => (&number[..at], 20),
        Some((at, 'G')) => (&number[..at], 30),
        Some((at, 'T')) => (&number[..at], 40),
        _ => (number, 0),
    };
    let count: u64 = digits.parse().map_err(|_| "not a size such as 512M or 4G".to_owned())?;
    count.checked_mul(1 << shift).ok_or_else(|| "too large for a file".to_owned())
}

/// In microseconds.
pub fn micro(nanoseconds: u64) -> String {
    let micro = nanoseconds as f64 / 1e3;
    if micro < 9.95 { format!("{micro:.1}") } else { format!("{micro:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_from_elsewhere_brings_its_meaning_which_the_json_keeps() {
        let ways = [("other", "other 1.2.3: as it is")].map(|(way, meaning)| (way.to_owned(), meaning.to_owned()));
        let json = serde_json::to_string(&Report { ways: ways.into(), ..Report::default() }).unwrap();
        let report: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(meaning(&report, "other"), "other 1.2.3: as it is");
        assert_eq!(meaning(&report, "pread"), own_meaning("pread"));
        assert_eq!(meaning(&report, "unheard-of"), "");
    }

    #[test]
    fn numbers_stay_short() {
        let all = [0.4, 999.0, 999.9, 9_994.0, 12_345.0, 99_960.0, 999_499.0, 1_234_567.0].map(short);
        assert_eq!(all, ["0", "999", "1.00k", "9.99k", "12.3k", "100k", "999k", "1.23M"]);
    }
}
