//! Reading ahead: while a row group is decoded, the same columns of the next one are read.
//!
//! DataFusion 55 asks for a row group when it has decoded the one before. Whatever the store, the
//! device rests meanwhile. [`ReadAhead`] mends that by DataFusion's own extension points, and with any
//! store. It takes memory for one more row group of each partition, and reads it in vain where
//! statistics have it skipped: then no more is read ahead of that file.
//!
//! Reads run on a runtime of their own: the workers that decode look at no other task until they have
//! to wait for a row group themselves.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Has the Parquet scans of a plan read ahead, on this runtime.
#[derive(Debug)]
pub(crate) struct ReadAhead(pub(crate) Handle);

impl PhysicalOptimizerRule for ReadAhead {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let reading_ahead = |plan: Arc<dyn ExecutionPlan>| {
            let scan = plan.downcast_ref::<DataSourceExec>();
            let Some((scan, source)) = scan.and_then(|scan| scan.downcast_to_file_source::<ParquetSource>()) else {
                return Ok(Transformed::no(plan));
            };
            let Some(factory) = source.parquet_file_reader_factory() else { return Ok(Transformed::no(plan)) };
            let source =
                source.clone().with_parquet_file_reader_factory(Arc::new(Factory(factory.clone(), self.0.clone())));
            let scan = FileScanConfigBuilder::from(scan.clone()).with_source(Arc::new(source)).build();
            Ok(Transformed::yes(DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>))
        };
        Ok(plan.transform_down(reading_ahead)?.data)
    }

    fn name(&self) -> &str {
        "read_ahead"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

type BoxReader = Box<dyn AsyncFileReader + Send>;

/// Makes readers that read ahead of those that it has made by another factory.
#[derive(Debug)]
struct Factory(Arc<dyn ParquetFileReaderFactory>, Handle);

impl ParquetFileReaderFactory for Factory {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        footer_bytes: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<BoxReader> {
        let create = || self.0.create_reader(partition, file.clone(), footer_bytes, metrics);
        // A partition has the row groups that begin in its part of the file.
        let part = file.range.as_ref().map_or(0..u64::MAX, |part| part.start as u64..part.end as u64);
        let (reader, second, readers) = (create()?, Some(create()?), self.1.clone());
        Ok(Box::new(Reader { reader, second, readers, part, next: None }))
    }
}

struct Reader {
    reader: BoxReader,
    /// Another reader of the file, for what is read ahead. None while it reads, and once something
    /// was read in vain.
    second: Option<BoxReader>,
    readers: Handle,
    part: Range<u64>,
    next: Option<Next>,
}

/// Ranges that are read ahead. Dropped, their read is given up.
struct Next {
    ranges: Vec<Range<u64>>,
    /// One task.
    read: JoinSet<(BoxReader, ParquetResult<Vec<Bytes>>)>,
}

impl Reader {
    async fn read(&mut self, ranges: Vec<Range<u64>>) -> ParquetResult<Vec<Bytes>> {
        let read = match self.next.take() {
            Some(Next { ranges: ahead, mut read }) if ahead == ranges => match read.join_next().await {
                Some(Ok((reader, read))) => {
                    self.second = Some(reader);
                    read?
                }
                // The runtime is about to end.
                _ => self.reader.get_byte_ranges(ranges.clone()).await?,
            },
            _ => self.reader.get_byte_ranges(ranges.clone()).await?,
        };
        let Some(mut reader) = self.second.take() else { return Ok(read) };
        // In DataFusion's cache.
        let metadata = reader.get_metadata(None).await?;
        if let Some(ranges) = after(metadata.row_groups(), &self.part, &ranges) {
            let ahead = ranges.clone();
            let read = async move {
                let read = reader.get_byte_ranges(ahead).await;
                (reader, read)
            };
            let mut task = JoinSet::new();
            task.spawn_on(read, &self.readers);
            self.next = Some(Next { ranges, read: task });
        }
        Ok(read)
    }
}

/// The same columns of the next row group, if `ranges` are columns of one, and the next one begins in
/// `part`.
fn after(groups: &[RowGroupMetaData], part: &Range<u64>, ranges: &[Range<u64>]) -> Option<Vec<Range<u64>>> {
    let column = |group: &RowGroupMetaData, index: usize| {
        let (start, length) = group.column(index).byte_range();
        start..start + length
    };
    let first = ranges.first()?;
    let is_here =
        |group: &&[RowGroupMetaData]| (0..group[0].num_columns()).any(|index| column(&group[0], index) == *first);
    let pair = groups.windows(2).find(is_here)?;
    if !part.contains(&column(&pair[1], 0).start) {
        return None;
    }
    let next = |range: &Range<u64>| {
        let index = (0..pair[0].num_columns()).find(|index| column(&pair[0], *index) == *range)?;
        Some(column(&pair[1], index))
    };
    ranges.iter().map(next).collect()
}

impl AsyncFileReader for Reader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        self.read(ranges).boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        self.reader.get_metadata(options)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use datafusion::parquet::arrow::ArrowWriter;
    use datafusion::parquet::file::metadata::ParquetMetaDataReader;
    use datafusion::parquet::file::properties::WriterProperties;

    use super::*;

    /// A file in memory, which notes its name when it is asked for ranges.
    struct Noting(&'static str, Bytes, Arc<Mutex<Vec<&'static str>>>);

    impl AsyncFileReader for Noting {
        fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
            let bytes = self.1.slice(range.start as usize..range.end as usize);
            async move { Ok(bytes) }.boxed()
        }

        fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
            self.2.lock().unwrap().push(self.0);
            let slice = |range: Range<u64>| self.1.slice(range.start as usize..range.end as usize);
            let bytes = ranges.into_iter().map(slice).collect();
            async move { Ok(bytes) }.boxed()
        }

        fn get_metadata<'a>(
            &'a mut self,
            _: Option<&'a ArrowReaderOptions>,
        ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
            async { Ok(Arc::new(ParquetMetaDataReader::new().parse_and_finish(&self.1)?)) }.boxed()
        }
    }

    /// A file of four row groups with two columns, the places of these, and a reader of it.
    async fn file() -> (Bytes, Vec<Vec<Range<u64>>>, Reader, Arc<Mutex<Vec<&'static str>>>) {
        let column = || Arc::new(Int64Array::from_iter_values(0..400)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("a", column()), ("b", column())]).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let (bytes, asked) = (Bytes::from(bytes), Arc::new(Mutex::new(Vec::new())));
        let reader = |name| Box::new(Noting(name, bytes.clone(), asked.clone()));
        let (first, second) = (reader("first"), reader("second"));
        let mut reader =
            Reader { reader: first, second: Some(second), part: 0..u64::MAX, readers: Handle::current(), next: None };
        let metadata = reader.get_metadata(None).await.unwrap();
        let range = |(start, length): (u64, u64)| start..start + length;
        let of_group =
            |group: &RowGroupMetaData| group.columns().iter().map(|column| range(column.byte_range())).collect();
        (bytes.clone(), metadata.row_groups().iter().map(of_group).collect(), reader, asked)
    }

    #[tokio::test]
    async fn a_scan_is_read_ahead_until_it_skips() {
        let (bytes, groups, mut reader, asked) = file().await;
        for group in &groups[..3] {
            let read = reader.get_byte_ranges(vec![group[1].clone()]).await.unwrap();
            assert_eq!(read, [bytes.slice(group[1].start as usize..group[1].end as usize)]);
        }
        assert_eq!(*asked.lock().unwrap(), ["first", "second", "second"]);
        let read = reader.get_byte_ranges(groups[0].clone()).await.unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(asked.lock().unwrap().last(), Some(&"first"));
        assert!(reader.next.is_none() && reader.second.is_none(), "what was read ahead was in vain");
    }

    #[tokio::test]
    async fn what_comes_next_is_known_of_whole_columns_within_the_part() {
        let (_, groups, reader, _) = file().await;
        let metadata = reader.second.unwrap().get_metadata(None).await.unwrap();
        let after = |part: Range<u64>, ranges: &[Range<u64>]| after(metadata.row_groups(), &part, ranges);
        assert_eq!(after(0..u64::MAX, &groups[0]), Some(groups[1].clone()));
        assert_eq!(after(0..groups[1][0].start + 1, &groups[0]), Some(groups[1].clone()));
        assert_eq!(after(0..groups[1][0].start, &groups[0]), None);
        assert_eq!(after(0..u64::MAX, &groups[3]), None);
        let cut = groups[0][0].start..groups[0][0].end - 1;
        assert_eq!(after(0..u64::MAX, std::slice::from_ref(&cut)), None);
        assert_eq!(after(0..u64::MAX, &[]), None);
    }
}
