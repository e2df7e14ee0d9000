//! The table `hits`: 30 of the columns of ClickBench's, by their names, sorted by counter as there,
//! with values as skewed.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Date32Array, Int16Array, Int32Array, Int64Array, StringArray, TimestampSecondArray,
};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchIterator};
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use nowait_bench::random::Random;
use nowait_bench::{Error, ErrorKind, Result};

use super::zipf::Zipf;
use super::{Part, Scale};

/// Rows at scale 1.
const ROWS: u64 = 4_000_000;
const FILES: u64 = 8;
const BATCH_ROWS: u64 = 32 << 10;
const GROUP_ROWS: usize = 128 << 10;

/// 2013-07-01, in days and seconds.
const FIRST_DAY: i32 = 15_887;
const DAY_S: i64 = 86_400;

pub(super) fn make(folder: &Path, scale: Scale, seed: u64) -> Result<()> {
    let rows = scale.of(ROWS).max(FILES);
    let values = Arc::new(Values::new());
    let one = values.batch(&mut Random::new(seed), 0..1, rows);
    let schema = one.map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?.schema();
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .build();
    let part = |file: u64| {
        let (values, end) = (values.clone(), rows * (file + 1) / FILES);
        let starts = (rows * file / FILES..end).step_by(BATCH_ROWS as usize);
        let batches = starts
            .map(move |start| values.batch(&mut Random::of(seed, start), start..end.min(start + BATCH_ROWS), rows));
        Part {
            path: folder.join(format!("hits/{file}.parquet")),
            properties: properties.clone(),
            batches: Box::new(RecordBatchIterator::new(batches, schema.clone())),
        }
    };
    super::write((0..FILES).map(part).collect())
}

/// Distributions, and words.
struct Values {
    users: Zipf,
    regions: Zipf,
    words: Zipf,
    pages: Zipf,
    phrases: Zipf,
}

const WORDS: [&str; 32] = [
    "auto", "market", "photo", "news", "weather", "forum", "game", "music", "film", "travel", "house", "school",
    "garden", "winter", "summer", "phone", "price", "review", "shop", "kitchen", "recipe", "sport", "city", "map",
    "google", "video", "book", "health", "work", "car", "train", "river",
];

impl Values {
    fn new() -> Values {
        let zipf = |ranks, exponent| Zipf::new(ranks, exponent);
        Values {
            users: zipf(400_000, 0.7),
            regions: zipf(5000, 1.1),
            words: zipf(WORDS.len() as u64, 0.6),
            pages: zipf(500_000, 0.8),
            phrases: zipf(200_000, 0.8),
        }
    }

    /// Words that a number stands for, always the same.
    fn words(&self, number: u64, count: u64) -> String {
        let mut random = Random::of(17, number);
        let count = 1 + random.below(count);
        let words: Vec<&str> = (0..count).map(|_| WORDS[self.words.rank(&mut random) as usize]).collect();
        words.join(" ")
    }

    fn url(&self, page: u64) -> String {
        let (site, path) = (page % 3000, self.words(page, 6).replace(' ', "/"));
        format!("http://site{site}.example/{path}/{page}?from={}", page.wrapping_mul(2_654_435_761) % 100_000)
    }

    /// These rows of so many, sorted by counter.
    fn batch(&self, random: &mut Random, rows: Range<u64>, of: u64) -> std::result::Result<RecordBatch, ArrowError> {
        let count = (rows.end - rows.start) as usize;
        let numbers: Vec<u64> = (0..count).map(|_| random.number()).collect();
        let counters: Vec<i32> = rows.map(|row| (6000.0 * (row as f64 / of as f64).powi(3)) as i32).collect();
        let seconds: Vec<i64> = (0..count).map(|_| random.below(31 * DAY_S as u64) as i64).collect();
        let pages: Vec<u64> = (0..count).map(|_| self.pages.rank(random)).collect();
        let users: Vec<u64> = (0..count).map(|_| self.users.rank(random)).collect();
        // Most hits are no answers to a search, and come from no advertisement.
        let searches: Vec<Option<u64>> =
            (0..count).map(|_| (random.below(100) < 13).then(|| self.phrases.rank(random))).collect();
        let mut small = |bound: u64, often: u64| -> ArrayRef {
            let value = |_| if random.below(100) < often { 0 } else { random.below(bound) as i16 };
            Arc::new(Int16Array::from_iter_values((0..count).map(value)))
        };
        let text = |values: Vec<String>| -> ArrayRef { Arc::new(StringArray::from(values)) };
        let long = |values: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
        let middle = |values: Vec<i32>| -> ArrayRef { Arc::new(Int32Array::from(values)) };
        let first = |second: i64| i64::from(FIRST_DAY) * DAY_S + second;
        let hash = |value: u64| value.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
        let days = seconds.iter().map(|second| FIRST_DAY + (second / DAY_S) as i32).collect::<Vec<i32>>();
        let urls: Vec<String> = pages.iter().map(|page| self.url(*page)).collect();
        let referers = pages.iter().map(|page| if page % 3 == 0 { String::new() } else { self.url(page / 2) });
        let titles = pages.iter().map(|page| self.words(page / 3, 9)).collect();
        let phrases = searches.iter().map(|number| number.map_or_else(String::new, |number| self.words(number, 5)));
        let phones = numbers.iter().map(|number| match number % 40 {
            0 => format!("Model {}", number % 60),
            _ => String::new(),
        });
        let regions = numbers.iter().map(|number| self.regions.rank(&mut Random::new(*number)) as i32).collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("WatchID", long(numbers.iter().map(|number| *number as i64).collect())),
            ("JavaEnable", small(2, 30)),
            ("Title", text(titles)),
            ("GoodEvent", small(2, 1)),
            ("EventTime", Arc::new(TimestampSecondArray::from_iter_values(seconds.iter().map(|at| first(*at))))),
            ("EventDate", Arc::new(Date32Array::from(days))),
            ("CounterID", middle(counters)),
            ("ClientIP", middle(users.iter().map(|user| hash(*user) as i32).collect())),
            ("RegionID", middle(regions)),
            ("UserID", long(users.iter().map(|user| hash(*user + 1)).collect())),
            ("CounterClass", small(2, 50)),
            ("OS", small(60, 20)),
            ("UserAgent", small(80, 10)),
            ("URL", text(urls)),
            ("Referer", text(referers.collect())),
            ("IsRefresh", small(2, 70)),
            ("ResolutionWidth", small(2000, 5)),
            ("ResolutionHeight", small(1200, 5)),
            ("MobilePhoneModel", text(phones.collect())),
            ("SearchEngineID", small(90, 85)),
            ("SearchPhrase", text(phrases.collect())),
            ("AdvEngineID", small(60, 97)),
            ("TraficSourceID", small(10, 40)),
            ("WindowClientWidth", small(1900, 5)),
            ("WindowClientHeight", small(1100, 5)),
            ("DontCountHits", small(2, 90)),
            ("URLHash", long(pages.iter().map(|page| hash(*page)).collect())),
            ("RefererHash", long(pages.iter().map(|page| hash(page / 2)).collect())),
            ("HID", middle(numbers.iter().map(|number| (number >> 33) as i32).collect())),
            ("FetchTiming", middle(numbers.iter().map(|number| (number >> 50) as i32 % 900).collect())),
        ];
        RecordBatch::try_from_iter(columns)
    }
}
