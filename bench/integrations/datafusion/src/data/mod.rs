//! Tables of a run, as Parquet files.

mod hits;
mod tpch;
pub(crate) mod wide;
mod zipf;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use datafusion::arrow::record_batch::RecordBatchReader;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use nowait_bench::{Error, ErrorKind, Result};

use crate::queries::Set;

/// Size of the tables; 1 is about 1.3 GiB in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale(pub(crate) f64);

impl Scale {
    fn of(self, rows: u64) -> u64 {
        (rows as f64 * self.0) as u64
    }
}

/// Makes the tables of a set, in a directory of its name.
pub(crate) fn make(set: Set, folder: &Path, scale: Scale, seed: u64) -> Result<()> {
    let folder = folder.join(set.name());
    for table in set.tables() {
        let dir = folder.join(table);
        fs::create_dir_all(&dir).map_err(|error| Error::io("make the directory", &dir, &error))?;
    }
    match set {
        Set::Hits => hits::make(&folder, scale, seed),
        Set::Tpch => tpch::make(&folder, scale),
        Set::Wide => wide::make(&folder, scale, seed),
    }
}

/// A file that is still to be made.
struct Part {
    path: PathBuf,
    properties: WriterProperties,
    batches: Box<dyn RecordBatchReader + Send>,
}

impl Part {
    fn write(self) -> Result<()> {
        let Part { path, properties, batches } = self;
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Other, format!("cannot write {}: {error}", path.display()))
        };
        let file = File::create_new(&path).map_err(|error| failed(&error))?;
        let mut writer =
            ArrowWriter::try_new(file, batches.schema(), Some(properties)).map_err(|error| failed(&error))?;
        for batch in batches {
            let batch = batch.map_err(|error| failed(&error))?;
            writer.write(&batch).map_err(|error| failed(&error))?;
        }
        let file = writer.into_inner().map_err(|error| failed(&error))?;
        file.sync_all().map_err(|error| failed(&error))
    }
}

/// Writes all parts, as many at a time as there are processors.
fn write(parts: Vec<Part>) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let queue = std::sync::Mutex::new(parts);
    let next = || queue.lock().ok()?.pop();
    let work = || -> Result<()> {
        while let Some(part) = next() {
            part.write()?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = |worker: thread::ScopedJoinHandle<'_, Result<()>>| {
            worker.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Other, "a thread that made tables panicked")))
        };
        workers.into_iter().try_for_each(ended)
    })
}
