//! For `object_store` 0.13, which DataFusion 55 and Ballista 55 use.

#[path = "adapter/mod.rs"]
mod adapter;

use std::ops::Range;

pub use object_store_0_13 as object_store;

use object_store::path::Path;
use object_store::{GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};

pub use self::adapter::NowaitFileSystem;
use crate::files::Stat;

/// As its `LocalFileSystem` writes them: without quotes.
fn e_tag(stat: &Stat) -> String {
    stat.etag()
}

fn get_result(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>) -> GetResult {
    GetResult { payload, meta, range, attributes: Default::default() }
}

fn put_result(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None }
}

fn list_result(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects }
}
