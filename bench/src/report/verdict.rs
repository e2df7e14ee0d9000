//! The verdict of a report, in sentences. A sentence is omitted if the rows do not support it.

use serde::Serialize;

use crate::report::{Control, Report, Row, in_order};
use crate::stats::{Finding, LEVEL, OUTSIDE, Ratio, median, range};
use crate::table::{self, listed};
use crate::ways::{CACHE, ON_TOKIO, OURS, PLAIN};

/// Share of requests handed to kernel workers from which a way is reported: every second one.
const PUNTED: f64 = 0.5;

/// Comparison of a way with the best of the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stand<'a> {
    pub row: &'a Row,
    /// The fastest way.
    pub best: &'a Row,
    /// The way's speed as a share of the best way's, by their medians.
    pub share: f64,
    /// The fastest of the other ways that determine the finding, and the ratio to it.
    pub rival: Option<(&'a Row, Option<Ratio>)>,
    /// Result against all others.
    pub finding: Finding,
}

/// Comparison of two ways in the same case, from their rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Against<'a> {
    pub other: &'a Row,
    /// Interval of the ratio of the two speeds: contains the true ratio in 95 of 100 comparisons.
    pub low: f64,
    pub high: f64,
    /// True if it is certain which way is faster. In 95 of 100 runs, all such claims are true.
    pub sure: bool,
}

impl<'a> Against<'a> {
    /// Compares two ways; the run makes this number of `comparisons`. `None` for too few rounds.
    pub fn of(report: &Report, ours: &Row, other: &'a Row, comparisons: usize) -> Option<Self> {
        let ratio = Ratio::of_rounds(&ours.rounds, &other.rounds)?;
        let alarm = OUTSIDE / comparisons.max(1) as f64;
        let control = report.control(&ours.table, &ours.case).and_then(Control::distance).unwrap_or(1.0);
        let behind = ratio.is_below(alarm) && ratio.middle() * control < 1.0;
        let ahead = ratio.is_above(alarm) && ratio.middle() > control;
        // No difference below that of the control is certain, so no range is narrower.
        let low = ratio.low().min(ratio.middle() / control);
        let high = ratio.high().max(ratio.middle() * control);
        Some(Self { other, low, high, sure: behind || ahead })
    }

    /// Compares with the fastest of the ways [by hand](by_hand). The lower end of the interval
    /// covers all of them.
    pub fn best_by_hand(report: &Report, ours: &Row, rows: &[&'a Row], comparisons: usize) -> Option<Self> {
        let all: Vec<Self> = by_hand(rows).filter_map(|other| Self::of(report, ours, other, comparisons)).collect();
        let low = all.iter().map(|against| against.low).fold(f64::INFINITY, f64::min);
        let quickest = all.iter().copied().max_by(|a, b| a.other.ops_per_s.total_cmp(&b.other.ops_per_s))?;
        let sure = if low > 1.0 { all.iter().all(|against| against.sure) } else { quickest.sure };
        Some(Self { low, sure, ..quickest })
    }

    /// Returns whether the rounds scatter too much for a verdict: either way may be the faster, and
    /// the interval is too wide.
    pub fn is_noise(&self) -> bool {
        !self.sure && is_noise(self.low, self.high)
    }

    /// Formats as `3.9–4.4 × pread`, with a `?` if either may be the faster. `None` for noise.
    pub fn told(&self) -> Option<String> {
        let mark = if self.sure { "" } else { "?" };
        (!self.is_noise()).then(|| format!("{} × {}{mark}", range(self.low, self.high), self.other.way))
    }

    /// Formats the distance to the best of several ways. `None` for noise.
    pub fn of_the_best(&self) -> Option<String> {
        let Self { low, high, .. } = *self;
        match low {
            near if (NEAR..1.0).contains(&near) => {
                Some(format!("within {:.0} % of best", ((1.0 - near) * 100.0).ceil()))
            }
            _ if self.is_noise() => None,
            _ => Some(format!("{} × best{}", range(low, high), if self.sure { "" } else { "?" })),
        }
    }
}

/// Ratio of its ends from which an interval is noise: an interval around 1 then contains both half
/// and twice the speed.
const NOISE: f64 = 4.0;

fn is_noise(low: f64, high: f64) -> bool {
    high > low * NOISE
}

/// Share of the best from which a way is reported as within some per cent of it.
const NEAR: f64 = 0.85;

/// Iterates over the hand-written ways of a case: those without this library and tokio.
pub fn by_hand<'a>(rows: &[&'a Row]) -> impl Iterator<Item = &'a Row> {
    rows.iter().copied().filter(|row| !row.way.starts_with(OURS) && !row.way.starts_with("tokio"))
}

pub fn quickest<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
}

/// Compares a way with the others. The library's own ways are not compared with each other, except
/// its page cache with its files.
pub fn stand<'a>(report: &Report, rows: &[&'a Row], way: &str) -> Option<Stand<'a>> {
    let row = rows.iter().copied().find(|row| row.way == way)?;
    let is_ours = |way: &str| way.starts_with(OURS);
    let is_kin = |other: &str| way != CACHE && is_ours(way) && is_ours(other);
    let others: Vec<&Row> = rows.iter().copied().filter(|other| other.way != way && !is_kin(&other.way)).collect();
    // The control of the case; 1 in older reports without controls.
    let control = report.control(&row.table, &row.case).and_then(Control::distance).unwrap_or(1.0);
    let comparisons = others.len() * report.case_count();
    let found = others.iter().map(|other| {
        let ratio = Ratio::of_rounds(&row.rounds, &other.rounds);
        let finding = ratio.map(|ratio| ratio.finding(comparisons, control));
        (finding.unwrap_or(Finding::CannotTell), *other, ratio)
    });
    // Ways that are certainly faster determine the finding; if there are none, those that may be
    // faster.
    let decides =
        found.max_by(|(a, one, _), (b, other, _)| a.cmp(b).then_with(|| one.ops_per_s.total_cmp(&other.ops_per_s)));
    let finding = decides.map_or(Finding::Level, |(finding, ..)| finding);
    let rival = decides.map(|(_, other, ratio)| (other, ratio));
    let best = quickest(rows.iter().copied())?;
    Some(Stand { row, best, share: row.ops_per_s / best.ops_per_s, rival, finding })
}

/// Comparison of a way of the library with the others of a case, as in the JSON.
#[derive(Debug, Serialize)]
pub struct Standing {
    table: String,
    case: String,
    way: String,
    /// The fastest way, and the speed of this way relative to it.
    best: String,
    share: f64,
    /// The fastest of the other ways that determine the finding, and the interval of the ratio to
    /// it.
    rival: Option<String>,
    low: Option<f64>,
    high: Option<f64>,
    finding: Finding,
}

/// Returns the report as JSON, a line for each row, and for each standing.
pub fn to_json(report: &Report) -> String {
    let head = Report { rows: Vec::new(), ..report.clone() };
    let head = serde_json::to_string(&head).expect("a report is plain data");
    let head = head.strip_suffix("[]}").expect("rows come last");
    format!("{head}{},\"verdict\":{}}}\n", json_lines(&report.rows), json_lines(&standings(report)))
}

fn json_lines(all: &[impl Serialize]) -> String {
    let line = |one| serde_json::to_string(one).expect("it is plain data");
    let lines: Vec<String> = all.iter().map(line).collect();
    if lines.is_empty() { "[]".to_owned() } else { format!("[\n{}\n]", lines.join(",\n")) }
}

/// Compares each way of the library in each case of the tables that rank ways.
pub fn standings(report: &Report) -> Vec<Standing> {
    let mut standings = Vec::new();
    for table in report.tables().into_iter().filter(|table| table::ranks(table)) {
        for (case, rows) in report.cases(table) {
            for found in ways_of_ours(report).into_iter().filter_map(|way| stand(report, &rows, way)) {
                let ratio = found.rival.and_then(|(_, ratio)| ratio);
                standings.push(Standing {
                    table: table.to_owned(),
                    case: case.to_owned(),
                    way: found.row.way.clone(),
                    best: found.best.way.clone(),
                    share: found.share,
                    rival: found.rival.map(|(rival, _)| rival.way.clone()),
                    low: ratio.map(|ratio| ratio.low()),
                    high: ratio.map(|ratio| ratio.high()),
                    finding: found.finding,
                });
            }
        }
    }
    standings
}

pub fn sentences(report: &Report) -> Vec<String> {
    let mut said: Vec<String> = table::TABLES.iter().filter_map(|table| (table.advice)(report)).collect();
    for name in report.tables() {
        if table::ranks(name) {
            said.extend(ways_of_ours(report).into_iter().filter_map(|way| rank(report, name, way)));
        }
        said.extend(punted(report, name));
        said.extend(table::by_name(name).map_or_else(Vec::new, |table| (table.findings)(report)));
    }
    said.extend(controlled(report));
    said
}

/// Summarizes the controls.
fn controlled(report: &Report) -> Option<String> {
    let mut found: Vec<(f64, &Control)> =
        report.controls.iter().filter_map(|control| Some((control.distance()?, control))).collect();
    found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (most, control) = found.last()?;
    let middle = median(&found.iter().map(|(distance, _)| *distance).collect::<Vec<_>>());
    let percent = |distance: f64| (distance - 1.0) * 100.0;
    let mut text = format!(
        "Control: in each case one way was measured twice. The two measurements differ by {:.1} % (median of {}), at most by \
         {:.1} % ({} {}, {})",
        percent(middle),
        counted(found.len()),
        percent(*most),
        control.table,
        control.case,
        control.way,
    );
    match found.iter().filter(|(_, control)| control.misleads(found.len())).count() {
        0 => {}
        wrong => text += &format!("; in {}, by more than the rounds scatter", counted(wrong)),
    }
    Some(text + ". The verdict of a case ignores differences smaller than its control.")
}

/// Returns the ways of the library that programs choose between: without tokio, on tokio, and its
/// page cache.
fn ways_of_ours(report: &Report) -> Vec<&str> {
    [OURS, ON_TOKIO, CACHE].into_iter().filter(|way| report.rows.iter().any(|row| row.way == *way)).collect()
}

/// Ranks a way of the library in a table: first against the ways that programs use today, then
/// against the fastest of all others.
fn rank(report: &Report, table: &str, way: &str) -> Option<String> {
    let stands: Vec<(&str, Stand<'_>)> = report
        .cases(table)
        .into_iter()
        .filter_map(|(case, rows)| Some((case, stand(report, &rows, way)?)))
        .filter(|(_, stand)| stand.rival.is_some())
        .collect();
    if stands.is_empty() {
        return None;
    }
    let (pairs, mut is_noisy) = beside(report, table, way);
    let pairs = if pairs.is_empty() { String::new() } else { format!("{}. It is ", listed(&pairs)) };
    let of = |finding| stands.iter().filter(move |(_, stand)| stand.finding == finding);
    let (level, all) = (of(Finding::Level).count(), stands.len());
    let percent = 100.0 - (LEVEL * 100.0).round();
    let mut text =
        format!("{table}: {way} is {pairs}the quickest, or within {percent:.0} % of it, in {level} of {all} cases");
    for (finding, word) in [(Finding::Behind, "Behind"), (Finding::CannotTell, "Uncertain")] {
        let ratio = |stand: &Stand<'_>| stand.rival.and_then(|(_, ratio)| ratio);
        let middle = |stand: &Stand<'_>| ratio(stand).map_or(1.0, |ratio| ratio.middle());
        let Some((case, worst)) = of(finding).min_by(|(_, a), (_, b)| middle(a).total_cmp(&middle(b))) else {
            continue;
        };
        text += &format!(". {word} in {}", of(finding).count());
        match (worst.rival, ratio(worst)) {
            (Some(_), Some(ratio)) if finding == Finding::CannotTell && is_noise(ratio.low(), ratio.high()) => {
                is_noisy = true;
            }
            (Some((rival, _)), Some(ratio)) => {
                text += &format!(", at worst {} ({case})", ratio.words(&rival.way));
            }
            _ => {}
        }
    }
    text.push('.');
    if is_noisy {
        text +=
            " Where a ratio is missing, the machine was too noisy for a verdict: use more --rounds on an idle machine.";
    }
    Some(text)
}

/// Compares a way of the library with those that programs use today: its worst case and its best.
/// Omits noise; true if there is any.
fn beside(report: &Report, table: &str, way: &str) -> (Vec<String>, bool) {
    let rivals: &[&[&str]] = match way {
        ON_TOKIO => &[&["tokio"]],
        CACHE => &[&PLAIN, &["mmap"], &[OURS]],
        _ => &[&PLAIN, &["threads"]],
    };
    let cases = report.cases(table);
    let mut is_noisy = false;
    let of = |rival: &&[&str]| {
        let pair = |(case, rows): &(&'_ str, Vec<&'_ Row>)| {
            let find = |ways: &[&str]| rows.iter().copied().find(|row| ways.contains(&row.way.as_str()));
            let against = Against::of(report, find(&[way])?, find(rival)?, report.case_count() * 3)?;
            is_noisy |= against.is_noise();
            Some((against.low, format!("{} ({case})", against.told()?)))
        };
        let mut pairs: Vec<(f64, String)> = cases.iter().filter_map(pair).collect();
        pairs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        match &pairs[..] {
            [] => None,
            [(_, one)] => Some(one.clone()),
            [(_, least), .., (_, most)] => Some(format!("{least} to {most}")),
        }
    };
    let told = rivals.iter().filter_map(of).collect();
    (told, is_noisy)
}

/// Reports ways whose requests mostly go to kernel workers.
fn punted(report: &Report, table: &str) -> Option<String> {
    let punted: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.table == table && row.punts_per_op.is_some_and(|punts| punts >= PUNTED))
        .collect();
    let ways = in_order(punted.iter().map(|row| row.way.as_str()));
    let case = &punted.first()?.case;
    let more = match report.cases(table).iter().filter(|(case, _)| punted.iter().any(|row| row.case == *case)).count() {
        1 => String::new(),
        cases => format!(" and {} more", counted(cases - 1)),
    };
    Some(format!("{table}: io_uring hands most requests of {} to kernel workers in {case}{more}.", listed(&ways)))
}

/// Formats a number of cases.
pub(crate) fn counted(cases: usize) -> String {
    if cases == 1 { "1 case".to_owned() } else { format!("{cases} cases") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cpu, Latency};

    fn row(table: &str, case: &str, way: &str, ops_per_s: f64) -> Row {
        let cpu_us_per_op = Cpu { caller: 5.0, total: 5.0, ..Cpu::default() };
        let rounds = vec![ops_per_s; 5];
        let (table, case, way) = (table.to_owned(), case.to_owned(), way.to_owned());
        Row { table, case, way, ops_per_s, rounds, cpu_us_per_op, ..Row::default() }
    }

    fn said(rows: Vec<Row>) -> String {
        sentences(&Report { rows, ..Report::default() }).join("\n")
    }

    #[test]
    fn the_json_contains_the_standing_of_each_way_of_ours() {
        let rows = [("pread", 100.0), ("ring", 50.0), (OURS, 80.0), (ON_TOKIO, 98.0)];
        let rows = rows.map(|(way, speed)| row("reads", "depth=8", way, speed)).into();
        let json: serde_json::Value = serde_json::from_str(&to_json(&Report { rows, ..Report::default() })).unwrap();
        let expected = |way: &str, share: f64, finding: &str| {
            serde_json::json!({
                "table": "reads", "case": "depth=8", "way": way, "best": "pread", "share": share, "rival": "pread",
                "low": share, "high": share, "finding": finding,
            })
        };
        let rounded = |mut standing: serde_json::Value| {
            for end in ["low", "high"] {
                standing[end] = ((standing[end].as_f64().unwrap() * 1e6).round() / 1e6).into();
            }
            standing
        };
        let found: Vec<_> = json["verdict"].as_array().unwrap().iter().cloned().map(rounded).collect();
        assert_eq!(found, [expected(OURS, 0.8, "behind"), expected(ON_TOKIO, 0.98, "level")]);
    }

    #[test]
    fn the_depth_is_the_first_that_is_enough() {
        let speeds = [("depth=1", 10.0), ("depth=8", 60.0), ("depth=32", 97.0), ("depth=128", 100.0)];
        let said = said(speeds.map(|(case, speed)| row("reads", case, "ring", speed)).into());
        assert!(
            said.contains("use depth 32: ring reaches 97/s, 9.7 times the best speed of depth 1. Of the ways"),
            "{said}"
        );
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
        assert!(said.contains("In multiples of this time: tokio 12.5 and libaio 2.0."), "{said}");
    }

    #[test]
    fn where_the_library_loses_is_told() {
        let rows = vec![
            row("reads", "depth=1", "pread", 10.0),
            row("reads", "depth=1", "nowait", 10.0),
            row("reads", "depth=1", "nowait-tokio", 9.0),
            row("reads", "depth=8", "pread", 10.0),
            row("reads", "depth=8", "ring", 100.0),
            row("reads", "depth=8", "nowait", 80.0),
            row("reads", "depth=8", "nowait-tokio", 120.0),
        ];
        let said = said(rows);
        for words in [
            "reads: nowait is 1.00 × pread? (depth=1) to 8.0 × pread (depth=8). It is the quickest, or within 5 % of it, \
             in 1 of 2 cases. Behind in 1, at worst 20 % slower than ring (depth=8).",
            "reads: nowait-tokio is the quickest, or within 5 % of it, in 1 of 2 cases. Behind in 1, at worst 10 % slower \
             than pread (depth=1).",
        ] {
            assert!(said.contains(words), "{said}");
        }
    }

    /// Symptom: a way of half the speed was reported as equally fast, because of one round that
    /// reached the other's median.
    #[test]
    fn one_good_round_makes_no_way_level() {
        let with_rounds = |way: &str, rounds: &[f64]| {
            let mut sorted = rounds.to_vec();
            sorted.sort_by(f64::total_cmp);
            Row { rounds: rounds.to_vec(), ..row("reads", "depth=1", way, sorted[rounds.len() / 2]) }
        };
        let ring = with_rounds("ring", &[100.0, 98.0, 103.0, 100.0, 99.0]);
        let slow = with_rounds("nowait", &[40.0, 50.0, 65.0, 50.0, 51.0]);
        let said_of = |ours: Row| said(vec![ring.clone(), ours]);
        let text = said_of(slow);
        assert!(text.contains("in 0 of 1 cases. Behind in 1, at worst 0.41–0.62 × ring (depth=1)"), "{text}");
        // One faster round makes the result uncertain.
        let text = said_of(with_rounds("nowait", &[35.0, 50.0, 105.0, 50.0, 51.0]));
        assert!(text.contains("in 0 of 1 cases. Uncertain in 1, at worst "), "{text}");
        let text = said_of(with_rounds("nowait", &[60.0, 130.0, 90.0, 140.0, 70.0]));
        assert!(text.contains("in 0 of 1 cases. Uncertain in 1, at worst "), "{text}");
        let text = said_of(with_rounds("nowait", &[50.0, 50.0, 52.0, 49.0, 50.0]));
        assert!(text.contains("in 0 of 1 cases. Behind in 1, at worst 0.49–0.51 × ring"), "{text}");
        let text = said_of(with_rounds("nowait", &[101.0, 98.0, 102.0, 101.0, 99.0]));
        assert!(text.contains("in 1 of 1 cases."), "{text}");
        // One round is not enough.
        let text = said_of(with_rounds("nowait", &[200.0]));
        assert!(text.contains("in 0 of 1 cases. Uncertain in 1."), "{text}");
    }

    /// A difference that the control also shows is not attributed to another way.
    #[test]
    fn a_way_that_differs_from_itself_bounds_what_is_told() {
        let speeds = |speed: f64| [speed, speed * 1.01, speed * 0.99, speed, speed].to_vec();
        let with_rounds = |way, speed| Row { rounds: speeds(speed), ..row("reads", "depth=1", way, speed) };
        let rows = vec![with_rounds("ring", 100.0), with_rounds("nowait", 90.0)];
        let said = |again| {
            let control = Control {
                table: "reads".into(),
                case: "depth=1".into(),
                way: "nowait".into(),
                rounds: speeds(90.0),
                again,
            };
            sentences(&Report { rows: rows.clone(), controls: vec![control], ..Report::default() }).join("\n")
        };
        let calm = said(speeds(91.0));
        assert!(
            calm.contains(
                "The two measurements differ by 1.1 % (median of 1 case), at most by 1.1 % (reads depth=1, nowait)"
            ),
            "{calm}"
        );
        assert!(calm.contains("Behind in 1, at worst 10 % slower than ring"), "{calm}");
        let moody = said(speeds(70.0));
        assert!(
            moody.contains("at most by 28.6 % (reads depth=1, nowait); in 1 case, by more than the rounds scatter."),
            "{moody}"
        );
        assert!(moody.contains("in 0 of 1 cases. Uncertain in 1, at worst "), "{moody}");
    }

    /// Symptom: beside busy programs the verdict was `0.00–2690 × pread?`.
    #[test]
    fn an_interval_that_says_nothing_is_not_told() {
        let with_rounds = |case: &str, way: &str, rounds: &[f64]| Row {
            rounds: rounds.to_vec(),
            ..row("reads", case, way, median(rounds))
        };
        let noisy = [4.0, 900.0, 30.0, 500.0, 60.0];
        let rows = |case| [with_rounds(case, "pread", &[100.0; 5]), with_rounds(case, "nowait", &noisy)];
        let (all, calm) = (rows("depth=1"), row("reads", "depth=8", "pread", 50.0));
        let text = said(all.to_vec());
        assert!(
            text.contains(
                "reads: nowait is the quickest, or within 5 % of it, in 0 of 1 cases. Uncertain in 1. Where a ratio is \
                 missing, the machine was too noisy for a verdict: use more --rounds on an idle machine."
            ),
            "{text}"
        );
        // The cases that are certain keep their ratios.
        let text = said([&all[..], &[calm.clone(), row("reads", "depth=8", "nowait", 100.0)]].concat());
        assert!(text.contains("reads: nowait is 2.0 × pread (depth=8). It is the quickest"), "{text}");
        assert!(text.contains("too noisy for a verdict") && !text.contains("depth=1)"), "{text}");
        // A way that is certainly faster is reported, however wide the interval.
        let fast: Vec<f64> = [30.0, 90.0, 250.0, 45.0, 140.0].iter().map(|speed| speed * 1e3).collect();
        let text = said(vec![with_rounds("depth=8", "nowait", &fast), calm]);
        assert!(text.contains(" × pread (depth=8)") && !text.contains("too noisy"), "{text}");
    }

    #[test]
    fn stalls_and_punts_are_told() {
        let stall = |way: &str, max| Row {
            latency_ns: Some(Latency { max, ..Latency::default() }),
            ..row("stall", "dir=ext4", way, 1.0)
        };
        let punting = Row { punts_per_op: Some(0.9), ..row("writes", "fs=ext4 depth=1", "ring", 5.0) };
        let rows = vec![stall("pwrite", 20_000_000), stall("ring", 300_000), stall("nowait", 400_000), punting];
        let mut report = Report { rows, ..Report::default() };
        assert!(!sentences(&report).join("\n").contains("other work"), "no more was written than may be dirty");
        report.environment.stall_bytes = Some(2);
        report.environment.dirty_limit_bytes = Some(1);
        let said = sentences(&report).join("\n");
        assert!(
            said.contains(
                "other work of the writing thread waits at most 20.00 ms with pwrite, 0.30 ms with ring, 0.40 ms with nowait"
            ),
            "{said}"
        );
        assert!(
            said.contains("writes: io_uring hands most requests of ring to kernel workers in fs=ext4 depth=1."),
            "{said}"
        );
    }

    #[test]
    fn nothing_measured_says_nothing() {
        assert!(sentences(&Report::default()).is_empty());
    }
}
