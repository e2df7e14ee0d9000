//! Has the library become slower than its recorded bars? `make bench-check` runs this.
//!
//! Instructions per operation are counted by callgrind. They do not depend on the machine's load: a
//! count may exceed its bar by 3 %. Without valgrind give `--only speeds`.
//!
//! Speeds are ratios to a hand-written floor. `nowait bench` is run again and again, 5 rounds a time,
//! all cases in turn, so that the runs of a case lie minutes apart. A run counts as one figure: the mean
//! of the logs of its rounds' ratios. The error comes from the scatter of these figures, and so has the
//! moods of the disk that last as long as a run. Where neighbouring runs are alike it is wider, by their
//! correlation ([`Ratio::in_turn`]). After 8, 16, 24, 32, 40 and 48 runs a case ends if its error, with
//! the bar's own, is small enough for what is promised below. Only the scatter decides that. A bar is
//! recorded from 16 to 96 runs. No figure is left out, and nothing is measured a second time.
//!
//! Promised, and simulated by a test:
//!
//! * A true loss of 10 % in a case is found in 90 % of checks, or more.
//! * At most 5 % of checks find a loss in any of the 6 cases where nothing has changed.
//! * Both hold where each way's rounds scatter by 5 %, or by 15 % (standard deviation, normal), and by
//!   5 % with whole runs off by another 5 %.
//! * Where the scatter does not allow it, the answer is "cannot tell".
//!
//! Not covered:
//!
//! * Moods that last for some runs, wholly: so few runs tell their correlation badly. Where neighbouring
//!   runs correlate by 0.5 one check of six gives a false alarm, by 0.8 three or four of ten.
//! * A machine, kernel, disk or compiler that changed between recording and checking: it may treat the
//!   library and the floor differently. What is known of a change is printed above the speeds.
//! * A mood of the disk that lasts for a whole check, or for a whole recording.
//! * A bar that was recorded too high, or too low, by chance. The rates above are over recordings and
//!   checks together; one unlucky bar can break again and again until it is recorded again.
//! * Losses below 10 %, and cases that are not in the list.
//!
//! `--only files` prints which source files of the library an operation executes, and how many
//! instructions in each. It has no bar: the number of files is that of the places that a reader must
//! know.
//!
//! Exit codes: 0 no bar is broken; 1 one is, or something cannot be measured; 2 wrong usage; 3 cannot
//! tell: the scatter is too large.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use nowait_bench::report::Report;
use nowait_bench::stats::Ratio;
use serde::{Deserialize, Serialize};

/// Reason why nothing could be measured, and what to do.
type Result<T> = std::result::Result<T, String>;

const TOLERANCE: f64 = 1.03;
/// Name, case of the example `instructions`, and its operations: enough that start-up is lost in the
/// difference of two runs. With a source file, only what was written there counts, wherever it was
/// inlined: not what the standard library does for it (atomics, sorting, memory).
const COUNTED: [(&str, &str, u64, &str); 7] = [
    ("read-into", "read-into", 20_000, ""),
    ("read-wait", "read-wait", 20_000, ""),
    ("read-future", "read-future", 20_000, ""),
    ("selector", "read-future", 20_000, "nowait/src/core/policy.rs"),
    ("gather", "gather", 1_000, ""),
    ("gather-plan", "gather-plan", 1_000, ""),
    ("gather planning", "gather-plan", 1_000, "nowait/src/gather/queued.rs"),
];
/// Operations whose files are listed: name, case of the example `instructions`, operations.
const ROADS: [(&str, &str, u64); 6] = [
    ("cached read, awaited", "read-future", 20_000),
    ("cold read under block_on", "cold", 2_000),
    ("cold read, shared ring and reaper", "cold-shared", 2_000),
    ("buffered write of 4 KiB, awaited", "write", 2_000),
    ("gather of 64 cached ranges", "gather", 1_000),
    ("log append, with its wait", "append", 500),
];
/// A file that executes fewer instructions per operation is not on its road.
const ON_THE_ROAD: f64 = 0.3;
/// Case, floor, arguments. Files are as large as a round's cold reads need.
const SPEEDS: [(&str, &str, &str); 6] = [
    ("cached threads=1", "pread", "cached --size 64M"),
    ("reads depth=1", "pread", "reads --depths 1 --size 64M"),
    ("reads depth=32", "ring", "reads --depths 32 --size 128M"),
    ("gather records=64,cold", "ring", "gather --records 64 --size 128M"),
    // Quick: on the directory's own file system alone.
    ("writes depth=1", "pwrite", "writes --quick --depths 1 --size 64M"),
    ("log writers=8 size=256", "thread-batch", "log --logs threads --writers 8 --sizes 256"),
];
/// Numbers of runs after which it is looked whether they are enough.
const CHECKED: [usize; 6] = [8, 16, 24, 32, 40, 48];
const RECORDED: [usize; 6] = [16, 32, 48, 64, 80, 96];
/// A loss of 10 %, as a log.
const LOSS: f64 = 0.105_360_515_657_826_28;
const MISSED: f64 = 0.1;
/// Probability of a false alarm in one case, as it goes into the limit. The scatter that ends a case is
/// more often too small than too large, which makes about twice as much of it: 3 % for all cases
/// together, and 5 % are promised (simulated).
const ALARM: f64 = 0.015 / SPEEDS.len() as f64;
/// Share of the allowed error, as a variance, that a bar takes up.
const BARS_SHARE: f64 = 1.0 / 3.0;

/// Compares the library with bench/examples/bars.json
#[derive(Parser)]
struct Options {
    /// Make what is found the bars, in bench/examples/bars.json
    #[arg(long)]
    record: bool,
    /// Only these
    #[arg(long, value_parser = ["counts", "speeds", "files"])]
    only: Option<String>,
    /// Where the files are made: ext4, xfs or btrfs [default: beside the programs]
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct Bars {
    environment: String,
    instructions: BTreeMap<String, f64>,
    speeds: BTreeMap<String, Speed>,
}

/// Ratio of the runs to a floor, the standard error of its log, and their number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Speed {
    floor: String,
    ratio: f64,
    error: f64,
    runs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Holds,
    CannotTell,
    Broken,
}

impl Speed {
    fn of(floor: &str, figures: &[f64]) -> Result<Speed> {
        let Ratio { log, error, .. } = Ratio::in_turn(figures).ok_or("runs without a speed")?;
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        Ok(Speed { floor: floor.to_owned(), ratio: rounded(log.exp()), error: rounded(error), runs: figures.len() })
    }

    fn ratio(&self) -> Ratio {
        Ratio { log: self.ratio.ln(), error: self.error, freedom: self.runs as f64 - 1.0 }
    }

    /// Returns whether a bar is known well enough, so that a check can tell.
    fn is_good_bar(&self) -> bool {
        let ratio = Ratio { error: self.error / BARS_SHARE.sqrt(), ..self.ratio() };
        ratio.reach(ALARM) + ratio.reach(MISSED) <= LOSS
    }

    /// Returns whether a loss would be found.
    fn is_told(&self, bar: &Speed) -> bool {
        let change = self.ratio().over(&bar.ratio());
        change.reach(ALARM) + change.reach(MISSED) <= LOSS
    }

    fn verdict(&self, bar: &Speed) -> Verdict {
        match () {
            () if self.ratio().over(&bar.ratio()).is_below(ALARM) => Verdict::Broken,
            () if self.is_told(bar) => Verdict::Holds,
            () => Verdict::CannotTell,
        }
    }
}

impl Bars {
    fn bar(&self, name: &str, floor: &str) -> Option<&Speed> {
        self.speeds.get(name).filter(|bar| bar.floor == floor)
    }
}

/// Speed of each case, from as many runs as one of `looks`: the first after which they are `enough`, else
/// the last. `figure` is that of one run.
fn measure(
    looks: [usize; 6],
    mut figure: impl FnMut(usize) -> Result<f64>,
    enough: impl Fn(&str, &Speed) -> bool,
) -> Result<BTreeMap<String, Speed>> {
    let mut figures = vec![Vec::new(); SPEEDS.len()];
    let mut speeds = BTreeMap::new();
    for runs in 1..=looks[5] {
        for (case, (name, floor, _)) in SPEEDS.iter().enumerate() {
            if speeds.contains_key(*name) {
                continue;
            }
            figures[case].push(figure(case)?);
            if looks.contains(&runs) {
                let speed = Speed::of(floor, &figures[case])?;
                if runs == looks[5] || enough(name, &speed) {
                    speeds.insert((*name).to_owned(), speed);
                }
            }
        }
    }
    Ok(speeds)
}

fn check(figure: impl FnMut(usize) -> Result<f64>, bars: &Bars) -> Result<BTreeMap<String, Speed>> {
    // More runs do not help where there is nothing to compare with, or a bar that is too loose.
    let enough = |name: &str, found: &Speed| {
        bars.bar(name, &found.floor).is_none_or(|bar| !bar.is_good_bar() || found.is_told(bar))
    };
    measure(CHECKED, figure, enough)
}

fn record(figure: impl FnMut(usize) -> Result<f64>) -> Result<BTreeMap<String, Speed>> {
    measure(RECORDED, figure, |_, bar| bar.is_good_bar())
}

/// Mean of the logs of the rounds' ratios of a case.
fn of_run(report: &Report, name: &str, floor: &str) -> Result<f64> {
    let (table, case) = name.split_once(' ').unwrap_or((name, ""));
    // Writes name their directory's file system, too.
    let is_case = |found: &str| format!(" {found}").ends_with(&format!(" {case}"));
    let of = |way: &str| {
        let found = report.rows.iter().find(|row| row.table == table && is_case(&row.case) && row.way == way);
        found.ok_or(format!("{name}: no row of {way}; was the way left out, or the case renamed?"))
    };
    let ratio = Ratio::of_rounds(&of("nowait")?.rounds, &of(floor)?.rounds);
    Ok(ratio.ok_or(format!("{name}: rounds that are not paired, or without a speed"))?.log)
}

fn run(command: &mut Command) -> Result<String> {
    let done = command.output();
    let failed = |why: String| format!("{}: {why}", command.get_program().to_string_lossy());
    let done = done.map_err(|error| failed(error.to_string()))?;
    if !done.status.success() {
        return Err(failed(format!("{}\n{}", done.status, String::from_utf8_lossy(&done.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// One run of `nowait bench`.
fn bench(built: &Path, dir: &Path, case: usize) -> Result<Report> {
    let (_, floor, arguments) = SPEEDS[case];
    let mut command = Command::new(built.join("nowait-bench"));
    command.args(["--rounds", "5", "--json", "-", "--ways", &format!("{floor},nowait"), "--dir"]).arg(dir);
    serde_json::from_str(&run(command.args(arguments.split(' ')))?).map_err(|error| format!("{arguments}: {error}"))
}

/// Own instructions of each source file. Inlined ones are of the file they were written in (callgrind's
/// format, "fi" and "fe").
fn by_file(profile: &str) -> HashMap<String, u64> {
    let (mut counts, mut names) = (HashMap::new(), HashMap::new());
    let (mut here, mut called) = (String::new(), false);
    for line in profile.lines() {
        let named = line.split_once('=').filter(|(kind, _)| ["fl", "fi", "fe", "cfi", "cfl"].contains(kind));
        if let Some((kind, file)) = named {
            let (number, name) = file.split_once(' ').unwrap_or((file, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if !kind.starts_with('c') {
                here = names.get(number).copied().unwrap_or_default().to_owned();
            }
        } else if line.starts_with("calls=") {
            called = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // What follows a call is the callee's.
            let own = line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).filter(|_| !called);
            *counts.entry(here.clone()).or_default() += own.unwrap_or(0);
            called = false;
        }
    }
    counts
}

fn of_source(counts: &HashMap<String, u64>, source: &str) -> u64 {
    counts.iter().filter(|(file, _)| file.ends_with(source)).map(|(_, count)| count).sum()
}

/// Instructions per operation; `collected` are those of so many operations of a case, by source file.
fn count(mut collected: impl FnMut(&str, u64) -> Result<HashMap<String, u64>>) -> Result<BTreeMap<String, f64>> {
    let (mut profiles, mut counts) = (HashMap::new(), BTreeMap::new());
    for (name, case, operations, source) in COUNTED {
        if !profiles.contains_key(case) {
            profiles.insert(case, [collected(case, operations)?, collected(case, 2 * operations)?]);
        }
        let [once, twice] = [0, 1].map(|run| of_source(&profiles[case][run], source));
        if twice <= once {
            return Err(format!("{name}: nothing is counted from {source:?}; built without debuginfo, or renamed?"));
        }
        counts.insert(name.to_owned(), ((twice - once) as f64 / operations as f64 * 10.0).round() / 10.0);
    }
    Ok(counts)
}

fn callgrind(built: &Path, dir: &Path, case: &str, operations: u64) -> Result<HashMap<String, u64>> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let profile = folder.path().join("profile");
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.display()));
    run(command.arg(built.join("examples/instructions")).args([case, &operations.to_string()]).arg(dir))?;
    Ok(by_file(&fs::read_to_string(&profile).map_err(|error| format!("{}: {error}", profile.display()))?))
}

/// Prints the source files of the library that each operation executes.
fn roads(mut collected: impl FnMut(&str, u64) -> Result<HashMap<String, u64>>) -> Result<()> {
    for (name, case, operations) in ROADS {
        let [once, twice] = [collected(case, operations)?, collected(case, 2 * operations)?];
        let each = |(file, count): (&String, &u64)| {
            let path = file.split_once("crates/nowait").map(|(_, path)| format!("nowait{path}"))?;
            let more = count.saturating_sub(once.get(file).copied().unwrap_or_default());
            Some((path, more as f64 / operations as f64)).filter(|(_, each)| *each >= ON_THE_ROAD)
        };
        let mut files: Vec<_> = twice.iter().filter_map(each).collect();
        files.sort_by(|one, other| other.1.total_cmp(&one.1));
        let sum: f64 = files.iter().map(|(_, each)| each).sum();
        println!("{name}: {} files, {sum:.0} instructions of the library", files.len());
        files.iter().for_each(|(path, each)| println!("{each:10.1}  {path}"));
    }
    Ok(())
}

fn verdict_of_counts(counts: &BTreeMap<String, f64>, bars: &Bars) -> Vec<Verdict> {
    let verdict = |(name, found): (&String, &f64)| {
        let bar = bars.instructions.get(name);
        let verdict = if bar.is_some_and(|bar| *found <= bar * TOLERANCE) { Verdict::Holds } else { Verdict::Broken };
        println!("  {name:24} {found:9.1} instructions, bar {bar:?}  {verdict:?}");
        verdict
    };
    counts.iter().map(verdict).collect()
}

fn verdict_of_speeds(speeds: &BTreeMap<String, Speed>, bars: &Bars) -> Vec<Verdict> {
    let verdict = |(name, found): (&String, &Speed)| {
        let Some(bar) = bars.bar(name, &found.floor) else {
            println!("  {name:24} {:6.3} of {}, no bar  Broken", found.ratio, found.floor);
            return Verdict::Broken;
        };
        let lowest = bar.ratio * (-found.ratio().over(&bar.ratio()).reach(ALARM)).exp();
        let (verdict, Speed { ratio, floor, runs, .. }) = (found.verdict(bar), found);
        println!(
            "  {name:24} {ratio:6.3} of {floor}, bar {:.3}, lowest {lowest:.3}, {runs} runs  {verdict:?}",
            bar.ratio
        );
        verdict
    };
    speeds.iter().map(verdict).collect()
}

/// Machine and compiler on which bars depend.
fn environment(report: &Report) -> Result<String> {
    let found = &report.environment;
    let known = [Some(&found.kernel), found.filesystem.as_ref(), found.device.as_ref(), found.cpu_model.as_ref()];
    let mut parts: Vec<String> = known.into_iter().flatten().cloned().collect();
    parts.push(format!("{} processors", found.cpus));
    parts.push(run(Command::new("rustc").arg("--version"))?.trim().to_owned());
    Ok(parts.join(", "))
}

fn checked(options: &Options) -> Result<u8> {
    let built = std::env::current_exe().map_err(|error| error.to_string())?;
    let built = built.ancestors().nth(2).ok_or("this program lies in no folder of builds")?;
    let dir = options.dir.as_deref().unwrap_or(built);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bars.json");
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&path).map_err(|error| at(&error))?;
    let bars: Bars = serde_json::from_str(&text).map_err(|error| at(&error))?;
    let (mut found, mut verdicts, mut loose) = (bars.clone(), Vec::new(), Vec::new());
    if options.only.as_deref() == Some("files") {
        return roads(|case, operations| callgrind(built, dir, case, operations)).map(|()| 0);
    }
    if options.only.as_deref() != Some("speeds") {
        found.instructions = count(|case, operations| callgrind(built, dir, case, operations))?;
        println!("instructions per operation (a gather: of 64 ranges)");
        verdicts.extend(verdict_of_counts(&found.instructions, &bars));
    }
    if options.only.as_deref() != Some("counts") {
        let mut last = Report::default();
        let figure = |case: usize| {
            last = bench(built, dir, case)?;
            of_run(&last, SPEEDS[case].0, SPEEDS[case].1)
        };
        found.speeds = if options.record { record(figure) } else { check(figure, &bars) }?;
        found.environment = environment(&last)?;
        if found.environment != bars.environment {
            println!("measured on {}; the bars on {}", found.environment, bars.environment);
        }
        println!("speed");
        verdicts.extend(verdict_of_speeds(&found.speeds, &bars));
        loose.extend(found.speeds.iter().filter(|(_, bar)| !bar.is_good_bar()).map(|(name, _)| name));
    }
    if options.record {
        let text = serde_json::to_string_pretty(&found).map_err(|error| at(&error))?;
        fs::write(&path, text + "\n").map_err(|error| at(&error))?;
        println!("recorded in bench/examples/bars.json; too noisy to find a loss of 10 %: {loose:?}");
        return Ok(if loose.is_empty() { 0 } else { 3 });
    }
    if verdicts.contains(&Verdict::Broken) {
        println!("A bar is broken. If that is meant, say why in the commit and record new ones:");
        println!("make bench-check ARGS=--record");
        return Ok(1);
    }
    Ok(if verdicts.contains(&Verdict::CannotTell) { 3 } else { 0 })
}

fn main() -> ExitCode {
    checked(&Options::parse()).map_or_else(
        |why| {
            eprintln!("bench-check: {why}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nowait_bench::random::Random;
    use nowait_bench::report::Row;

    /// As callgrind writes it: names once, then by number; lines as differences; the cost of a call is its
    /// callee's.
    const PROFILE: &str = "\
version: 1
events: Ir
fl=(1) /src/select.rs
fn=(1) nowait::select::Selector::plan
10 5
+2 7
fi=(2) /src/stats.rs
30 100
fe=(1)
-1 3
cfi=(3) /src/op.rs
cfn=(2) nowait::op::run
calls=4 1
* 900

fl=(3)
fn=(2)
1 60
totals: 175
";

    #[test]
    fn instructions_belong_to_the_file_they_were_written_in() {
        let counts = by_file(PROFILE);
        assert_eq!(["select.rs", "stats.rs", "op.rs", ""].map(|source| of_source(&counts, source)), [15, 100, 60, 175]);
    }

    #[test]
    fn start_up_is_not_counted() {
        let collected = |_: &str, operations: u64| {
            let files = [
                ("nowait/src/core/policy.rs", 1000 + 20 * operations),
                ("nowait/src/gather/queued.rs", 300 * operations),
            ];
            Ok(files.map(|(file, count)| (file.to_owned(), count)).into())
        };
        let counts = count(collected).unwrap();
        assert_eq!(["selector", "gather planning", "read-future"].map(|name| counts[name]), [20.0, 300.0, 320.0]);
        assert!(count(|_, _| Ok([("/elsewhere.rs".to_owned(), 7)].into())).is_err());
    }

    #[test]
    fn three_per_cent_more_break_a_count() {
        let counts = |count| BTreeMap::from([("read".to_owned(), count)]);
        let bars = Bars { instructions: counts(100.0), ..Bars::default() };
        for (found, verdict) in [(102.9, Verdict::Holds), (50.0, Verdict::Holds), (103.1, Verdict::Broken)] {
            assert_eq!(verdict_of_counts(&counts(found), &bars), [verdict]);
        }
        assert_eq!(verdict_of_counts(&counts(1.0), &Bars::default()), [Verdict::Broken]);
    }

    fn speed(ratio: f64, error: f64, runs: usize) -> Speed {
        Speed { floor: "pread".to_owned(), ratio, error, runs }
    }

    #[test]
    fn a_ratio_may_fall_by_the_noise_and_no_more() {
        let bar = speed(1.0, 0.01, 16);
        assert_eq!(speed(0.96, 0.01, 8).verdict(&bar), Verdict::Holds);
        assert_eq!(speed(0.94, 0.01, 8).verdict(&bar), Verdict::Broken);
        assert_eq!(speed(0.9, 0.1, 8).verdict(&bar), Verdict::CannotTell);
        assert_eq!(speed(0.9, 0.01, 8).verdict(&speed(1.0, 0.1, 16)), Verdict::CannotTell);
        assert_eq!(speed(0.99, 0.0, 8).verdict(&speed(1.0, 0.0, 16)), Verdict::Broken);
        let other = BTreeMap::from([("reads".to_owned(), Speed { floor: "ring".to_owned(), ..bar.clone() })]);
        let bars = Bars { speeds: BTreeMap::from([("reads".to_owned(), bar)]), ..Bars::default() };
        assert_eq!(verdict_of_speeds(&other, &bars), [Verdict::Broken]);
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let row = |way: &str, rounds: [f64; 3]| {
            let (table, case) = ("writes".to_owned(), "dir=ext4 depth=1".to_owned());
            Row { table, case, way: way.to_owned(), rounds: rounds.to_vec(), ..Row::default() }
        };
        let rows = vec![row("nowait", [9.0, 90.0, 900.0]), row("pwrite", [10.0, 100.0, 1000.0])];
        let report = Report { rows, ..Report::default() };
        assert!((of_run(&report, "writes depth=1", "pwrite").unwrap() - 0.9f64.ln()).abs() < 1e-9);
        assert!(of_run(&report, "writes depth=1", "ring").is_err());
    }

    /// Figures of runs whose rounds scatter by this, and whose means do by that.
    fn figures(of_rounds: f64, of_runs: f64, seed: u64) -> impl FnMut(usize) -> Result<f64> {
        let mut random = Random::new(seed);
        let error = (of_rounds * (2.0f64 / 5.0).sqrt()).hypot(of_runs);
        // The sum of twelve uniform variables is nearly normal.
        move |_| Ok(error * (0..12).map(|_| random.below(1 << 32) as f64 / (1u64 << 32) as f64 - 0.5).sum::<f64>())
    }

    #[test]
    fn the_runs_of_a_case_lie_apart_and_a_calm_case_ends_first() {
        let bars =
            SPEEDS.map(|(name, floor, _)| (name.to_owned(), Speed { floor: floor.to_owned(), ..speed(1.0, 0.01, 16) }));
        let bars = Bars { speeds: bars.into(), ..Bars::default() };
        let (mut order, mut noisy) = (Vec::new(), figures(0.0, 0.08, 1));
        let figure = |case: usize| {
            order.push(case);
            if case == 0 { Ok(0.0) } else { noisy(case) }
        };
        let speeds = check(figure, &bars).unwrap();
        assert_eq!(order[..12], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
        assert_eq!(speeds[SPEEDS[0].0].runs, 8);
        assert!(speeds[SPEEDS[1].0].runs > 8);
    }

    /// The promises, over recordings and checks together.
    #[test]
    fn promises() {
        for (of_rounds, of_runs) in [(0.05, 0.0), (0.15, 0.0), (0.05, 0.05)] {
            let (mut alarms, mut found, checks) = (0, 0, 200);
            for seed in 0..checks {
                let bars = record(figures(of_rounds, of_runs, 2 * seed)).unwrap();
                let bars = Bars { speeds: bars, ..Bars::default() };
                let broken = |loss: f64| {
                    let mut figure = figures(of_rounds, of_runs, 2 * seed + 1);
                    let speeds = check(|case| Ok(figure(case)? - loss), &bars).unwrap();
                    let verdict = |(name, speed): (&String, &Speed)| speed.verdict(&bars.speeds[name]);
                    speeds.iter().map(verdict).filter(|verdict| *verdict == Verdict::Broken).count()
                };
                alarms += usize::from(broken(0.0) > 0);
                found += broken(LOSS);
            }
            let (alarms, found) =
                (alarms as f64 / checks as f64, found as f64 / (checks as usize * SPEEDS.len()) as f64);
            println!("rounds {of_rounds}, runs {of_runs}: {alarms:.3} false alarms, {found:.3} of losses found");
            assert!(alarms <= 0.05 && found >= 0.9);
        }
    }

    #[test]
    fn there_is_a_bar_for_all_that_is_measured() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bars.json");
        let bars: Bars = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert!(COUNTED.iter().all(|(name, ..)| bars.instructions.contains_key(*name)));
        assert!(SPEEDS.iter().all(|(name, floor, _)| bars.bar(name, floor).is_some()));
    }
}
