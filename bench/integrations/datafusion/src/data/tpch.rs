//! The tables of TPC-H, by the crate `tpchgen`.

use std::path::Path;

use datafusion::arrow::record_batch::RecordBatchReader;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use nowait_bench::Result;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use super::{Part, Scale};

const GROUP_ROWS: usize = 128 << 10;
/// Files of the larger tables.
const PARTS: i32 = 4;

pub(super) fn make(folder: &Path, Scale(scale): Scale) -> Result<()> {
    let part = |table: &str, number: i32, batches: Box<dyn RecordBatchReader + Send>| Part {
        path: folder.join(format!("{table}/{number}.parquet")),
        properties: WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build(),
        batches,
    };
    let mut parts = vec![
        part("nation", 1, Box::new(NationArrow::new(NationGenerator::new(scale, 1, 1)))),
        part("region", 1, Box::new(RegionArrow::new(RegionGenerator::new(scale, 1, 1)))),
        part("supplier", 1, Box::new(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1)))),
        part("customer", 1, Box::new(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1)))),
        part("part", 1, Box::new(PartArrow::new(PartGenerator::new(scale, 1, 1)))),
    ];
    for number in 1..=PARTS {
        parts.push(part(
            "partsupp",
            number,
            Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, number, PARTS))),
        ));
        parts.push(part("orders", number, Box::new(OrderArrow::new(OrderGenerator::new(scale, number, PARTS)))));
        parts.push(part(
            "lineitem",
            number,
            Box::new(LineItemArrow::new(LineItemGenerator::new(scale, number, PARTS))),
        ));
    }
    super::write(parts)
}
