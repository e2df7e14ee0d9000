//! What the library promises of results, and of who is served when. These tests mount nothing, need
//! no root and change nothing of the process: those that do are in `rigs`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../promises/mod.rs"]
mod promises;

#[cfg(target_os = "linux")]
mod allocations;
mod engines;
mod executors;
mod files;
#[cfg(target_os = "linux")]
mod files_linux;
mod gather;
mod letting_go;
#[cfg(all(nowait_count, target_os = "linux"))]
mod locks;
#[cfg(target_os = "linux")]
mod loop_ring;
#[cfg(target_os = "linux")]
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
#[cfg(target_os = "linux")]
mod turns;
mod types;
#[cfg(windows)]
mod windows;
mod writes;
