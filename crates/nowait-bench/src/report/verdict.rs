//! What a report says, in sentences. Each is made from the rows; where they do not carry one, it is left out.

use crate::report::axes::{Point, panels};
use crate::report::notes::Code;
use crate::report::words::{compared, micro, short, unit};
use crate::report::{Report, Row, best};

/// The way whose standing is told.
const OURS: &str = "nowait";
/// What a program does that has not heard of any of this.
const PLAIN: [&str; 3] = ["pread", "pwrite", "append-fdatasync"];
/// More in flight for less than this share of the best is not worth it.
const ENOUGH: f64 = 0.95;
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
    /// Its row, its speed as a share of the best, and whether one of its rounds reached what the best's median is.
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
    said.extend(depth(report));
    said.extend(cached(report));
    for table in report.tables() {
        said.extend(standing(report, table));
        said.extend(punted(report, table));
        if table == "stall" {
            said.extend(stalls(report));
        }
    }
    said
}

/// Where all are as fast as they were to be, only latencies tell them apart.
fn paced(report: &Report) -> Vec<String> {
    let sentence = |(table, (case, rows)): (&str, (&str, Vec<&Row>))| {
        let mut by_p99: Vec<(u64, &str)> =
            rows.iter().filter_map(|row| Some((row.latency_ns?.p99, row.way.as_str()))).collect();
        by_p99.sort_unstable();
        let each: Vec<String> = by_p99.iter().map(|(p99, way)| format!("{way} {} µs", micro(*p99))).collect();
        format!(
            "{table} {case}: of a hundred reads 99 were complete so soon after they were to begin: {}.",
            listed(&each)
        )
    };
    let of_table = |table| report.cases(table).into_iter().map(move |case| (table, case));
    report.tables().into_iter().flat_map(of_table).map(sentence).collect()
}

/// How many cold reads should be in flight.
fn depth(report: &Report) -> Option<String> {
    let (_, panels) = panels(report, "reads").filter(|(axis, _)| *axis == "depth")?;
    let points = &panels.first()?.points;
    let (first, last) = (points.first()?, points.last()?);
    let speed = |point: &Point<'_>| best(&point.rows);
    let most = points.iter().map(speed).fold(0.0, f64::max);
    let enough = points.iter().find(|point| speed(point) >= ENOUGH * most)?;
    if enough.case == first.case {
        let (given, label) = (short(speed(first)), first.label);
        return Some(format!(
            "More than {label} cold read in flight gains nothing here: depth {label} gives {given}/s."
        ));
    }
    let way = enough.rows.iter().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))?;
    let more = if enough.case == last.case { " More was not tried." } else { "" };
    let leanest = enough
        .rows
        .iter()
        .filter(|row| row.ops_per_s >= ENOUGH * way.ops_per_s)
        .min_by(|a, b| a.cpu_us_per_op.total.total_cmp(&b.cpu_us_per_op.total))?;
    Some(format!(
        "For cold reads use depth {}: {}/s by {}, {:.1} times what depth {} gives.{more} Of the ways that give as much, {} takes the \
         least processor time, {:.0} µs a read.",
        enough.label,
        short(way.ops_per_s),
        way.way,
        way.ops_per_s / speed(first),
        first.label,
        leanest.way,
        leanest.cpu_us_per_op.total,
    ))
}

/// What a read costs that needs no disk.
fn cached(report: &Report) -> Option<String> {
    let (_, rows) = report.cases("cached").into_iter().next()?;
    let plain = rows.iter().find(|row| PLAIN.contains(&row.way.as_str()))?;
    let mut dearer: Vec<(f64, &str)> = rows
        .iter()
        .map(|row| (plain.ops_per_s / row.ops_per_s, row.way.as_str()))
        .filter(|(x, _)| *x >= DEARER)
        .collect();
    dearer.sort_by(|a, b| b.0.total_cmp(&a.0));
    let latency = plain.latency_ns.map_or_else(String::new, |latency| format!(" {} µs of", micro(latency.p50)));
    let costs = match dearer.as_slice() {
        [] => "no other way costs much more".to_owned(),
        all => {
            let each: Vec<String> = all.iter().map(|(ratio, way)| format!("{way} {ratio:.1} times")).collect();
            format!("as much of it costs {}", listed(&each))
        }
    };
    Some(format!("A cached read takes{latency} time by {}; {costs}.", plain.way))
}

/// Where the library stands in a table.
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

/// Where io_uring is a pool of kernel threads.
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

/// Of the cases in which the kernel had a reason to put the writer to sleep: more was written than may be dirty, or than memory may hold.
fn stalls(report: &Report) -> Vec<String> {
    let environment = &report.environment;
    let beyond = environment.stall_bytes.zip(environment.dirty_limit_bytes).is_some_and(|(bytes, limit)| bytes > limit);
    let longest = |row: &&Row| row.latency_ns.map_or(0, |latency| latency.max);
    let sentence = |(case, rows): (&str, Vec<&Row>)| {
        let worst = rows.iter().max_by_key(|row| longest(row))?;
        let least = rows.iter().min_by_key(|row| longest(row))?;
        let ms = |row: &&Row| format!("{:.1} ms", longest(row) as f64 / 1e6);
        let ours = rows.iter().find(|row| row.way == OURS && row.way != least.way && row.way != worst.way);
        let ours = ours.map_or_else(String::new, |row| format!(", by {OURS} {}", ms(row)));
        (worst.way != least.way).then(|| {
            let (worst_ms, least_ms) = (ms(worst), ms(least));
            let (worst, least) = (&worst.way, &least.way);
            format!("stall: a thread that writes by {worst} keeps its other work waiting for up to {worst_ms}, by {least} {least_ms}{ours} ({case}).")
        })
    };
    let cases = report.cases("stall").into_iter().filter(|(case, _)| beyond || case.starts_with("overwrite "));
    cases.filter_map(sentence).collect()
}

fn counted(cases: usize) -> String {
    if cases == 1 { "1 case".to_owned() } else { format!("{cases} cases") }
}

/// `a, b and c`
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
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
