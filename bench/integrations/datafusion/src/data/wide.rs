//! The table `wide`: 200 columns of incompressible numbers, in row groups of which a column chunk has
//! 64 KiB in 16 pages.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchIterator};
use datafusion::parquet::file::properties::WriterProperties;
use nowait_bench::Result;
use nowait_bench::random::Random;

use super::{Part, Scale};

pub(crate) const COLUMNS: usize = 200;
pub(crate) const GROUP_ROWS: u64 = 16 << 10;
/// Rows of a page, of which the file's index knows the bounds.
const PAGE_ROWS: usize = 1 << 10;
/// Row groups at scale 1: 500 MiB.
const GROUPS: u64 = 40;
const FILES: u64 = 4;

pub(crate) fn column(number: usize) -> String {
    format!("c{number:03}")
}

pub(crate) fn rows(scale: Scale) -> u64 {
    scale.of(GROUPS).max(FILES) / FILES * FILES * GROUP_ROWS
}

pub(super) fn make(folder: &Path, scale: Scale, seed: u64) -> Result<()> {
    let id = Field::new("id", DataType::Int64, false);
    let columns = (0..COLUMNS).map(|number| Field::new(column(number), DataType::Int32, false));
    let schema = Arc::new(Schema::new([id].into_iter().chain(columns).collect::<Vec<_>>()));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(GROUP_ROWS as usize))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS)
        .build();
    let of_file = rows(scale) / GROUP_ROWS / FILES;
    let part = |file: u64| {
        let batches = (file * of_file..(file + 1) * of_file).map({
            let schema = schema.clone();
            move |group| batch(&schema, group, seed)
        });
        Part {
            path: folder.join(format!("wide/{file}.parquet")),
            properties: properties.clone(),
            batches: Box::new(RecordBatchIterator::new(batches, schema.clone())),
        }
    };
    super::write((0..FILES).map(part).collect())
}

fn batch(schema: &Arc<Schema>, group: u64, seed: u64) -> std::result::Result<RecordBatch, ArrowError> {
    let ids = Int64Array::from_iter_values((group * GROUP_ROWS..(group + 1) * GROUP_ROWS).map(|id| id as i64));
    let mut random = Random::of(seed, group);
    let column = |_| Int32Array::from_iter_values((0..GROUP_ROWS).map(|_| random.number() as i32));
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(ids)];
    arrays.extend((0..COLUMNS).map(column).map(|array| Arc::new(array) as ArrayRef));
    RecordBatch::try_new(schema.clone(), arrays)
}
