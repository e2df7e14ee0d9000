//! Tables of many Parquet files, queries over them, and their answers by a single process.

use std::path::Path;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::error::DataFusionError;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use nowait_bench::{Error, Result};

use crate::failed;

#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

pub(crate) const QUERIES: [Query; 2] = [
    // Both tables are shuffled by customer, and what is joined by region.
    Query {
        name: "join",
        sql: "SELECT c.region, count(*), count(DISTINCT e.customer), sum(e.amount), min(e.first), max(e.second) \
              FROM events e JOIN customers c ON e.customer = c.id WHERE e.amount % 3 <> 0 \
              GROUP BY c.region ORDER BY c.region",
    },
    // Half of the rows are groups of their own.
    Query {
        name: "groups",
        sql: "SELECT count(*), sum(n), min(least) FROM \
              (SELECT id / 2 AS pair, count(*) AS n, min(first) AS least FROM events GROUP BY id / 2)",
    },
];

const TABLES: [&str; 2] = ["events", "customers"];
const CUSTOMERS: u64 = 20_011;

/// Makes `events`, of so many files, and `customers`, of one.
pub(crate) async fn make(folder: &Path, files: u64, rows_of_file: u64) -> Result<()> {
    let session = SessionContext::new();
    let write = async |sql: String, name: String| -> std::result::Result<(), DataFusionError> {
        let path = folder.join(name).display().to_string();
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        session.sql(&sql).await?.write_parquet(&path, options, None).await.map(drop)
    };
    for table in TABLES {
        let dir = folder.join(table);
        std::fs::create_dir_all(&dir).map_err(|error| Error::io("make the directory", &dir, &error))?;
    }
    for file in 0..files {
        // Products that overflow are as good as random: nothing compresses them.
        let sql = format!(
            "SELECT value AS id, value * 7919 % {CUSTOMERS} AS customer, value * 104729 % 1000003 AS amount, \
             value * 6364136223846793005 AS first, (value + 12345) * 2862933555777941757 AS second \
             FROM generate_series({}, {})",
            file * rows_of_file,
            (file + 1) * rows_of_file - 1
        );
        write(sql, format!("events/{file:05}.parquet")).await.map_err(|error| failed("make the tables", &error))?;
    }
    let sql =
        format!("SELECT value AS id, 'region ' || (value % 37) AS region FROM generate_series(0, {})", CUSTOMERS - 1);
    write(sql, "customers/0.parquet".to_owned()).await.map_err(|error| failed("make the tables", &error))
}

/// Tells a session of the tables, by URLs of a scheme.
pub(crate) async fn register(
    session: &SessionContext,
    folder: &Path,
    scheme: &str,
) -> std::result::Result<(), DataFusionError> {
    for table in TABLES {
        let url = format!("{scheme}://{}/{table}/", folder.display());
        session.register_parquet(table, url, ParquetReadOptions::default()).await?;
    }
    Ok(())
}

/// The answer of this process alone, through the stock store.
pub(crate) async fn alone(folder: &Path, query: &Query) -> Result<Vec<String>> {
    let answer = async {
        let session = SessionContext::new();
        register(&session, folder, "file").await?;
        lines(session.sql(query.sql).await?.collect().await?)
    };
    answer.await.map_err(|error| failed("answer the query in one process", &error))
}

/// An answer as lines, in order.
pub(crate) fn lines(batches: Vec<RecordBatch>) -> std::result::Result<Vec<String>, DataFusionError> {
    let text = pretty_format_batches(&batches)?.to_string();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    Ok(lines)
}
