//! A Parquet file scanned by Polars through nowait's store, and as Polars scans local files. Both
//! must give the same rows.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nowait::Nowait;
use nowait_object_store::Options;
use nowait_object_store::v0_13::NowaitFileSystem;
use nowait_object_store::v0_13::object_store::ObjectStore;
use polars::io::cloud::{CloudOptions, ExtObjectStoreBuilder, register_object_store_builder};
use polars::polars_utils::pl_path;
use polars::prelude::*;

const ROWS: u64 = 400_000;
const GROUP_ROWS: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(120);

/// Gives Polars the store for each URL of its scheme. Polars keeps it.
struct Builder(NowaitFileSystem);

impl ExtObjectStoreBuilder for Builder {
    fn build(&self, _: &PlRefPath, _: Option<&CloudOptions>) -> PolarsResult<Arc<dyn ObjectStore + Send + Sync>> {
        Ok(Arc::new(self.0.clone()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("table.parquet");
    let (send, answer) = mpsc::channel();
    thread::spawn(move || send.send(compare(&path).map_err(|error| error.to_string())));
    println!("{}", answer.recv_timeout(LIMIT)??);
    Ok(())
}

/// Returns what is to be told, or what differs.
fn compare(path: &Path) -> Result<String, Box<dyn Error>> {
    let bytes = write(path)?;
    let expected = read(&path.display().to_string())?;

    // An instance of its own: its counters tell that the reads were nowait's.
    let nowait = Nowait::builder().build()?;
    let store = NowaitFileSystem::new(Options::new().instance(&nowait));
    pl_path::_allow_ext_scheme("nowait")?;
    register_object_store_builder("nowait", Arc::new(Builder(store)))?;
    // Polars refuses a URL without a host. The store has no use for one.
    let rows = read(&format!("nowait://local{}", path.display()))?;

    let requests = nowait.stats().started;
    if requests == 0 {
        return Err("nothing was read through nowait".into());
    }
    if expected.iter().zip(&rows).any(|(expected, rows)| !expected.equals(rows)) {
        return Err("other rows than by Polars' own reader".into());
    }
    let [all, some] = &rows;
    Ok(format!("polars: {bytes} bytes, {} and {} rows, {requests} requests", all.height(), some.height()))
}

/// Writes a table of some MB. Returns its size.
fn write(path: &Path) -> PolarsResult<u64> {
    let mixed = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let columns = vec![
        Column::new("row".into(), (0..ROWS).collect::<Vec<_>>()),
        Column::new("mixed".into(), (0..ROWS).map(mixed).collect::<Vec<_>>()),
        Column::new("name".into(), (0..ROWS).map(|row| format!("station-{}", mixed(row) % 5_000)).collect::<Vec<_>>()),
    ];
    let mut table = DataFrame::new_infer_height(columns)?;
    ParquetWriter::new(File::create(path)?).with_row_group_size(Some(GROUP_ROWS)).finish(&mut table)
}

/// All rows, and one column of some row groups.
fn read(url: &str) -> PolarsResult<[DataFrame; 2]> {
    let scan = || LazyFrame::scan_parquet(PlRefPath::new(url), ScanArgsParquet::default());
    let within = col("row").gt_eq(lit(ROWS / 3)).and(col("row").lt(lit(ROWS / 2)));
    Ok([scan()?.collect()?, scan()?.filter(within).select([col("mixed")]).collect()?])
}
