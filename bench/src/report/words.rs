//! Names and descriptions of tables and ways, wherever they are shown.

use crate::report::{Report, Row};
use crate::{table, ways};

/// Below this share of the best, a way has collapsed.
pub const COLLAPSED: f64 = 0.5;

pub fn title(table: &str) -> &str {
    table::by_name(table).map_or(table, |known| known.title)
}

/// Describes a way of the report; empty for one that neither it nor this crate knows.
pub fn meaning<'a>(report: &'a Report, way: &str) -> &'a str {
    let own = || ways::named(way).map_or("", |way| way.words);
    report.ways.get(way).map_or_else(own, String::as_str)
}

/// Unit of [`compared`].
pub fn unit(table: &str) -> &'static str {
    table::known(table).unit
}

/// The figure that the cells of a row's table compare.
pub fn compared(row: &Row) -> f64 {
    (table::known(&row.table).compared)(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_from_elsewhere_brings_its_meaning_which_the_json_keeps() {
        let ways = [("other", "other 1.2.3: as it is")].map(|(way, meaning)| (way.to_owned(), meaning.to_owned()));
        let json = serde_json::to_string(&Report { ways: ways.into(), ..Report::default() }).unwrap();
        let report: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(meaning(&report, "other"), "other 1.2.3: as it is");
        assert_eq!(meaning(&report, "pread"), ways::named("pread").unwrap().words);
        assert_eq!(meaning(&report, "unheard-of"), "");
    }
}
