#[path = "suite.rs"]
mod suite;

use nowait_object_store::v0_13::NowaitFileSystem;
use object_store_0_13 as object_store;
