//! Names and descriptions of tables and ways, wherever they are shown.

use crate::report::{Report, Row};
use crate::table;

/// Below this share of the best, a way has collapsed.
pub const COLLAPSED: f64 = 0.5;

pub fn title(table: &str) -> &str {
    table::by_name(table).map_or(table, |known| known.title())
}

/// Describes a way of the report; empty for one that neither it nor this crate knows.
pub fn meaning<'a>(report: &'a Report, way: &str) -> &'a str {
    report.ways.get(way).map_or_else(|| own_meaning(way), String::as_str)
}

fn own_meaning(way: &str) -> &'static str {
    match way {
        "pread" | "pwrite" => "one call at a time on one thread, whatever the depth",
        "pwritev-16" => "one thread that writes up to 16 adjacent blocks, of those in flight, by one pwritev",
        "threads" => {
            "as many native threads as the depth, each in plain calls; a gather by 32, a share for each, in load by one"
        }
        "threads-dsync" => "threads whose durable writes are pwritev2(RWF_DSYNC), not a pwrite and an fdatasync",
        "ring-fdatasync" => "ring with an fdatasync linked to each write, not RWF_DSYNC",
        "bufreader" => "preads of 256 KiB into a buffer of the program's own, blocks copied out of it, one at a time",
        "willneed" => "WILLNEED for as many reads as the depth, then pread in order",
        "touch" => "a map without any advice: each page is there when it is copied",
        "dd" => "the installed dd; in big-neutral past the page cache (iflag=direct, oflag=direct)",
        "cp" => "the installed cp -a, with --reflink=never where bytes are to be moved",
        "rsync" => "the installed rsync -aHAX --whole-file",
        "xcp" => "the installed xcp",
        "fcp" => "the installed fcp",
        "cpz" => "the installed cpz",
        "libaio" => "io_submit; through the page cache all work happens inside the submission",
        "ring-plain" => "io_uring as it is usually driven: no flags, one submission a call",
        "ring" => {
            "io_uring tuned by hand, from one thread, direct with registered buffers; in mixed, a ring for each of tokio's workers"
        }
        "tokio" => "tokio with spawn_blocking, as tokio::fs does it; a gather in at most 32 of them",
        "tokio-direct" => "the same past the page cache: whole blocks around what is wanted",
        "tokio-fs" => "tokio::fs::File, which has a position: a file, a seek and a read_exact for each task",
        "mmap" => "a map without any advice, copied from in spawn_blocking",
        "mmap-populate" => "the same, with MADV_POPULATE_READ of each range before",
        "plain" => "pread inside the task, on tokio's worker, which it keeps until the device is through",
        "append-fdatasync" => "each writer: a lock, a write, an fdatasync",
        "direct-dsync" => "one writer: pwritev2(RWF_DSYNC) of whole blocks past the page cache",
        "thread-batch" => "group commit by one thread: a write and an fdatasync for what arrived meanwhile",
        "thread-batch-direct" => "the same with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
        "thread-batch-pipelined" => "thread-batch, its writers with several records in flight, by batch number",
        "thread-batch-direct-pipelined" => "the same with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
        "thread-batch-tokio" => "thread-batch, its writers tasks of tokio that it tells by oneshot channels",
        "thread-batch-direct-tokio" => "the same with pwritev2(RWF_DSYNC) of whole blocks past the page cache",
        "ring-linked" => "each writer: a ring of its own, a write and an fdatasync linked to it",
        "ring-dsync" => "each writer: a ring of its own, whole blocks with RWF_DSYNC past the page cache",
        "nowait" => {
            "this library: its log, grown to what a round needs; in copy, nowait copy; in ranges, tasks on tokio; else \
             blocking at depth 1, block_on with more in flight"
        }
        "nowait-direct" => "this library past the page cache: whole blocks around what is wanted",
        "nowait-stream" => "this library's sequential Reader, through the page cache, asked for a block at a time",
        "nowait-strict" => "this library, never a plain call on the caller's thread",
        "nowait-threads" => "this library's log, a thread for each record in flight",
        "nowait-refused" => "this library's log without io_uring",
        "nowait-aio" => "this library by libaio, as where io_uring is refused: block_on at every depth",
        "nowait-await" => "this library: one future under block_on, which awaits one read after the other",
        "nowait-tokio-await" => "this library: one task on tokio, which awaits one read after the other",
        "nowait-smol" => "this library, on smol's executor",
        "nowait-tokio" => "this library, on tokio's multi-thread runtime",
        "fio-psync" | "fio-io_uring" | "fio-libaio" => {
            "fio with this engine, on its own clock, not interleaved with the others"
        }
        _ => "",
    }
}

/// Unit of [`compared`].
pub fn unit(table: &str) -> &'static str {
    table::by_name(table).map_or("ops/s", |known| known.unit())
}

/// The figure that the cells of a row's table compare.
pub fn compared(row: &Row) -> f64 {
    table::by_name(&row.table).map_or(row.ops_per_s, |known| known.compared(row))
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
}
