//! docs/measurements: rows of the current records in which the library loses, and the list of pages.
//!
//! A row is lost if the ratio of speeds of `nowait`, or `nowait-tokio`, to the best other way is below
//! 0.95. Latencies stand apart, where they are what a table measures. Files are those of
//! docs/measurements/current.tsv, causes those of docs/measurements/causes.tsv.

use std::fs;
use std::path::{Path, PathBuf};

use nowait_bench::stats::{LEVEL, Ratio, mean};
use nowait_bench::ways::{ON_TOKIO, OURS};

use crate::record::{Record, Row, cases, digits, each_once, fits, grid, lines};
use crate::{Result, listed, root};

/// Tables that measure latency: names of figures, and their fields.
const LATENCIES: [(&str, &str, &str); 5] = [
    ("mixed", "cold p50", "cold_latency_ns.p50"),
    ("mixed", "cold p99", "cold_latency_ns.p99"),
    ("mixed", "late p50", "late_ns.p50"),
    ("mixed", "late p99", "late_ns.p99"),
    (PACED, "p99", "latency_ns.p99"),
];
/// Here requests arrive at a given rate: speed is that of the arrivals.
const PACED: &str = "load";
const LONGER: f64 = 1.25;

pub(crate) fn folder() -> PathBuf {
    root().join("docs/measurements")
}

/// The records of current.tsv: topic, file, record.
pub(crate) struct Current(Vec<(String, String, Record)>);

/// A way of the library's in a case, and the best other way: the one to which the ratio is lowest. The
/// library's other ways are left out: it is not compared with itself.
struct Found<'a> {
    topic: &'a str,
    file: &'a str,
    row: &'a Row,
    best: &'a Row,
    /// None for too few rounds.
    ratio: Option<Ratio>,
}

/// Latencies of a row, by name: the ratio to the lowest of the other ways, and whose that is.
struct Late<'a> {
    file: &'a str,
    row: &'a Row,
    figures: Vec<(&'static str, f64, &'a str)>,
}

impl Found<'_> {
    /// The ratio, if the row is lost.
    fn lost(&self) -> Option<Ratio> {
        self.ratio.filter(|ratio| ratio.middle() < LEVEL)
    }

    /// Index of the first line of causes whose patterns all fit; alternatives are separated by |.
    fn line(&self, causes: &[Vec<String>]) -> Option<usize> {
        let fields = [self.file, &self.row.table, &self.row.case, &self.row.way, &self.best.way];
        let fit = |(pattern, field): (&String, &str)| pattern.split('|').any(|one| fits(one, field));
        causes.iter().position(|cause| cause.iter().zip(fields).all(fit))
    }
}

/// Text of a line whose cause and source are those of the line above.
const AS_ABOVE: &str = "as above";

/// Lines of causes.tsv. Several lines may have the same cause.
fn causes() -> Result<Vec<Vec<String>>> {
    let mut causes = lines(&folder().join("causes.tsv"), 7)?;
    for number in 1..causes.len() {
        if causes[number][5] == AS_ABOVE {
            let above = causes[number - 1][5..].to_vec();
            causes[number].splice(5.., above);
        }
    }
    Ok(causes)
}

impl Current {
    pub(crate) fn load() -> Result<Current> {
        let of = |line: Vec<String>| {
            let record = Record::load(&folder().join(&line[1]))?;
            Ok((line[0].clone(), line[1].clone(), record))
        };
        Ok(Current(lines(&folder().join("current.tsv"), 2)?.into_iter().map(of).collect::<Result<_>>()?))
    }

    /// Rows of the library's two ways of each record, one way after the other, with those of other ways in
    /// the same case.
    fn rows(&self) -> Vec<(&str, &str, &Row, Vec<&Row>)> {
        let mut found = Vec::new();
        for (topic, file, record) in &self.0 {
            let cases = cases(&record.rows);
            for (way, rows) in [OURS, ON_TOKIO].into_iter().flat_map(|way| cases.iter().map(move |rows| (way, rows))) {
                let others: Vec<&Row> = rows.iter().copied().filter(|row| !row.is_ours()).collect();
                if let (Some(row), [_, ..]) = (rows.iter().find(|row| row.way == way), &others[..]) {
                    found.push((&**topic, &**file, *row, others));
                }
            }
        }
        found
    }

    fn compared(&self) -> Vec<Found<'_>> {
        let mut found = Vec::new();
        for (topic, file, row, others) in self.rows().into_iter().filter(|(.., row, _)| row.table != PACED) {
            let middle = |other: &Row| {
                let paired = row.rounds.iter().zip(&other.rounds).map(|(ours, other)| (ours / other).ln());
                let middle = mean(&paired.collect::<Vec<_>>());
                (row.rounds.len() == other.rounds.len() && middle.is_finite()).then_some(middle)
            };
            let known = others.into_iter().filter_map(|other| Some((other, middle(other)?)));
            if let Some((best, _)) = known.min_by(|(_, one), (_, other)| one.total_cmp(other)) {
                found.push(Found { topic, file, row, best, ratio: Ratio::of_rounds(&row.rounds, &best.rounds) });
            }
        }
        found
    }

    fn latencies(&self) -> Vec<Late<'_>> {
        let mut found = Vec::new();
        for (_, file, row, others) in self.rows() {
            let of = |(_, name, path): &(&str, &'static str, &str)| {
                let known = others.iter().filter_map(|other| Some((other.figure(path)?, other.way.as_str())));
                let (lowest, best) = known.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
                Some((*name, row.figure(path)? / lowest, best))
            };
            let figures: Vec<_> = LATENCIES.iter().filter(|(table, ..)| *table == row.table).filter_map(of).collect();
            if !figures.is_empty() {
                found.push(Late { file, row, figures });
            }
        }
        found
    }

    /// Numbers of lost rows and of longer latencies, as a list.
    pub(crate) fn counted(&self) -> Vec<String> {
        let (rows, late) = (self.compared(), self.latencies());
        let lost = |way| {
            let rows: Vec<_> = rows.iter().filter(|found| found.row.way == way).collect();
            let lost: Vec<Ratio> = rows.iter().filter_map(|found| found.lost()).collect();
            let sure = lost.iter().filter(|ratio| ratio.high() < 1.0).count();
            format!("* `{way}`: {} of {} rows; in {sure} the whole interval is below 1.", lost.len(), rows.len())
        };
        let longer = |way| {
            let of_way = late.iter().filter(|late| late.row.way == way);
            let ratios: Vec<f64> = of_way.flat_map(|late| late.figures.iter().map(|(_, ratio, _)| *ratio)).collect();
            let longer = ratios.iter().filter(|ratio| **ratio > LONGER).count();
            format!("* `{way}`: {longer} of {} latencies are more than {LONGER} times the lowest.", ratios.len())
        };
        [OURS, ON_TOKIO].map(lost).into_iter().chain([OURS, ON_TOKIO].map(longer)).collect()
    }

    /// Tables of the lost rows of each topic, and their causes.
    pub(crate) fn lost(&self) -> Result<Vec<String>> {
        let (causes, rows) = (causes()?, self.compared());
        let lost: Vec<(&Found<'_>, Ratio)> = rows.iter().filter_map(|found| Some((found, found.lost()?))).collect();
        let fitting: Vec<usize> = lost.iter().filter_map(|(found, _)| found.line(&causes)).collect();
        if let Some((_, cause)) = causes.iter().enumerate().find(|(number, _)| !fitting.contains(number)) {
            return Err(format!("causes.tsv: no lost row fits this line: {}", cause.join("  ")));
        }
        let used = each_once(fitting.iter().map(|line| &causes[*line][5..]));
        let mut said = Vec::new();
        for of_topic in lost.chunk_by(|(one, _), (next, _)| one.topic == next.topic) {
            let line = |(found, ratio): &(&Found<'_>, Ratio)| {
                let sure = if ratio.high() < 1.0 { "**" } else { "" };
                let line = found.line(&causes);
                let place = line.and_then(|line| used.iter().position(|cause| *cause == &causes[line][5..]));
                vec![
                    linked(found.file),
                    format!("{} {}", found.row.table, found.row.case),
                    found.row.way.clone(),
                    found.best.way.clone(),
                    format!("{sure}{:.2}{sure}", ratio.middle()),
                    format!("{:.2}–{:.2}", ratio.low(), ratio.high()),
                    match place {
                        Some(place) => (place + 1).to_string(),
                        None if ratio.high() < 1.0 => "not known".to_owned(),
                        None => "–".to_owned(),
                    },
                ]
            };
            said.extend([format!("## {}", capital(of_topic[0].0.topic)), String::new()]);
            let head = ["record", "case", "way", "best other way", "ratio", "interval", "cause"];
            said.extend(grid(&head, &of_topic.iter().map(line).collect::<Vec<_>>()));
            said.push(String::new());
        }
        said.extend(["## Causes".to_owned(), String::new()]);
        let cause =
            |(place, cause): (usize, &&[String])| format!("{}. {} ([source]({}))", place + 1, cause[0], cause[1]);
        said.extend(used.iter().enumerate().map(cause));
        Ok(said)
    }

    /// A row for each record, with its longer latencies; a dash where a latency is not longer.
    pub(crate) fn late(&self) -> Vec<String> {
        let mut said = Vec::new();
        for late in self.latencies().chunk_by(|one, next| one.file == next.file) {
            let longer = |late: &&Late<'_>| late.figures.iter().any(|(_, ratio, _)| *ratio > LONGER);
            let cell = |(_, ratio, best): &(_, f64, &str)| {
                if *ratio > LONGER { format!("{} {best}", digits(*ratio)) } else { "–".to_owned() }
            };
            let line = |Late { row, figures, .. }: &Late<'_>| {
                [row.case.clone(), row.way.clone()].into_iter().chain(figures.iter().map(cell)).collect()
            };
            let head: Vec<&str> =
                ["case", "way"].into_iter().chain(late[0].figures.iter().map(|(name, ..)| *name)).collect();
            said.extend([format!("{}:", linked(late[0].file)), String::new()]);
            said.extend(grid(&head, &late.iter().filter(longer).map(line).collect::<Vec<_>>()));
            said.push(String::new());
        }
        said.pop();
        said
    }

    pub(crate) fn records(&self) -> Vec<String> {
        let line = |(_, file, record): &(String, String, Record)| {
            let date = record.text("date").and_then(|date| date.get(..10)).unwrap_or("–");
            vec![
                format!("[{file}]({file})"),
                date.to_owned(),
                record.text("commit").unwrap_or("**not recorded**").to_owned(),
            ]
        };
        grid(&["record", "measured", "commit"], &self.0.iter().map(line).collect::<Vec<_>>())
    }

    /// All pages: those with a current record by its topic, then the others, newest first.
    pub(crate) fn pages(&self) -> Result<Vec<String>> {
        let folder_of = |file: &str| file.split('/').next().unwrap_or(file).to_owned();
        let mut pages = each_once(self.0.iter().map(|(_, file, _)| folder_of(file)));
        let mut others = listed(&folder());
        others.retain(|path| path.join("README.md").exists());
        others.reverse();
        pages = each_once(
            pages.into_iter().chain(others.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))),
        );
        let line = |page: &String| {
            let topic = self.0.iter().find(|(_, file, _)| folder_of(file) == *page).map_or("", |(topic, ..)| topic);
            Ok([vec![topic.to_owned()], entry(page)?].concat())
        };
        Ok(grid(&["topic", "page", "measured on"], &pages.iter().map(line).collect::<Result<Vec<_>>>()?))
    }
}

/// A file's name, as a link to it.
fn linked(file: &str) -> String {
    let name = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
    format!("[{name}]({file})")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Title of the page, without the date, and the date of its folder.
fn entry(name: &str) -> Result<Vec<String>> {
    let path = folder().join(name).join("README.md");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (title, date) = (text.lines().next().unwrap_or_default().trim_start_matches("# "), &name[..10]);
    let title = title.replace(&format!("{date}: "), "").replace(&format!(": {date}"), "");
    Ok(vec![format!("[{}]({name}/README.md)", capital(&title)), date.to_owned()])
}
