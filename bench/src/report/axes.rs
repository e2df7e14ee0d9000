//! Arranges the cases of a table along a number in their names. `read block=16K depth=4` is the
//! point 16K of the panel `read depth=4`.

use crate::report::{Report, Row};

/// The cases of a table that differ in only one number, in the order of that number.
#[derive(Debug)]
pub struct Panel<'a> {
    /// The cases' names without the number; empty if they contain nothing else.
    pub name: String,
    pub points: Vec<Point<'a>>,
}

#[derive(Debug)]
pub struct Point<'a> {
    pub case: &'a str,
    /// The number's text and value.
    pub label: &'a str,
    pub value: f64,
    pub rows: Vec<&'a Row>,
}

/// Returns the name of the number with the most values, and the panels along it. `None` if cases
/// differ in other ways.
pub fn panels<'a>(report: &'a Report, table: &str) -> Option<(&'a str, Vec<Panel<'a>>)> {
    let cases = report.cases(table);
    let (first, _) = cases.first()?;
    let mut axis: Option<(&str, usize)> = None;
    for (key, ..) in numbers(first) {
        let labels: Option<Vec<&str>> =
            cases.iter().map(|(case, _)| number(case, key).map(|(label, _)| label)).collect();
        let mut labels = labels.unwrap_or_default();
        labels.sort_unstable();
        labels.dedup();
        if labels.len() > axis.map_or(1, |(_, most)| most) {
            axis = Some((key, labels.len()));
        }
    }
    let (key, _) = axis?;
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for (case, rows) in cases {
        let (label, value) = number(case, key)?;
        let name = case.split([' ', ',']).filter(|part| part.split('=').next() != Some(key));
        let name = name.collect::<Vec<_>>().join(" ");
        let at = panels.iter().position(|panel| panel.name == name).unwrap_or_else(|| {
            panels.push(Panel { name, points: Vec::new() });
            panels.len() - 1
        });
        panels[at].points.push(Point { case, label, value, rows });
    }
    panels.iter_mut().for_each(|panel| panel.points.sort_by(|a, b| a.value.total_cmp(&b.value)));
    Some((key, panels))
}

fn number<'a>(case: &'a str, key: &str) -> Option<(&'a str, f64)> {
    numbers(case).find(|(name, ..)| *name == key).map(|(_, label, value)| (label, value))
}

/// Iterates over each `key=64K` of a case's name: the key, the number's text, and its value.
fn numbers(case: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    case.split([' ', ',']).filter_map(|part| {
        let (key, label) = part.split_once('=')?;
        let digits = label.trim_end_matches(['K', 'M', 'G']);
        let shift = match &label[digits.len()..] {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return None,
        };
        Some((key, label, digits.parse::<f64>().ok().filter(|value| *value > 0.0)? * f64::from(1 << shift)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cases: &[&str]) -> Report {
        let row = |case: &&str| Row { table: "t".to_owned(), case: (*case).to_owned(), ..Row::default() };
        Report { rows: cases.iter().map(row).collect(), ..Report::default() }
    }

    #[test]
    fn the_axis_is_the_number_with_the_most_values() {
        let report = report(&["read block=1M depth=1", "read block=16K depth=1", "copy block=16K depth=1"]);
        let (key, panels) = panels(&report, "t").unwrap();
        assert_eq!(key, "block");
        let names: Vec<_> = panels.iter().map(|panel| panel.name.as_str()).collect();
        assert_eq!(names, ["read depth=1", "copy depth=1"]);
        let labels: Vec<_> = panels[0].points.iter().map(|point| point.label).collect();
        assert_eq!(labels, ["16K", "1M"]);
    }

    #[test]
    fn cases_of_different_kinds_have_no_axis() {
        assert!(panels(&report(&["threads=1", "threads=2", "64K,half"]), "t").is_none());
        assert!(panels(&report(&["depth=32"]), "t").is_none());
        assert!(panels(&report(&["dir=ext4", "fs=xfs"]), "t").is_none());
        assert!(panels(&report(&[]), "t").is_none());
    }
}
