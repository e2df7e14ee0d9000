#[path = "suite.rs"]
mod suite;

use nowait_object_store::v0_14::NowaitFileSystem;
use object_store_0_14 as object_store;
