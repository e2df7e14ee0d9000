//! Every public type can be sent and shared between threads, and formatted for debugging: a struct
//! with one of them can derive `Debug`, and a task may hold a reference to it across an await.

use std::fmt::Debug;

use nowait::{Buf, *};

fn shared<T: Send + Sync + Debug>() {}

type Bytes = Vec<u8>;
type Each = fn(usize, Result<&[u8]>) -> Result<()>;

#[test]
fn public_types_are_sent_shared_and_formatted() {
    shared::<File>();
    shared::<OpenOptions>();
    shared::<Advice>();
    shared::<Allocate>();
    shared::<Closed>();
    shared::<DirectIo>();
    shared::<RangeLock>();
    shared::<TryLockError>();

    shared::<Nowait>();
    shared::<Builder>();
    shared::<Engine>();
    shared::<Refusal>();
    shared::<Stats>();

    shared::<Error>();
    shared::<ErrorKind>();
    shared::<ErrorOp>();
    shared::<Written>();
    shared::<BufferError<Bytes>>();

    shared::<Buf>();
    shared::<Lent>();

    shared::<Operation<'_, Result<Buf>>>();
    shared::<Write<'_, BufferResult<Bytes>>>();
    shared::<Started<Result<Buf>>>();
    shared::<Steps<Result<()>>>();
    shared::<Gather<'_>>();
    shared::<GatherEach<'_, Each>>();
    shared::<Gathered>();
    shared::<Exceptions>();
    shared::<WriteMany<'_, Bytes>>();
    shared::<Settled<'_>>();
}

#[test]
fn types_of_modules_are_sent_shared_and_formatted() {
    shared::<fs::Fs<'_>>();
    shared::<fs::Dir>();
    shared::<fs::DirEntry>();
    shared::<fs::AtomicOptions>();

    shared::<stream::Reader>();
    shared::<stream::Writer>();
    shared::<stream::Cursor>();
    shared::<stream::AtomicWriter>();
    shared::<stream::Step<'_, stream::Writer, Result<()>>>();
    shared::<stream::Put<'_>>();
    shared::<stream::PutSlice<'_>>();
    #[cfg(feature = "tokio")]
    shared::<stream::TokioIo<stream::Reader>>();
    #[cfg(feature = "futures-io")]
    shared::<stream::FuturesIo<stream::Cursor>>();
    #[cfg(feature = "stream")]
    shared::<stream::Chunks<stream::Reader>>();

    shared::<map::Map>();
    shared::<map::MapMut>();
    shared::<map::Paging>();
    shared::<map::Mechanism>();
    shared::<map::Populate<'_>>();
    shared::<map::Populating>();
    shared::<map::Populated>();
    shared::<map::Progress>();
    shared::<map::Stopped>();

    shared::<embed::LoopRing>();
    shared::<embed::PerProcess<Bytes>>();
}

#[cfg(feature = "sim")]
#[test]
fn types_of_the_simulator_are_sent_shared_and_formatted() {
    shared::<sim::Sim>();
    shared::<sim::Faults>();
    shared::<sim::Unsynced>();
}

#[cfg(feature = "forced-routes")]
#[test]
fn a_route_is_sent_shared_and_formatted() {
    shared::<Route>();
}
