//! A Vortex file read through nowait's store, by its gather, and by Vortex's own reader of files.
//! All three must give the same rows.

mod gather;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nowait::{Nowait, OpenOptions};
use nowait_object_store::Options;
use nowait_object_store::v0_13::NowaitFileSystem;
use nowait_object_store::v0_13::object_store::{self, ObjectStore};
use vortex::VortexSessionDefault;
use vortex::aggregate_fn::fns::all_non_distinct::all_non_distinct;
use vortex::array::arrays::{StructArray, VarBinViewArray};
use vortex::array::stream::ArrayStreamExt;
use vortex::array::{ArrayRef, IntoArray, VortexSessionExecute};
use vortex::buffer::Buffer;
use vortex::error::VortexResult;
use vortex::file::{OpenOptionsSessionExt, VortexFile, WriteOptionsSessionExt};
use vortex::io::session::RuntimeSessionExt;
use vortex::scan::strict_sorted_buffer::StrictSortedBuffer;
use vortex::session::VortexSession;

use self::gather::GatherReadAt;

const ROWS: u64 = 400_000;
/// Every so many rows one is picked.
const STEP: usize = 997;
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tokio::time::timeout(LIMIT, compare()).await?
}

async fn compare() -> Result<(), Box<dyn Error>> {
    let session = VortexSession::default().with_tokio();
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("table.vortex");
    let bytes = write(&session, &path).await?;
    let expected = read(session.open_options().open_path(&path).await?).await?;

    // Instances of their own: their counters tell that the reads were nowait's.
    let (by_store, by_gather) = (Nowait::builder().build()?, Nowait::builder().build()?);

    let store = NowaitFileSystem::with_prefix(dir.path(), Options::new().instance(&by_store))?;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let location = object_store::path::Path::from("table.vortex");
    let through_store = read(session.open_options().open_object_store(&store, location).await?).await?;

    let file = OpenOptions::new().read(true).open_in(&by_gather, &path).await?;
    let gathered = read(session.open_options().open(Arc::new(GatherReadAt(file))).await?).await?;

    let mut context = session.create_execution_ctx();
    for (way, rows, instance) in [("store", through_store, by_store), ("gather", gathered, by_gather)] {
        let requests = instance.stats().started;
        if requests == 0 {
            return Err(format!("{way}: nothing was read through nowait").into());
        }
        for (expected, rows) in expected.iter().zip(&rows) {
            if expected.len() != rows.len() || !all_non_distinct(expected, rows, &mut context)? {
                return Err(format!("{way}: other rows than by Vortex's own reader").into());
            }
        }
        println!("vortex, {way}: {bytes} bytes, {} and {} rows, {requests} requests", rows[0].len(), rows[1].len());
    }
    Ok(())
}

/// Writes a table of some MB. Returns its size.
async fn write(session: &VortexSession, path: &Path) -> Result<usize, Box<dyn Error>> {
    let mixed = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let names = (0..ROWS).map(|row| format!("station-{}", mixed(row) % 5_000));
    let table = StructArray::from_fields(&[
        ("row", (0..ROWS).collect::<Buffer<_>>().into_array()),
        ("mixed", (0..ROWS).map(mixed).collect::<Buffer<_>>().into_array()),
        ("name", VarBinViewArray::from_iter_str(names).into_array()),
    ])?;
    let mut bytes = Vec::new();
    session.write_options().write(&mut bytes, table.into_array().to_array_stream()).await?;
    std::fs::write(path, &bytes)?;
    Ok(bytes.len())
}

/// All rows, and some at places far apart.
async fn read(file: VortexFile) -> VortexResult<[ArrayRef; 2]> {
    let places = StrictSortedBuffer::try_new((0..ROWS).step_by(STEP).collect::<Buffer<_>>())?;
    let all = file.scan()?.into_array_stream()?.read_all().await?;
    let some = file.scan()?.with_row_indices(places).into_array_stream()?.read_all().await?;
    Ok([all, some])
}
