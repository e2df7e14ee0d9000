//! Queries by name, from the files in `queries/`, and those of wide tables, which are made.

use nowait_bench::random::Random;
use nowait_bench::{Error, ErrorKind, Result};

use crate::data::{Scale, wide};

/// Tables that belong together, in a directory of this name, a directory for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    Hits,
    Tpch,
    Wide,
}

impl Set {
    pub(crate) const ALL: [Set; 3] = [Set::Hits, Set::Tpch, Set::Wide];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Set::Hits => "hits",
            Set::Tpch => "tpch",
            Set::Wide => "wide",
        }
    }

    pub(crate) fn tables(self) -> &'static [&'static str] {
        match self {
            Set::Hits => &["hits"],
            Set::Tpch => &["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"],
            Set::Wide => &["wide"],
        }
    }
}

#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) name: String,
    pub(crate) set: Set,
    text: Text,
}

#[derive(Debug)]
enum Text {
    Fixed(String),
    /// Sums of a few columns over rows at random places.
    Wide {
        places: usize,
        columns: usize,
        rows: u64,
    },
}

/// Row groups as a whole; and rows, of which one page of each column is read.
const WIDE: [(&str, Text); 2] = [
    ("wide-groups", Text::Wide { places: 16, columns: 12, rows: wide::GROUP_ROWS }),
    ("wide-points", Text::Wide { places: 64, columns: 24, rows: 10 }),
];

pub(crate) fn all() -> Result<Vec<Query>> {
    let mut all = parsed(Set::Hits, include_str!("../queries/hits.sql"))?;
    all.extend(parsed(Set::Tpch, include_str!("../queries/tpch.sql"))?);
    all.extend(WIDE.map(|(name, text)| Query { name: name.to_owned(), set: Set::Wide, text }));
    Ok(all)
}

/// Queries of a file: each ends in a semicolon at the end of a line; the last comment before it is its name.
fn parsed(set: Set, file: &str) -> Result<Vec<Query>> {
    let parts = file.split(";\n").map(str::trim).filter(|part| !part.is_empty());
    let query = |part: &str| {
        let (comments, lines): (Vec<&str>, Vec<&str>) = part.lines().partition(|line| line.starts_with("--"));
        let name = comments.last().map(|comment| comment.trim_start_matches('-').trim().to_owned());
        let name = name.filter(|name| name.starts_with(set.name()));
        let name = name.ok_or_else(|| Error::new(ErrorKind::Other, format!("a query has no name: {part}")))?;
        Ok(Query { name, set, text: Text::Fixed(lines.join("\n").trim().to_owned()) })
    };
    parts.map(query).collect()
}

impl Query {
    pub(crate) fn is_asked_for(&self, names: &[String]) -> bool {
        names.is_empty() || names.iter().any(|name| self.name.starts_with(name.as_str()))
    }

    /// The SQL of a round: other places in each, of queries at random places.
    pub(crate) fn sql(&self, scale: Scale, seed: u64, round: u64) -> String {
        match &self.text {
            Text::Fixed(text) => text.clone(),
            Text::Wide { places, columns, rows } => {
                let mut random = Random::of(seed, round);
                let groups = wide::rows(scale) / wide::GROUP_ROWS;
                let groups = random.permutation(groups).into_iter().take(*places);
                let first = |group: u64, random: &mut Random| {
                    group * wide::GROUP_ROWS + random.below(wide::GROUP_ROWS - rows + 1)
                };
                let places: Vec<String> = groups
                    .map(|group| first(group, &mut random))
                    .map(|first| format!("id BETWEEN {first} AND {}", first + rows - 1))
                    .collect();
                let columns = random.permutation(wide::COLUMNS as u64).into_iter().take(*columns);
                let sums: Vec<String> =
                    columns.map(|column| format!("sum({})", wide::column(column as usize))).collect();
                format!("SELECT count(*), {} FROM wide WHERE {}", sums.join(", "), places.join(" OR "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_has_a_name_of_its_own_and_one_statement() {
        let all = all().unwrap();
        assert!(all.len() > 35, "{}", all.len());
        for (index, query) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.name != query.name), "{}", query.name);
            let sql = query.sql(Scale(0.01), 1, 1);
            assert!(sql.starts_with("SELECT ") && !sql.contains("--"), "{}: {sql}", query.name);
        }
        assert!(all.iter().any(|query| query.is_asked_for(&["tpch-0".into()])));
        assert!(!all[0].is_asked_for(&["tpch".into()]));
    }

    #[test]
    fn places_are_others_in_each_round_and_the_same_for_all_ways() {
        let all = all().unwrap();
        let query = all.iter().find(|query| query.name == "wide-points").unwrap();
        assert_eq!(query.sql(Scale(1.0), 7, 1), query.sql(Scale(1.0), 7, 1));
        assert_ne!(query.sql(Scale(1.0), 7, 1), query.sql(Scale(1.0), 7, 2));
    }
}
