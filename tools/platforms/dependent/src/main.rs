//! Writes, reads, logs and stores a few bytes, on each system that these crates support.

use std::sync::Arc;

use nowait_log::{Log, Options};
use nowait_object_store::Options as StoreOptions;
use nowait_object_store::v0_14::NowaitFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("table");
    nowait::Nowait::shared().attach_tokio()?;
    nowait::fs::write_atomic(&path, vec![7; 100_000]).await?;
    let file = nowait::File::open(&path).await?;
    let rows = file.gather(&[(0, 100), (90_000, 100)]).await.map_err(|error| error.error)?;
    assert!(rows.iter().all(|row| row.is_ok_and(|row| *row == [7; 100])));

    let (log, _) = Log::open(dir.path().join("log"), &Options::new().create(true)).await?;
    let ticket = log.append(b"a record").await?;
    assert_eq!(ticket.await?, 1);
    log.close().await?;

    let objects = dir.path().join("objects");
    nowait::fs::create_dir(&objects).await?;
    let store: Arc<dyn ObjectStore> = Arc::new(NowaitFileSystem::with_prefix(&objects, StoreOptions::new())?);
    store.put(&Path::from("a/b"), "an object".into()).await?;
    assert_eq!(store.get(&Path::from("a/b")).await?.bytes().await?, "an object");
    println!("read, logged and stored on {}", std::env::consts::OS);
    Ok(())
}
