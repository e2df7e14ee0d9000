#[cfg(unix)]
#[path = "links.rs"]
mod links;
#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod linux;
#[path = "objects.rs"]
mod objects;
#[path = "suite.rs"]
mod suite;
#[cfg(windows)]
#[path = "windows.rs"]
mod windows;

use nowait_object_store::v0_13::NowaitFileSystem;
use object_store_0_13 as object_store;
