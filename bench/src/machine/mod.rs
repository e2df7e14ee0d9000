//! The measured machine: its environment, its limits, and the files that a run reads and writes.

pub mod dirty_limit;
pub mod environment;
pub mod load;
pub mod neighbour;
pub mod testfile;
pub mod tree;
