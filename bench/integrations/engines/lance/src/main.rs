//! A Lance file written and read through nowait's store, and read as Lance reads local files. Both
//! must give the same rows.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use async_trait::async_trait;
use futures::TryStreamExt;
use lance_core::cache::LanceCache;
use lance_core::datatypes::Schema;
use lance_encoding::decoder::{DecoderPlugins, FilterExpression};
use lance_file::reader::{FileReader, FileReaderOptions};
use lance_file::version::stable_file_version;
use lance_file::versions::create_writer;
use lance_file::writer::FileWriterOptions;
use lance_io::ReadBatchParams;
use lance_io::object_store::{
    DEFAULT_CLOUD_IO_PARALLELISM, ObjectStore, ObjectStoreParams, ObjectStoreProvider, ObjectStoreRegistry,
};
use lance_io::scheduler::{ScanScheduler, SchedulerConfig};
use lance_io::utils::CachedFileSize;
use nowait::Nowait;
use nowait_object_store::Options;
use nowait_object_store::v0_14::NowaitFileSystem;
use url::Url;

const ROWS: u32 = 400_000;
/// Every so many rows one is picked.
const STEP: usize = 997;
const LIMIT: Duration = Duration::from_secs(120);

/// Gives Lance the store for each URL of its scheme.
#[derive(Debug)]
struct Provider(NowaitFileSystem);

#[async_trait]
impl ObjectStoreProvider for Provider {
    async fn new_store(&self, base: Url, params: &ObjectStoreParams) -> lance_core::Result<ObjectStore> {
        /// As Lance has it for local files. For a scheme that it does not know it is that of a cloud.
        const BLOCK_BYTES: usize = 4096;
        // Lance asks for one range a call: so many calls are under way.
        let in_flight = DEFAULT_CLOUD_IO_PARALLELISM;
        let block_bytes = params.block_size.or(Some(BLOCK_BYTES));
        let store = Arc::new(self.0.clone());
        let options = params.storage_options();
        Ok(ObjectStore::new(store, base, block_bytes, None, false, false, in_flight, 0, options))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tokio::time::timeout(LIMIT, compare()).await?
}

async fn compare() -> Result<(), Box<dyn Error>> {
    // An instance of its own: its counters tell that the reads were nowait's.
    let nowait = Nowait::builder().build()?;
    let store = NowaitFileSystem::new(Options::new().instance(&nowait));
    let registry = Arc::new(ObjectStoreRegistry::default());
    registry.insert("nowait", Arc::new(Provider(store)));

    let dir = tempfile::tempdir()?;
    let path = dir.path().join("table.lance").display().to_string();
    let url = format!("nowait://{path}");
    write(&registry, &url).await?;
    let written = nowait.stats().started;
    let rows = read(&registry, &url).await?;
    let requests = nowait.stats().started - written;
    let expected = read(&registry, &format!("file://{path}")).await?;

    if written == 0 || requests == 0 {
        return Err(format!("{written} requests of writing and {requests} of reading were nowait's").into());
    }
    if rows != expected {
        return Err("other rows than by Lance's own reader".into());
    }
    let [all, some] = rows.map(|batches| batches.iter().map(RecordBatch::num_rows).sum::<usize>());
    let bytes = std::fs::metadata(&path)?.len();
    println!("lance: {bytes} bytes, {all} and {some} rows, {requests} requests");
    Ok(())
}

/// Writes a table of some MB.
async fn write(registry: &Arc<ObjectStoreRegistry>, url: &str) -> Result<(), Box<dyn Error>> {
    let mixed = |row: u32| {
        u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let names = (0..ROWS).map(|row| format!("station-{}", mixed(row) % 5_000));
    let columns: [(&str, ArrayRef); 3] = [
        ("row", Arc::new(UInt32Array::from_iter_values(0..ROWS))),
        ("mixed", Arc::new(UInt64Array::from_iter_values((0..ROWS).map(mixed)))),
        ("name", Arc::new(StringArray::from_iter_values(names))),
    ];
    let table = RecordBatch::try_from_iter(columns)?;
    let (store, path) = ObjectStore::from_uri_and_params(registry.clone(), url, &Default::default()).await?;
    let schema = Schema::try_from(table.schema().as_ref())?;
    let file = store.create(&path).await?;
    let mut writer = create_writer(stable_file_version(), file, schema, FileWriterOptions::default())?;
    writer.write_batch(&table).await?;
    writer.finish().await?;
    Ok(())
}

/// All rows, and some at places far apart.
async fn read(registry: &Arc<ObjectStoreRegistry>, url: &str) -> lance_core::Result<[Vec<RecordBatch>; 2]> {
    let (store, path) = ObjectStore::from_uri_and_params(registry.clone(), url, &Default::default()).await?;
    let config = SchedulerConfig::max_bandwidth(&store);
    let file = ScanScheduler::new(store, config).open_file(&path, &CachedFileSize::unknown()).await?;
    let (plugins, cache) = (Arc::<DecoderPlugins>::default(), LanceCache::with_capacity(64 << 20));
    let reader = FileReader::try_open(file, None, plugins, &cache, FileReaderOptions::default()).await?;
    let rows = async |params| {
        let batches = reader.read_stream(params, 8192, 4, FilterExpression::no_filter()).await?;
        batches.try_collect::<Vec<_>>().await
    };
    let places = UInt32Array::from_iter_values((0..ROWS).step_by(STEP));
    Ok([rows(ReadBatchParams::RangeFull).await?, rows(ReadBatchParams::Indices(places)).await?])
}
