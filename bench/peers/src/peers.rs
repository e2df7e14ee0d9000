//! Which ways take part in which table, and what those are that are not `nowait-bench`'s own.

use std::collections::BTreeMap;

use nowait_bench::table::{Table, cached, gather, log, reading::Readers, reads, writes};
use nowait_bench::ways::{self, LogWay, ReadWay, Way, WriteWay};

use crate::compio::Compio;
use crate::glommio::{Buffered, Dma};
use crate::logs::fjall::Fjall;
use crate::logs::okaywal::OkayWal;
use crate::logs::raft_engine::RaftEngine;
#[cfg(feature = "rocksdb")]
use crate::logs::rocksdb::RocksDb;
use crate::monoio::Monoio;
use crate::one_thread::OneThread;
use crate::tokio_fs::TokioFs;
use crate::tokio_uring::TokioUring;

/// Ways of `nowait-bench` beside which the peers are shown: all that can be the best, and the
/// library's.
const OWN: [&str; 22] = [
    "pread",
    "pwrite",
    "pwritev-16",
    "threads",
    "willneed",
    "libaio",
    "ring",
    "tokio",
    "append-fdatasync",
    "direct-dsync",
    "thread-batch",
    "thread-batch-direct",
    "thread-batch-pipelined",
    "thread-batch-direct-pipelined",
    "thread-batch-tokio",
    "thread-batch-direct-tokio",
    "ring-dsync",
    "nowait",
    "nowait-threads",
    "nowait-await",
    "nowait-tokio",
    "nowait-tokio-await",
];

/// In the order of the tables: first what is written by hand, then others' libraries, then this
/// one.
fn in_order<W: Way + ?Sized>(all: &[&'static W], peers: &[&'static W]) -> Vec<&'static W> {
    let own = all.iter().copied().filter(|way| OWN.contains(&way.name()));
    let (nowait, floors): (Vec<_>, Vec<_>) = own.partition(|way| way.name().starts_with("nowait"));
    floors.into_iter().chain(peers.iter().copied()).chain(nowait).collect()
}

/// Those that read past the page cache.
pub fn direct_readers() -> Vec<&'static dyn ReadWay> {
    in_order(ways::direct_readers(), &[&OneThread(TokioUring), &OneThread(Compio), &OneThread(Monoio), &OneThread(Dma)])
}

/// Those that read through the page cache, block by block.
pub fn readers() -> Vec<&'static dyn ReadWay> {
    in_order(
        ways::readers(),
        &[&TokioFs, &OneThread(TokioUring), &OneThread(Compio), &OneThread(Monoio), &OneThread(Buffered)],
    )
}

/// Those that gather through the page cache.
pub fn gatherers() -> Vec<&'static dyn ReadWay> {
    in_order(
        ways::readers(),
        &[
            &TokioFs,
            &OneThread(TokioUring),
            &OneThread(Compio),
            &OneThread(Monoio),
            &OneThread(Buffered),
            &OneThread(Dma),
        ],
    )
}

pub fn writers() -> Vec<&'static dyn WriteWay> {
    in_order(
        ways::writers(),
        &[&TokioFs, &OneThread(TokioUring), &OneThread(Compio), &OneThread(Monoio), &OneThread(Buffered)],
    )
}

pub fn loggers() -> Vec<&'static dyn LogWay> {
    let peers: &[&'static dyn LogWay] = &[
        &OkayWal,
        &RaftEngine,
        &Fjall,
        #[cfg(feature = "rocksdb")]
        &RocksDb,
    ];
    in_order(ways::loggers(), peers)
}

/// Those of the tables of pipelined appends and of appends from tasks. The peers have no interface
/// by which a thread has several records under way, or a task awaits one: they get a thread for each
/// record in flight.
fn beside(all: &[&'static dyn LogWay]) -> Vec<&'static dyn LogWay> {
    let peers: &[&'static dyn LogWay] = &[&OkayWal, &RaftEngine];
    in_order(all, peers)
}

pub fn pipeliners() -> Vec<&'static dyn LogWay> {
    beside(ways::pipeliners())
}

pub fn task_loggers() -> Vec<&'static dyn LogWay> {
    beside(ways::task_loggers())
}

/// The tables of `nowait-bench` with those of these ways that are `wanted`, through the page cache
/// or past it. They last as long as the program.
pub fn tables(direct: bool, wanted: impl Fn(&str) -> bool) -> Vec<&'static dyn Table> {
    fn leak<W: Way + ?Sized>(ways: Vec<&'static W>, wanted: &dyn Fn(&str) -> bool) -> &'static [&'static W] {
        ways.into_iter().filter(|way| wanted(way.name())).collect::<Vec<_>>().leak()
    }
    let of = |through: Vec<&'static dyn ReadWay>| {
        let (through, past) = if direct { (Vec::new(), direct_readers()) } else { (through, Vec::new()) };
        Readers { through_the_cache: leak(through, &wanted), past_the_cache: leak(past, &wanted) }
    };
    vec![
        Box::leak(Box::new(reads::Reads(of(readers())))),
        Box::leak(Box::new(cached::Cached(of(readers())))),
        Box::leak(Box::new(gather::Gather(of(gatherers())))),
        Box::leak(Box::new(writes::Writes { ways: leak(writers(), &wanted) })),
        Box::leak(Box::new(log::Log { ways: leak(loggers(), &wanted) })),
        Box::leak(Box::new(log::pipelined::Pipelined { ways: leak(pipeliners(), &wanted) })),
        Box::leak(Box::new(log::pipelined::Tasks { ways: leak(task_loggers(), &wanted) })),
    ]
}

/// Each way's name once.
pub fn names() -> Vec<&'static str> {
    let all = [tables(false, |_| true), tables(true, |_| true)].concat();
    let mut names = Vec::new();
    for name in all.into_iter().flat_map(|table| table.ways()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Descriptions of the peers, for a report.
pub fn meanings() -> BTreeMap<String, String> {
    let all = [
        (
            "tokio-fs",
            concat!("tokio ", env!("VERSION_TOKIO"), ": tokio::fs, a file for each task: seek, then read or write"),
        ),
        (
            "tokio-uring",
            concat!("tokio-uring ", env!("VERSION_TOKIO_URING"), ": one thread, as many loops as the depth"),
        ),
        ("compio", concat!("compio ", env!("VERSION_COMPIO"), ": one thread, io_uring")),
        ("monoio", concat!("monoio ", env!("VERSION_MONOIO"), ": one thread, io_uring")),
        (
            "glommio",
            concat!(
                "glommio ",
                env!("VERSION_GLOMMIO"),
                ": one thread, BufferedFile, which allocates what it reads into"
            ),
        ),
        (
            "glommio-dma",
            concat!("glommio ", env!("VERSION_GLOMMIO"), ": one thread, DmaFile past the page cache; read_many"),
        ),
        ("okaywal", concat!("okaywal ", env!("VERSION_OKAYWAL"), ": commit of an entry")),
        (
            "raft-engine",
            concat!("raft-engine ", env!("VERSION_RAFT_ENGINE"), ": write with sync, a raft group for each writer"),
        ),
        ("fjall", concat!("fjall ", env!("VERSION_FJALL"), ": insert, then persist(SyncData)")),
        ("rocksdb", concat!("RocksDB by rocksdb ", env!("VERSION_ROCKSDB"), ": put with sync, without compression")),
    ];
    all.into_iter().map(|(way, meaning)| (way.to_owned(), meaning.to_owned())).collect()
}
