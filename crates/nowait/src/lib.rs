//! placeholder
mod buf;
mod engine;
mod error;
mod file;
mod gather;
mod op;
mod operation;
mod select;
mod start;
mod stats;
mod sys;

pub use buf::{BUF_ALIGNMENT, Buf, Erased, ReadBuffer};
pub use engine::sim;
pub use error::{BufferError, Error, ErrorKind, Operation as OperationName, Result};
pub use file::{Advice, Advised, File, Open, OpenOptions, ReadAt, ReadExact, Size};
pub use gather::{Exceptions, Gather, GatherEach, Gathered};
pub use operation::{Answer, Finish, Operation};
pub use select::Path;
pub use start::{Builder, Engine, Nowait, RingRefusal};
pub use stats::Stats;

/// block
pub fn block_on<F: std::future::Future>(future: F) -> F::Output {
    engine::owned::drive(future)
}
