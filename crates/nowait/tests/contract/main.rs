//! What the library promises of results, and of who is served when. These tests mount nothing, need
//! no root and change nothing of the process: those that do are in `rigs`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../promises/mod.rs"]
mod promises;

mod allocations;
mod engines;
mod executors;
mod files;
mod gather;
mod letting_go;
#[cfg(nowait_count)]
mod locks;
mod loop_ring;
mod map;
mod meetings;
mod overlaps;
mod progress;
mod safety;
mod sim;
mod stream;
mod stream_objects;
#[cfg(all(feature = "tokio", feature = "futures-io", feature = "stream"))]
mod stream_traits;
mod stream_writers;
mod turns;
mod types;
mod writes;
