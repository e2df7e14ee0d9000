use nowait::{Engine, Nowait};
use nowait_object_store::Options;

use super::NowaitFileSystem;
use super::object_store::integration::*;
use super::object_store::path::Path;

/// Those that the crate runs against its own `LocalFileSystem`, and more.
async fn contract(options: Options) {
    let dir = crate::common::temp_dir();
    let store = NowaitFileSystem::with_prefix(dir.path(), options).unwrap();
    put_get_delete_list(&store).await;
    list_with_offset_exclusivity(&store).await;
    get_opts(&store).await;
    list_uses_directories_correctly(&store).await;
    list_with_delimiter(&store).await;
    rename_and_copy(&store).await;
    copy_if_not_exists(&store).await;
    copy_rename_nonexistent_object(&store).await;
    stream_get(&store).await;
    put_opts(&store, false).await;
    multipart_out_of_order(&store).await;
    multipart_race_condition(&store, true).await;
    get_nonexistent_object(&store, Some(Path::from("nothing/here"))).await.unwrap_err();
    let left = walkdir::WalkDir::new(dir.path()).into_iter().flatten().filter(|entry| entry.file_type().is_file());
    let staged: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().contains('#')).collect();
    assert!(staged.is_empty(), "{staged:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds() {
    contract(Options::new()).await;
}

/// A stream for everything that does not fit into a page.
#[tokio::test]
async fn holds_for_streams_on_one_thread() {
    contract(Options::new().piece_bytes_max(4096)).await;
}

#[tokio::test]
async fn holds_durably_and_past_the_page_cache() {
    contract(Options::new().durable(true).direct(true).gap_bytes(1 << 20)).await;
}

#[tokio::test]
async fn holds_without_io_uring() {
    let nowait = Nowait::builder().engine(Engine::Pool).build().unwrap();
    contract(Options::new().instance(&nowait)).await;
}
