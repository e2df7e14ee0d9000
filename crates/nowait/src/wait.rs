//! `Wait`: what can be awaited or waited for, in generic code.

use std::future::IntoFuture;

use crate::buf::{ReadBuffer, WriteBuffer};
use crate::error::Error;
use crate::gather::{Gather, GatherEach};
use crate::map::{Populate, Populating};
use crate::operation::{Operation, Steps, Write};
use crate::started::Started;
use crate::stream::{Put, PutSlice, Step, Stream};
use crate::write::{Settled, WriteMany};

/// Operation that can be awaited, or waited for without an executor.
///
/// All operations of this crate and of `nowait-log` implement it. Each has a method `wait` as well,
/// so that a caller needs no import. The trait serves generic code:
///
/// ```
/// use nowait::Wait;
///
/// /// Waits for each operation in turn.
/// fn in_turn<W: Wait>(operations: impl IntoIterator<Item = W>) -> Vec<W::Output> {
///     operations.into_iter().map(Wait::wait).collect()
/// }
///
/// async fn log_time<W: Wait>(what: &str, operation: W) -> W::Output {
///     let start = std::time::Instant::now();
///     let output = operation.await;
///     println!("{what}: {:?}", start.elapsed());
///     output
/// }
///
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, vec![7; 3 * 4096]).unwrap();
/// let file = nowait::File::open(&path).wait()?;
/// let pages = in_turn([0, 2].map(|page| file.read_range(page * 4096, 4096)));
/// assert!(pages.iter().all(|page| page.is_ok()));
/// let rows = nowait::block_on(log_time("gather", file.gather(&[(0, 16), (8192, 100)])))?;
/// assert_eq!(rows.len(), 2);
/// # Ok(())
/// # }
/// ```
///
/// Other crates cannot implement it.
pub trait Wait: IntoFuture + Sealed {
    /// Blocks until the operation has completed; returns its result. Errors are those of the
    /// operation.
    ///
    /// The call needs no executor. It makes plain system calls where possible, which is cheaper for
    /// a blocking caller than [`block_on`](crate::block_on).
    fn wait(self) -> Self::Output
    where
        Self: Sized;
}

/// Reserves [`Wait`] for this project's crates.
#[doc(hidden)]
pub trait Sealed {}

/// Implements [`Wait`] by the method `wait` of each type.
#[doc(hidden)]
#[macro_export]
macro_rules! waits {
    ($(impl [$($generics:tt)*] $type:ty;)+) => {
        $(
            impl<$($generics)*> $crate::wait::Sealed for $type {}
            impl<$($generics)*> $crate::wait::Wait for $type {
                #[inline]
                fn wait(self) -> <Self as ::std::future::IntoFuture>::Output {
                    <$type>::wait(self)
                }
            }
        )+
    };
}

waits! {
    impl [T] Operation<'_, T>;
    impl [T] Write<'_, T>;
    impl [T] Started<T>;
    impl [T] Steps<T>;
    impl [B: ReadBuffer] Gather<'_, B>;
    impl [F: FnMut(usize, Result<&[u8], &Error>) + Unpin, B: ReadBuffer] GatherEach<'_, F, B>;
    impl [B: WriteBuffer] WriteMany<'_, B>;
    impl [] Settled<'_>;
    impl [S: Stream, T] Step<'_, S, T>;
    impl [] Put<'_>;
    impl [] PutSlice<'_>;
    impl [] Populate<'_>;
    impl [] Populating;
}
