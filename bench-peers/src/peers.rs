//! Which ways take part in which table, and what those are that are not `nowait-bench`'s own.

use std::collections::BTreeMap;

use nowait_bench::table::Table;
use nowait_bench::ways::{self, LogWay, Way, WriteWay};

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

/// Of `nowait-bench`'s ways, those beside which the others are to be seen.
const OWN: [&str; 10] = [
    "pread",
    "pwrite",
    "threads",
    "ring",
    "tokio",
    "append-fdatasync",
    "thread-batch",
    "thread-batch-direct",
    "nowait",
    "nowait-tokio",
];

fn own(name: &str) -> bool {
    OWN.contains(&name)
}

/// In the order of the tables: first what is written by hand, then others' libraries, then this one.
fn in_order<W: ?Sized>(own: Vec<&'static W>, peers: &[&'static W], name: fn(&W) -> &str) -> Vec<&'static W> {
    let (nowait, floors): (Vec<_>, Vec<_>) = own.into_iter().partition(|way| name(way).starts_with("nowait"));
    floors.into_iter().chain(peers.iter().copied()).chain(nowait).collect()
}

/// Those that read, in this table, through the page cache or past it.
pub fn readers(table: Table, direct: bool) -> Vec<&'static dyn Way> {
    let all = if direct { ways::direct() } else { ways::all() };
    let own = all.iter().copied().filter(|way| own(way.name())).collect();
    let peers: &[&'static dyn Way] = match (direct, table) {
        (true, _) => &[&OneThread(TokioUring), &OneThread(Compio), &OneThread(Monoio), &OneThread(Dma)],
        (false, Table::Gather) => &[
            &TokioFs,
            &OneThread(TokioUring),
            &OneThread(Compio),
            &OneThread(Monoio),
            &OneThread(Buffered),
            &OneThread(Dma),
        ],
        (false, _) => &[&TokioFs, &OneThread(TokioUring), &OneThread(Compio), &OneThread(Monoio), &OneThread(Buffered)],
    };
    in_order(own, peers, |way| way.name())
}

pub fn writers() -> Vec<&'static dyn WriteWay> {
    let own = ways::writers().iter().copied().filter(|way| own(way.name())).collect();
    let peers: &[&'static dyn WriteWay] =
        &[&TokioFs, &OneThread(TokioUring), &OneThread(Compio), &OneThread(Monoio), &OneThread(Buffered)];
    in_order(own, peers, |way| way.name())
}

pub fn loggers() -> Vec<&'static dyn LogWay> {
    let own = ways::loggers().iter().copied().filter(|way| own(way.name())).collect();
    let peers: &[&'static dyn LogWay] = &[
        &OkayWal,
        &RaftEngine,
        &Fjall,
        #[cfg(feature = "rocksdb")]
        &RocksDb,
    ];
    in_order(own, peers, |way| way.name())
}

/// Each way's name once.
pub fn names() -> Vec<&'static str> {
    let reading = Table::ALL.into_iter().flat_map(|table| readers(table, false)).chain(readers(Table::Reads, true));
    let reading = reading.map(|way| way.name());
    let writing = writers().into_iter().map(|way| way.name());
    let logging = loggers().into_iter().map(|way| way.name());
    let mut names = Vec::new();
    for name in reading.chain(writing).chain(logging) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What the peers are, for a report.
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
