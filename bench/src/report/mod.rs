//! The result as plain data. `nowait bench --json` writes it as JSON, with the
//! [verdict](verdict::to_json).

pub mod axes;
pub mod figures;
pub mod notes;
pub mod page;
pub mod preflight;
pub mod verdict;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::environment::Environment;
use crate::report::notes::{Code, Note};
use crate::stats::{self, Finding, Ratio};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub environment: Environment,
    /// Reason why the run is incomplete: an interrupt or an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    pub notes: Vec<Note>,
    /// Descriptions of ways from other crates.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ways: BTreeMap<String, String>,
    /// For each case, one way that was measured twice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub controls: Vec<Control>,
    pub rows: Vec<Row>,
}

/// A way that had two turns in each round of a case, or of all cases whose names begin with `case`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Control {
    pub table: String,
    pub case: String,
    pub way: String,
    /// Operations per second of the first turns, in order of the rounds.
    pub rounds: Vec<f64>,
    /// Operations per second of the second turns, which may have run before the first.
    pub again: Vec<f64>,
}

impl Control {
    /// Returns the [distance](stats::distance) of the two measurements; `None` for too few rounds.
    pub fn distance(&self) -> Option<f64> {
        stats::distance(&self.again, &self.rounds)
    }

    /// Returns whether one of the two measurements would be reported as slower than the other, in a
    /// run of this number of cases.
    pub fn misleads(&self, cases: usize) -> bool {
        let rounds = [(&self.rounds, &self.again), (&self.again, &self.rounds)];
        let ratios = rounds.into_iter().filter_map(|(one, other)| Ratio::of_rounds(one, other));
        ratios.into_iter().any(|ratio| ratio.finding(cases, 1.0) == Finding::Behind)
    }

    fn is_of(&self, table: &str, case: &str) -> bool {
        let rest = case.strip_prefix(&*self.case);
        self.table == table && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    }
}

/// Result of one way in one case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    pub table: String,
    pub case: String,
    pub way: String,
    /// The median of `rounds`. For a gather, an operation is a record.
    pub ops_per_s: f64,
    pub bytes_per_s: f64,
    /// Latencies from submission to completion, over all rounds; for a gather, of a batch. In the
    /// table of stalls, and for populating a map, these are the gaps. `None` if another process
    /// does the work.
    pub latency_ns: Option<Latency>,
    pub cpu_us_per_op: Cpu,
    pub context_switches_per_op: f64,
    /// Requests handed to kernel workers; `None` if the kernel does not report how often its
    /// threads ran.
    pub punts_per_op: Option<f64>,
    /// Share of operations served on the caller's thread without waiting; `None` if unknown.
    pub inline_fraction: Option<f64>,
    /// Median time of preparation before the clock started: opening files, threads, rings, a log's
    /// calibration and first segments. Missing in reports of older versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepared_ms: Option<f64>,
    /// Operations per second of each round, in order.
    pub rounds: Vec<f64>,
    /// Figures that only its table has, by name.
    #[serde(flatten)]
    pub own: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    /// `None` for fewer than ten thousand operations, whose maximum it would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999: Option<u64>,
    pub max: u64,
}

/// Processor time of the process, by threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Time of the threads that make the requests.
    pub caller: f64,
    /// Time of the kernel workers (`iou-wrk`) of this process's rings. `None` if the kernel does
    /// not report it: `pool` then includes it, as `workers` does in older reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_workers: Option<f64>,
    /// Time of all other threads of the process.
    #[serde(alias = "workers")]
    pub pool: f64,
    /// Sum of the three.
    pub total: f64,
    /// Other time of the machine's processors: kernel threads (write-back, a loop device),
    /// interrupts and other programs. The kernel counts it in ticks, so it is inaccurate for short
    /// rounds. `None` if the kernel does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<f64>,
}

impl Row {
    /// Returns a figure that only the row's table has.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.own.get(name)?.as_f64()
    }

    /// Returns latencies that only the row's table has.
    pub fn own_latency(&self, name: &str) -> Option<Latency> {
        Latency::deserialize(self.own.get(name)?).ok()
    }

    /// Adds the figures that only the row's table has.
    pub fn with(mut self, figures: impl Serialize) -> Self {
        let Ok(Value::Object(figures)) = serde_json::to_value(figures) else { return self };
        self.own.extend(figures);
        self
    }

    /// Returns the slowest and the fastest round, as shares of the median.
    pub fn spread(&self) -> (f64, f64) {
        stats::spread(&self.rounds, self.ops_per_s)
    }
}

impl Report {
    pub fn note(&mut self, code: Code, text: impl Into<String>) {
        self.notes.push(Note::new(code, text));
    }

    /// Adds a note, unless the report contains it.
    pub fn note_once(&mut self, code: Code, text: impl Into<String>) {
        let note = Note::new(code, text);
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the control of a case.
    pub fn control(&self, table: &str, case: &str) -> Option<&Control> {
        self.controls.iter().find(|control| control.is_of(table, case))
    }

    /// Returns the tables with rows, in order.
    pub fn tables(&self) -> Vec<&str> {
        in_order(self.rows.iter().map(|row| row.table.as_str()))
    }

    pub fn ways(&self) -> Vec<&str> {
        in_order(self.rows.iter().map(|row| row.way.as_str()))
    }

    pub fn ways_of(&self, table: &str) -> Vec<&str> {
        in_order(self.rows.iter().filter(|row| row.table == table).map(|row| row.way.as_str()))
    }

    /// Returns the cases of a table in order, each with its rows.
    pub fn cases(&self, table: &str) -> Vec<(&str, Vec<&Row>)> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.table == table).collect();
        let names = in_order(rows.iter().map(|row| row.case.as_str()));
        let of_case = |name| rows.iter().copied().filter(|row| row.case == name).collect();
        names.into_iter().map(|name| (name, of_case(name))).collect()
    }

    /// Returns the worst row of each way, with its ratio to the best row of its case, in the tables
    /// that `counts` accepts. The best way comes first.
    pub fn worst(&self, counts: impl Fn(&str) -> bool) -> Vec<(f64, &Row)> {
        let mut worst: BTreeMap<&str, (f64, &Row)> = BTreeMap::new();
        for (_, rows) in self.tables().into_iter().filter(|table| counts(table)).flat_map(|table| self.cases(table)) {
            for row in &rows {
                let here = (row.ops_per_s / best(&rows), *row);
                let known = worst.entry(&row.way).or_insert(here);
                if here.0 < known.0 {
                    *known = here;
                }
            }
        }
        let mut worst: Vec<_> = worst.into_values().collect();
        worst.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        worst
    }

    /// Returns the number of cases of all tables.
    pub fn case_count(&self) -> usize {
        self.tables().into_iter().map(|table| self.cases(table).len()).sum()
    }
}

/// Returns the best speed among the rows of a case.
pub fn best(rows: &[&Row]) -> f64 {
    rows.iter().map(|row| row.ops_per_s).fold(0.0, f64::max)
}

pub(crate) fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measure::meter::{Sample, latencies};
    use crate::sys::{Runs, Usage};

    pub(crate) fn sample(seconds: f64, operations: u64) -> Sample {
        let mut latencies = latencies();
        latencies.record_n(1000, operations as u32).unwrap();
        Sample {
            seconds,
            prepared_s: seconds / 100.0,
            operations,
            bytes: operations * 4096,
            wrong: None,
            latencies,
            sampled: Vec::new(),
            figures: Vec::new(),
            usage: Usage { user_us: 100.0, system_us: 300.0, switches: 50.0 },
            caller_us: 100.0,
            ring_workers: Some(Runs { count: 10, time_ns: 200_000 }),
            transfers: None,
            machine_us: Some(440.0),
            stalled_fraction: 0.0,
            inline_fraction: None,
        }
    }

    fn row(table: &str, case: &str, way: &str, ops_per_s: f64) -> Row {
        Row { table: table.to_owned(), case: case.to_owned(), way: way.to_owned(), ops_per_s, ..Row::default() }
    }

    #[test]
    fn rounds_are_summed_up() {
        let samples = [sample(1.0, 100), sample(2.0, 100), sample(0.5, 100)];
        let row = Row::of("reads", "depth=1", "pread", &samples);
        assert_eq!(row.ops_per_s, 100.0);
        assert_eq!(row.rounds, [100.0, 50.0, 200.0]);
        assert_eq!(row.prepared_ms, Some(10.0));
        assert_eq!(row.spread(), (0.5, 2.0));
        assert_eq!(row.bytes_per_s, 409_600.0);
        let expected = Cpu { caller: 1.0, ring_workers: Some(2.0), pool: 1.0, total: 4.0, system: Some(0.4) };
        assert_eq!(row.cpu_us_per_op, expected);
        assert_eq!(row.context_switches_per_op, 0.5);
        assert_eq!(row.punts_per_op, Some(0.1));
        assert!((990..=1010).contains(&row.latency_ns.unwrap().p50));
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_made_up() {
        let mute = Sample { ring_workers: None, machine_us: None, ..sample(1.0, 100) };
        let row = Row::of("reads", "depth=1", "pread", &[sample(1.0, 100), mute]);
        assert_eq!((row.punts_per_op, row.cpu_us_per_op.system), (None, None));
        assert_eq!((row.cpu_us_per_op.ring_workers, row.cpu_us_per_op.pool), (None, 3.0));
    }

    #[test]
    fn an_older_report_told_all_others_as_one() {
        let cpu: Cpu = serde_json::from_str(r#"{"caller": 1.0, "workers": 3.0, "total": 4.0}"#).unwrap();
        assert_eq!(cpu, Cpu { caller: 1.0, ring_workers: None, pool: 3.0, total: 4.0, system: None });
    }

    #[test]
    fn the_worst_point_of_each_way_is_found() {
        let rows = vec![
            row("reads", "depth=1", "a", 10.0),
            row("reads", "depth=1", "b", 5.0),
            row("cached", "threads=1", "a", 30.0),
            row("cached", "threads=1", "b", 40.0),
        ];
        let report = Report { rows, ..Report::default() };
        let worst = report.worst(|_| true);
        assert_eq!(worst, [(0.75, &report.rows[2]), (0.5, &report.rows[1])]);
        assert_eq!(report.tables(), ["reads", "cached"]);
        assert_eq!(report.ways(), ["a", "b"]);
    }

    #[test]
    fn figures_of_one_table_stand_beside_those_of_all() {
        let own =
            serde_json::json!({ "stalled_fraction": 0.1 + 0.2, "late_ns": Latency { p99: 7, ..Latency::default() } });
        let row = row("stall", "dir=ext4", "pwrite", 1.0).with(own);
        let json = serde_json::to_string(&row).unwrap();
        assert!(json.contains(r#""stalled_fraction":0.30000000000000004"#), "{json}");
        let again: Row = serde_json::from_str(&json).unwrap();
        assert_eq!((again.figure("stalled_fraction"), &again), (Some(0.1 + 0.2), &row));
        assert_eq!(again.own_latency("late_ns").map(|late| late.p99), Some(7));
        assert_eq!((Row::default().figure("stalled_fraction"), Row::default().own_latency("late_ns")), (None, None));
    }

    #[test]
    fn the_json_has_its_documented_shape() {
        let rows = vec![Row::of("reads", "depth=1", "pread", &[sample(1.0, 10)])];
        let report = Report { rows, notes: vec![Note::new(Code::DirectRefused, "it is alone")], ..Report::default() };
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&json), ["environment", "notes", "rows"]);
        assert_eq!(json["notes"][0]["code"], "direct-refused");
        assert_eq!(serde_json::from_value::<Report>(json.clone()).unwrap(), report);
        let text = verdict::to_json(&report);
        assert_eq!((serde_json::from_str::<Report>(&text).unwrap(), text.lines().count()), (report, 3));
        assert_eq!(serde_json::from_str::<Report>(&verdict::to_json(&Report::default())).unwrap(), Report::default());
        let row = &json["rows"][0];
        let expected = "bytes_per_s case context_switches_per_op cpu_us_per_op inline_fraction latency_ns \
                        ops_per_s prepared_ms punts_per_op rounds table way";
        assert_eq!(keys(row), expected.split_whitespace().collect::<Vec<_>>());
        assert_eq!(keys(&row["latency_ns"]), ["max", "p50", "p99", "p999"]);
        assert_eq!(keys(&row["cpu_us_per_op"]), ["caller", "pool", "ring_workers", "system", "total"]);
        assert!(row["inline_fraction"].is_null());
    }
}
