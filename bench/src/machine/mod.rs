//! The machine that is measured: where figures come from, its limits, and the files that are read
//! and written.

pub mod dirty_limit;
pub mod environment;
pub mod load;
pub mod neighbour;
pub mod testfile;
pub mod tree;
