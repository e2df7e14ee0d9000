//! What the ways that run on tokio share: the runtime, and the figures of a task.

use std::io;
use std::sync::OnceLock;
use std::time::Instant;

use crate::meter::Tally;

/// With a worker per processor.
pub(super) fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().enable_io().build().expect("a runtime starts where threads do")
    })
}

pub(super) fn finish<T>(tasks: Vec<tokio::task::JoinHandle<io::Result<T>>>) -> io::Result<Vec<T>> {
    let all = futures_util::future::join_all(tasks);
    runtime().block_on(all).into_iter().map(|joined| joined.map_err(io::Error::other)?).collect()
}

/// What one task saw. A task outlives the round's borrow, and so do its own figures; bytes that are to be verified are kept until
/// the clock has stopped.
pub(super) struct Seen {
    tally: Tally<'static>,
    kept: Option<Vec<(u64, Vec<u8>)>>,
}

impl Seen {
    pub(super) fn new(round: &Tally<'_>) -> Seen {
        Seen { tally: Tally::new(None), kept: round.verifies().then(Vec::new) }
    }

    #[inline]
    pub(super) fn add(&mut self, offset: u64, bytes: &[u8], started: Instant) {
        self.tally.block(offset, bytes, started, Instant::now());
        if let Some(kept) = &mut self.kept {
            kept.push((offset, bytes.to_vec()));
        }
    }

    pub(super) fn tell(self, round: &mut Tally<'_>) {
        round.merge(&self.tally);
        for (offset, bytes) in self.kept.into_iter().flatten() {
            round.verify(offset, &bytes);
        }
    }
}
