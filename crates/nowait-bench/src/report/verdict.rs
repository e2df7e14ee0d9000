//! The verdict of a report, in sentences. Each is made from the rows, and left out where they do
//! not support it.

use crate::report::figures::{micro, short};
use crate::report::notes::Code;
use crate::report::words::{compared, unit};
use crate::report::{Report, Row};
use crate::table::{self, listed};
use crate::ways::{OURS, PLAIN};

/// From this ratio on a difference is worth a word.
const DEARER: f64 = 1.3;
/// Rounds that lie further apart than this share of their median are told.
const UNSTEADY: f64 = 0.3;
/// A request in two, or more, was handed to a kernel worker.
const PUNTED: f64 = 0.5;

/// The quickest way of each case, and how far the library is off it.
#[derive(Debug, PartialEq)]
pub struct Standing<'a> {
    pub table: &'a str,
    pub case: &'a str,
    pub best: &'a Row,
    /// Its row, its speed as a share of the best, and whether one of its rounds reached what the
    /// best's median is.
    pub ours: Option<(&'a Row, f64, bool)>,
}

pub fn standings(report: &Report) -> Vec<Standing<'_>> {
    let of_table = |table| report.cases(table).into_iter().filter_map(move |(case, rows)| stand(table, case, &rows));
    report.tables().into_iter().flat_map(of_table).collect()
}

fn stand<'a>(table: &'a str, case: &'a str, rows: &[&'a Row]) -> Option<Standing<'a>> {
    let best = rows.iter().copied().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))?;
    let ours = rows.iter().copied().find(|row| row.way == OURS).map(|row| {
        let reaches = row.rounds.iter().any(|&round| round >= best.ops_per_s);
        (row, row.ops_per_s / best.ops_per_s, reaches)
    });
    Some(Standing { table, case, best, ours })
}

pub fn sentences(report: &Report) -> Vec<String> {
    if report.notes.iter().any(|note| note.code == Code::Rate) {
        return paced(report);
    }
    let mut said = Vec::new();
    said.extend(table::TABLES.iter().filter_map(|table| table.advice(report)));
    for name in report.tables() {
        said.extend(standing(report, name));
        said.extend(punted(report, name));
        said.extend(table::by_name(name).map_or_else(Vec::new, |table| table.findings(report)));
    }
    said
}

/// At a fixed rate, only latencies tell ways apart.
fn paced(report: &Report) -> Vec<String> {
    let sentence = |(table, (case, rows)): (&str, (&str, Vec<&Row>))| {
        let mut by_p99: Vec<(u64, &str)> =
            rows.iter().filter_map(|row| Some((row.latency_ns?.p99, row.way.as_str()))).collect();
        by_p99.sort_unstable();
        let each: Vec<String> = by_p99.iter().map(|(p99, way)| format!("{way} {} µs", micro(*p99))).collect();
        format!("{table} {case}: p99 latency from scheduled start: {}.", listed(&each))
    };
    let of_table = |table| report.cases(table).into_iter().map(move |case| (table, case));
    report.tables().into_iter().flat_map(of_table).map(sentence).collect()
}

/// Standing of the library in a table.
fn standing(report: &Report, table: &str) -> Option<String> {
    let standings: Vec<Standing<'_>> =
        standings(report).into_iter().filter(|standing| standing.table == table && standing.ours.is_some()).collect();
    if standings.is_empty() {
        return None;
    }
    let behind: Vec<(f64, &Row, &Standing<'_>)> = standings
        .iter()
        .filter_map(|standing| {
            standing.ours.filter(|(.., reaches)| !reaches).map(|(row, ratio, _)| (ratio, row, standing))
        })
        .collect();
    let level = standings.len() - behind.len();
    let mut text =
        format!("{table}: {OURS} is the quickest, or level with it, in {level} of {}", counted(standings.len()));
    if let Some((ratio, row, standing)) = behind.iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
        let percent = ratio * 100.0;
        text += &format!("; at worst it has {percent:.0} % of {}'s speed ({}", standing.best.way, standing.case);
        text += &match row.spread() {
            (slowest, fastest) if fastest - slowest >= UNSTEADY => {
                format!(", where its rounds are {slowest:.1} to {fastest:.1} of their median)")
            }
            _ => ")".to_owned(),
        };
    }
    let gains = standings.iter().filter_map(|standing| {
        let (row, ..) = standing.ours?;
        let plain = report.rows.iter().find(|other| {
            (&*other.table, &*other.case) == (table, standing.case) && PLAIN.contains(&other.way.as_str())
        })?;
        Some((row.ops_per_s / plain.ops_per_s, &plain.way, row))
    });
    let most = gains.max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((ratio, plain, row)) = most.filter(|(ratio, ..)| *ratio >= DEARER) {
        let speed = short(compared(row));
        text += &format!("; at best it is {ratio:.1} times as fast as {plain} ({}: {speed} {})", row.case, unit(table));
    }
    Some(text + ".")
}

/// Ways whose io_uring is a pool of kernel threads.
fn punted(report: &Report, table: &str) -> Option<String> {
    let punted: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.table == table && row.punts_per_op.is_some_and(|punts| punts >= PUNTED))
        .collect();
    let mut ways: Vec<String> = Vec::new();
    for row in &punted {
        if !ways.contains(&row.way) {
            ways.push(row.way.clone());
        }
    }
    let case = &punted.first()?.case;
    let more = match report.cases(table).iter().filter(|(case, _)| punted.iter().any(|row| row.case == *case)).count() {
        1 => String::new(),
        cases => format!(" and {} more", counted(cases - 1)),
    };
    Some(format!("{table}: io_uring hands most requests of {} to kernel threads in {case}{more}.", listed(&ways)))
}

fn counted(cases: usize) -> String {
    if cases == 1 { "1 case".to_owned() } else { format!("{cases} cases") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cpu, Latency};

    fn row(table: &str, case: &str, way: &str, ops_per_s: f64) -> Row {
        let cpu_us_per_op = Cpu { caller: 5.0, total: 5.0, ..Cpu::default() };
        let rounds = vec![ops_per_s];
        let (table, case, way) = (table.to_owned(), case.to_owned(), way.to_owned());
        Row { table, case, way, ops_per_s, rounds, cpu_us_per_op, ..Row::default() }
    }

    fn said(rows: Vec<Row>) -> String {
        sentences(&Report { rows, ..Report::default() }).join("\n")
    }

    #[test]
    fn the_depth_is_the_first_that_is_enough() {
        let speeds = [("depth=1", 10.0), ("depth=8", 60.0), ("depth=32", 97.0), ("depth=128", 100.0)];
        let said = said(speeds.map(|(case, speed)| row("reads", case, "ring", speed)).into());
        assert!(said.contains("use depth 32: 97/s by ring, 9.7 times what depth 1 gives. Of the ways"), "{said}");
    }

    #[test]
    fn a_disk_without_parallelism_is_told_as_one() {
        let said = said([("depth=1", 10.0), ("depth=8", 10.2)].map(|(case, x)| row("reads", case, "ring", x)).into());
        assert!(said.contains("More than 1 cold read in flight gains nothing"), "{said}");
    }

    #[test]
    fn what_costs_more_than_a_plain_call_is_told() {
        let ways = [("pread", 1e6), ("ring", 9e5), ("libaio", 5e5), ("tokio", 8e4)];
        let said = said(ways.map(|(way, speed)| row("cached", "threads=1", way, speed)).into());
        assert!(said.contains("costs tokio 12.5 times and libaio 2.0 times."), "{said}");
    }

    #[test]
    fn where_the_library_loses_is_told() {
        let rows = vec![
            row("reads", "depth=1", "pread", 10.0),
            row("reads", "depth=1", "nowait", 10.0),
            row("reads", "depth=8", "pread", 10.0),
            row("reads", "depth=8", "ring", 100.0),
            row("reads", "depth=8", "nowait", 80.0),
        ];
        let said = said(rows);
        let words = "reads: nowait is the quickest, or level with it, in 1 of 2 cases; at worst it has 80 % of ring's speed \
                     (depth=8); at best it is 8.0 times as fast as pread (depth=8: 80 ops/s).";
        assert!(said.contains(words), "{said}");
    }

    #[test]
    fn a_case_that_is_level_by_one_round_is_not_the_worst() {
        let with_rounds = |row: Row, rounds: &[f64]| Row { rounds: rounds.to_vec(), ..row };
        let rows = vec![
            row("reads", "depth=1", "ring", 100.0),
            with_rounds(row("reads", "depth=1", "nowait", 50.0), &[20.0, 50.0, 110.0]),
            row("reads", "depth=8", "ring", 100.0),
            with_rounds(row("reads", "depth=8", "nowait", 80.0), &[60.0, 80.0, 90.0]),
        ];
        let said = said(rows);
        let words = "in 1 of 2 cases; at worst it has 80 % of ring's speed (depth=8, where its rounds are 0.8 to 1.1 of their median).";
        assert!(said.contains(words), "{said}");
    }

    #[test]
    fn stalls_and_punts_are_told() {
        let stall = |way: &str, max| Row {
            latency_ns: Some(Latency { max, ..Latency::default() }),
            ..row("stall", "overwrite memory=16M", way, 1.0)
        };
        let punting = Row { punts_per_op: Some(0.9), ..row("writes", "fs=ext4 depth=1", "ring", 5.0) };
        let said = said(vec![stall("pwrite", 20_000_000), stall("ring", 300_000), stall("nowait", 400_000), punting]);
        assert!(
            said.contains("by pwrite keeps its other work waiting for up to 20.0 ms, by ring 0.3 ms, by nowait 0.4 ms"),
            "{said}"
        );
        assert!(
            said.contains("writes: io_uring hands most requests of ring to kernel threads in fs=ext4 depth=1."),
            "{said}"
        );
    }

    #[test]
    fn nothing_measured_says_nothing() {
        assert!(sentences(&Report::default()).is_empty());
    }
}
