//! Records: the JSON that runs have written, and lines of files that list them.

use std::fs;
use std::path::Path;

use nowait_bench::stats::{mean, median, spread};
use serde_json::Value;

use crate::Result;

/// From here on `nowait bench` records the commit that it was built from.
const COMMITS_SINCE: &str = "2026-11-22T06:00:00Z";

pub(crate) struct Record {
    environment: Value,
    pub(crate) rows: Vec<Row>,
}

/// Result of a way in a case.
pub(crate) struct Row {
    pub(crate) table: String,
    pub(crate) case: String,
    pub(crate) way: String,
    pub(crate) rounds: Vec<f64>,
    all: Value,
}

impl Record {
    /// A record; refused if it should carry the commit and does not.
    pub(crate) fn load(path: &Path) -> Result<Record> {
        let at = |why: String| format!("{}: {why}", path.display());
        let text = fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
        let mut all: Value = serde_json::from_str(&text).map_err(|error| at(error.to_string()))?;
        let environment = all["environment"].take();
        let since = |date: &str| date >= COMMITS_SINCE;
        if environment["date"].as_str().is_some_and(since) && environment["commit"].as_str().is_none_or(str::is_empty) {
            return Err(at("it carries no commit: measure with a build of a clone".to_owned()));
        }
        let rows = all["rows"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(Record { environment, rows: rows.into_iter().map(Row::of).collect() })
    }

    /// A text of the environment.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.environment[field].as_str().filter(|text| !text.is_empty())
    }
}

/// Rows of each case of each table, in their order.
pub(crate) fn cases(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut cases: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match cases.iter_mut().find(|rows| rows[0].table == row.table && rows[0].case == row.case) {
            Some(rows) => rows.push(row),
            None => cases.push(vec![row]),
        }
    }
    cases
}

impl Row {
    fn of(all: Value) -> Row {
        let text = |name: &str| all[name].as_str().unwrap_or_default().to_owned();
        let rounds = all["rounds"].as_array().map(|rounds| rounds.iter().filter_map(Value::as_f64).collect());
        Row { table: text("table"), case: text("case"), way: text("way"), rounds: rounds.unwrap_or_default(), all }
    }

    /// A field of the row's JSON, by names with dots between.
    pub(crate) fn figure(&self, path: &str) -> Option<f64> {
        let field = path.split('.').try_fold(&self.all, |value, name| value.get(name))?;
        field.as_f64().or_else(|| field.as_bool().map(f64::from))
    }

    /// The slowest and the fastest round, as shares of the median.
    pub(crate) fn spread(&self) -> String {
        let (least, most) = spread(&self.rounds, median(&self.rounds));
        format!("({least:.2}–{most:.2})")
    }

    /// The geometric mean of its rounds.
    pub(crate) fn speed(&self) -> f64 {
        mean(&self.rounds.iter().map(|speed| speed.ln()).collect::<Vec<_>>()).exp()
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.way.starts_with("nowait")
    }
}

/// Fields of the lines of a file, without comments; so many in each, where that is known.
pub(crate) fn lines(path: &Path, fields: usize) -> Result<Vec<Vec<String>>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let told = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let lines: Vec<Vec<String>> = told.map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    match lines.iter().find(|line| fields > 0 && line.len() != fields) {
        Some(line) => Err(format!("{}: {line:?}: not {fields} fields", path.display())),
        None => Ok(lines),
    }
}

/// Each value once, in order.
pub(crate) fn each_once<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    values.for_each(|value| {
        if !found.contains(&value) {
            found.push(value)
        }
    });
    found
}

/// Returns whether a text fits a pattern, in which `*` is any text.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| fits(after, &rest[at..]))
        }),
    }
}

/// Three digits, without zeros at the end; or all before the point.
pub(crate) fn digits(value: f64) -> String {
    if value.abs() >= 1000.0 || value == 0.0 {
        return format!("{value:.0}");
    }
    let places = (2 - value.abs().log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

pub(crate) fn grid<Text: AsRef<str>>(head: &[Text], body: &[Vec<String>]) -> Vec<String> {
    let head: Vec<&str> = head.iter().map(AsRef::as_ref).collect();
    let mut said = vec![format!("| {} |", head.join(" | ")), "|---".repeat(head.len()) + "|"];
    said.extend(body.iter().map(|cells| format!("| {} |", cells.join(" | "))));
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, is) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("rows=*", "rows=4", true),
            ("*-reads/*.json", "2026-reads/cached.json", true),
            ("*-reads/*.json", "2026-reads/cached.tsv", false),
            ("*é", "aéé", true),
        ] {
            assert_eq!(fits(pattern, text), is, "{pattern} {text}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (12.34, "12.3"),
            (99.96, "100"),
            (1234.5, "1234"),
            (0.0123, "0.0123"),
            (0.5, "0.5"),
        ] {
            assert_eq!(digits(value), text);
        }
    }
}
