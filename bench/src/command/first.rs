//! The first run, `nowait bench` without a table, measures the user's disk on one screen in less
//! than a minute. It has a time limit instead of a number of rounds: each line gets its share of
//! the remaining time.

use std::time::{Duration, Instant};

use super::args::{self, Bench};
use super::show::{WIDTH, under_load, wrapped};
use super::{RunPart, duration, plan, settled};
use crate::measure::options::{MOST_ROUNDS, Options};
use crate::report::figures::{short, whole_size_of};
use crate::report::notes::Code;
use crate::report::verdict::{Against, by_hand};
use crate::report::{Report, Row};
use crate::table::{self, listed};
use crate::ways::{ON_TOKIO, OURS, PLAIN};
use crate::{Error, ErrorKind};

/// Time for all cases, without the creation of the file and the overrun of the last case.
const TIME: Duration = Duration::from_secs(42);
const TIME_MAX: Duration = Duration::from_secs(args::TIME_MAX as u64);
/// Duration of a round of a way of average speed. The slowest ways take many times as long.
const READS: Duration = Duration::from_millis(30);
const COMMITS: Duration = Duration::from_millis(60);
const READERS: &[&str] = &["pread", "threads", "willneed", "ring", "tokio", OURS, ON_TOKIO];

/// A table of the run: its share of the time, its ways, and its cases.
struct TableShare {
    table: &'static str,
    parts: u32,
    ways: &'static [&'static str],
    choose: fn(&mut Options),
}

static SHARES: [TableShare; 5] = [
    TableShare { table: "reads", parts: 2, ways: READERS, choose: |options| options.depths = vec![1, 32] },
    TableShare {
        table: "cached",
        parts: 1,
        ways: &["pread", "ring", "tokio", OURS, ON_TOKIO],
        choose: |options| options.cases = vec!["threads=1".to_owned()],
    },
    TableShare {
        table: "gather",
        parts: 1,
        ways: READERS,
        choose: |options| {
            (options.records, options.cases) = (vec![64], vec!["records=64,cold".to_owned()]);
        },
    },
    TableShare {
        table: "writes",
        parts: 1,
        ways: &["pwrite", "pwritev-16", "threads", "ring", "tokio", OURS, ON_TOKIO],
        choose: |options| (options.depths, options.size) = (vec![16], None),
    },
    TableShare {
        table: "log",
        parts: 1,
        ways: &["append-fdatasync", "direct-dsync", "thread-batch", "thread-batch-direct", OURS],
        choose: |options| (options.writers, options.sizes) = (vec![8], vec![128]),
    },
];

/// A line of the screen: its name, its table, and the end of its case's name.
type Line = (&'static str, &'static str, &'static str);

static LINES: [Line; 6] = [
    ("cold reads, one at a time", "reads", "depth=1"),
    ("cold reads, 32 in flight", "reads", "depth=32"),
    ("cached reads", "cached", "threads=1"),
    ("64 cold records in a call", "gather", "records=64,cold"),
    ("writes, 16 in flight", "writes", "depth=16"),
    ("durable appends, 8 writers", "log", "writers=8 size=128"),
];

/// Returns whether the options set only place, duration and output of the run.
pub(super) fn is_asked(options: &Bench) -> bool {
    let asked = &options.asked;
    let cases = asked.given().iter().any(|(_, given)| *given);
    let named = !options.tables.is_empty() || !asked.ways.is_empty() || asked.quick || asked.file.is_some();
    !(cases || named || options.from.is_some())
}

pub(super) fn parts(options: &Bench) -> Vec<RunPart> {
    let quick = settled(&Options { quick: true, ..options.asked.clone() });
    let part = |share: &TableShare| {
        let mut asked = Options {
            ways: share.ways.iter().map(|way| (*way).to_owned()).collect(),
            budget: time(options) * share.parts / PARTS,
            round_time: READS,
            commit_time: COMMITS,
            ..quick.clone()
        };
        (share.choose)(&mut asked);
        RunPart { asked, tables: table::by_name(share.table).into_iter().collect(), is_first: true }
    };
    SHARES.iter().map(part).collect()
}

const PARTS: u32 = LINES.len() as u32;

fn time(options: &Bench) -> Duration {
    options.time.map_or(TIME, |seconds| Duration::from_secs(u64::from(seconds)))
}

/// Remaining time, and the number of parts that share it.
pub(super) struct Budget {
    /// `None` if the number of rounds is given.
    ends: Option<Instant>,
    parts: u32,
}

impl Budget {
    pub(super) fn new(options: &Bench) -> Self {
        let ends = Instant::now() + time(options);
        Self { ends: Some(ends).filter(|_| options.asked.rounds.is_none()), parts: PARTS }
    }

    /// Returns the time for the next table; `None` to skip it.
    pub(super) fn next(&mut self, table: &str) -> Option<Duration> {
        let parts = SHARES.iter().find(|share| share.table == table)?.parts;
        let all = self.parts.max(1);
        self.parts = self.parts.saturating_sub(parts);
        let Some(ends) = self.ends else { return Some(TIME) };
        Some(ends.checked_duration_since(Instant::now())? * parts / all)
    }
}

/// A table whose lines have no figures, and the reason.
pub(super) type LeftOut = (&'static str, String);

/// Reason of a table for which no time was left.
pub(super) const NO_TIME: &str = "no time was left";

/// Returns the error of a run that had no time for a table.
pub(super) fn out_of_time(left_out: &[LeftOut], options: &Bench) -> Option<Error> {
    let is_late = |name: &str| left_out.iter().any(|(table, why)| *table == name && why == NO_TIME);
    let names: Vec<&str> = LINES.iter().filter(|(_, table, _)| is_late(table)).map(|(name, ..)| *name).collect();
    if names.is_empty() {
        return None;
    }
    let (seconds, enough) = (time(options).as_secs(), (time(options) * 2).clamp(TIME, TIME_MAX).as_secs());
    let text = format!(
        "in {seconds} s no time was left for {}; give more seconds, such as --time {enough}",
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    );
    // Without --time, the usage is right, and the disk is too slow for the default.
    let kind = if options.time.is_some() { ErrorKind::Usage } else { ErrorKind::Other };
    Some(Error::new(kind, text))
}

/// Returns the line for a table that cannot be measured although others can.
pub(super) fn left_out(error: &Error, report: &Report) -> Option<String> {
    match error.kind() {
        ErrorKind::NotCold => {
            let filesystem = report.environment.filesystem.as_deref().unwrap_or("this file system");
            Some(format!("{filesystem} keeps its files in memory; choose a --dir on a disk"))
        }
        ErrorKind::NoRoom => Some(error.to_string()),
        _ => None,
    }
}

/// The run on one screen.
pub(super) fn screen(report: &Report, left_out: &[LeftOut], options: &Bench) -> String {
    let mut text = under_load(&report.environment) + &machine(report);
    if let Some(why) = &report.partial {
        text += &format!("{}\n", wrapped(&format!("PARTIAL: {why}."), ""));
    }
    let mut is_noisy = false;
    let header = ["plain calls", "threads", "tokio", "best by hand", OURS, "+tokio"].map(str::to_owned);
    text += &format!("{}\n", figures("operations per second", header));
    for (name, table, case) in LINES {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.table == table && row.case.ends_with(case)).collect();
        if rows.is_empty() {
            let why = left_out.iter().find(|(of, _)| *of == table).map_or("interrupted", |(_, why)| why);
            text += &format!("{}\n", wrapped(&format!("{}: not measured: {why}", name), ""));
            continue;
        }
        let (compared, noisy) = comparison(report, &rows);
        is_noisy |= noisy;
        text += &format!("{}\n  {compared}\n", line_of(name, &rows));
    }
    text += if is_noisy { NOISY_LEGEND } else { LEGEND };
    let told = |code: &&Code| report.notes.iter().any(|note| note.code == **code);
    let codes: Vec<&str> = Code::ALL.iter().filter(told).map(|code| code.name()).collect();
    if !codes.is_empty() {
        text += &cut(&format!("Notes ({}): nowait bench --explain CODE explains each.", listed(&codes)));
        text.push('\n');
    }
    text + &next(options)
}

/// Describes kernel, processors, file system and device.
fn machine(report: &Report) -> String {
    let environment = &report.environment;
    let cpu = environment.cpu_model.as_deref().unwrap_or("of an unknown kind");
    let load = environment.load.average.map_or_else(String::new, |load| format!(", load average {load:.1}"));
    let kernel = format!("Linux {}, io_uring: {}", environment.kernel, environment.io_uring);
    let processors = if environment.cpus == 1 { "processor" } else { "processors" };
    let before = format!("{kernel}; {} {processors}, ", environment.cpus);
    // A long name leaves room for the load average.
    let room = WIDTH.saturating_sub(before.chars().count() + load.chars().count());
    let first = format!("{before}{}{load}", cut_to(cpu, room));
    let filesystem = environment.filesystem.as_deref().unwrap_or("unknown file system");
    let device = environment.device.as_deref().map_or_else(String::new, |device| format!(" on {device}"));
    let second =
        format!("{filesystem}{device}, test file of {} in {}", whole_size_of(environment.file_bytes), environment.path);
    format!("{}\n{}\n", cut(&first), cut(&second))
}

fn cut(text: &str) -> String {
    cut_to(text, WIDTH)
}

fn cut_to(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Width of a line's name.
const NAME: usize = 26;

fn figures(name: &str, [plain, threads, tokio, best, ours, on_tokio]: [String; 6]) -> String {
    let text = format!("{name:<NAME$} {plain:>11}  {threads:>7} {tokio:>8}  {best:<25} {ours:>7} {on_tokio:>8}");
    text.trim_end().to_owned()
}

fn line_of(name: &str, rows: &[&Row]) -> String {
    let speed = |row: &&Row| short(row.ops_per_s);
    let of =
        |ways: &[&str]| rows.iter().find(|row| ways.contains(&row.way.as_str())).map_or_else(|| "–".to_owned(), speed);
    let best = by_hand(rows).max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
    let best = best.map_or_else(String::new, |row| format!("{} {}", speed(&row), row.way));
    figures(name, [of(&PLAIN), of(&["threads"]), of(&["tokio"]), best, of(&[OURS]), of(&[ON_TOKIO])])
}

const LEGEND: &str = "
Speeds are medians. a–b: 95 % interval of the ratio in pairs of rounds. ?: either may be the faster;
among many ranges, one near 1 may be chance. Plain calls: one at a time. tokio: spawn_blocking.
";
const NOISY_LEGEND: &str = "
Speeds are medians. a–b: 95 % interval of the ratio. ?: either may be faster. Too noisy: no verdict;
use more rounds on an idle machine. Plain calls: one at a time. tokio: spawn_blocking.
";

/// Compares the library with the ways that programs use today, then with the fastest hand-written
/// one. True if the rounds of a comparison scatter too much for a verdict.
fn comparison(report: &Report, rows: &[&Row]) -> (String, bool) {
    let comparisons = LINES.len() * 4;
    let find = |ways: &[&str]| rows.iter().copied().find(|row| ways.contains(&row.way.as_str()));
    let mut noisy: Vec<&str> = Vec::new();
    let mut pair = |ours: &[&str], other: &[&str]| {
        let against = Against::of(report, find(ours)?, find(other)?, comparisons)?;
        if against.is_noise() {
            noisy.push(&against.other.way);
        }
        against.told()
    };
    let mut parts: Vec<String> = [&PLAIN[..], &["threads"]].into_iter().filter_map(|way| pair(&[OURS], way)).collect();
    let on_tokio = pair(&[ON_TOKIO], &["tokio"]).map(|told| format!("+tokio {told}"));
    if let Some(best) = find(&[OURS]).and_then(|ours| Against::best_by_hand(report, ours, rows, comparisons)) {
        match best.of_the_best() {
            Some(told) => parts.push(told),
            None => noisy.push("best"),
        }
    }
    let ours = Some(format!("{OURS} {}", parts.join(", "))).filter(|_| !parts.is_empty());
    let mut told: Vec<String> = [ours, on_tokio].into_iter().flatten().collect();
    let is_noisy = !noisy.is_empty();
    let text = match (told.is_empty(), is_noisy) {
        (true, true) => "too noisy for a verdict".to_owned(),
        (true, false) => "too few rounds for a comparison".to_owned(),
        (false, _) => {
            told.extend(Some(format!("too noisy: {}", noisy.join(", "))).filter(|_| is_noisy));
            told.join("; ")
        }
    };
    (text, is_noisy)
}

fn next(options: &Bench) -> String {
    let asked = &options.asked;
    let dir = asked.dir.display();
    let place = if asked.dir.as_os_str() == "." { String::new() } else { format!(" --dir {dir}") };
    let rounds = asked.rounds.map_or(45, |rounds| (rounds * 5).min(MOST_ROUNDS as usize));
    let more = Options { rounds: Some(rounds), ..asked.clone() };
    let more = parts(&Bench { asked: more, ..options.clone() });
    let longer = duration(plan(&more, None).seconds());
    let rows = [
        (format!("nowait probe {dir}"), "which reads and writes would make a thread wait here".to_owned()),
        (format!("nowait bench{place} --report page.html"), "the same as a page with charts; -v prints all".to_owned()),
        (format!("nowait bench{place} --rounds {rounds}"), format!("narrower ranges, {longer}; `tour`: most tables")),
    ];
    let width = rows.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let line = |(command, what)| match format!("  {command:<width$}  {what}\n") {
        // A command is not wrapped, so that it can be copied.
        long if long.chars().count() > WIDTH => format!("  {command}\n"),
        line => line,
    };
    rows.map(line).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: Bench,
    }

    fn asked_by(arguments: &[&str]) -> Bench {
        Command::parse_from([&["bench"], arguments].concat()).bench
    }

    /// Speeds of cold reads at depth 32, five rounds of each way, each with noise of 2 %.
    fn report(speeds: &[(&str, f64)]) -> Report {
        let row = |&(way, speed): &(&str, f64)| {
            let rounds = [0.98, 1.01, 1.0, 0.99, 1.02].map(|noise| noise * speed).to_vec();
            let [table, case, way] = ["reads", "depth=32", way].map(str::to_owned);
            Row { table, case, way, ops_per_s: speed, rounds, ..Row::default() }
        };
        Report { rows: speeds.iter().map(row).collect(), ..Report::default() }
    }

    #[test]
    fn a_line_compares_with_what_a_program_does_today_and_then_with_the_best() {
        let speeds =
            [("pread", 14_100.0), ("ring", 66_000.0), ("tokio", 40_000.0), (OURS, 62_000.0), (ON_TOKIO, 60_000.0)];
        let screen = screen(&report(&speeds), &[("cached", "no time was left".to_owned())], &asked_by(&[]));
        let line =
            "cold reads, 32 in flight         14.1k        –    40.0k  66.0k ring                  62.0k    60.0k\n";
        assert!(screen.contains(line), "{screen}");
        assert!(screen.contains("  nowait 4.4 × pread, within 7 % of best; +tokio 1.50 × tokio\n"), "{screen}");
        assert!(screen.contains("cached reads: not measured: no time was left\n"), "{screen}");
        assert!(screen.contains("writes, 16 in flight: not measured: interrupted\n"), "{screen}");
    }

    /// Symptom: the name of a processor filled the line, and the load average was cut off.
    #[test]
    fn a_long_name_of_a_processor_leaves_the_load_average() {
        let mut report = report(&[(OURS, 1.0)]);
        let environment = &mut report.environment;
        (environment.kernel, environment.io_uring) = ("6.12.0-2-cloud-amd64".to_owned(), "available".to_owned());
        (environment.cpus, environment.load.average) = (128, Some(12.34));
        for name in ["A CPU", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz with a name that goes on and on"] {
            environment.cpu_model = Some(name.to_owned());
            let text = machine(&Report { environment: environment.clone(), ..Report::default() });
            let first = text.lines().next().unwrap_or_default();
            assert!(first.ends_with(", load average 12.3") && first.chars().count() <= WIDTH, "{first}");
            assert!(first.contains(name) || first.contains("128 processors, Intel(R) Xeon(R"), "{first}");
        }
    }

    #[test]
    fn where_the_rounds_do_not_tell_there_is_a_mark() {
        let mut noisy = report(&[("pread", 100.0), (OURS, 150.0)]);
        noisy.rows[1].rounds = vec![60.0, 150.0, 250.0, 140.0, 160.0];
        let screen = screen(&noisy, &[], &asked_by(&[]));
        assert!(screen.contains("× pread?, ") && screen.contains("× best?\n"), "{screen}");
        assert!(!screen.contains("oo noisy"), "{screen}");
        noisy.rows.iter_mut().for_each(|row| row.rounds.truncate(2));
        assert!(super::screen(&noisy, &[], &asked_by(&[])).contains("  too few rounds for a comparison\n"));
    }

    /// Symptom: beside busy programs the line was `nowait 0.00–2690 × pread?`.
    #[test]
    fn where_the_rounds_say_nothing_there_is_no_range() {
        let mut noisy = report(&[("pread", 100.0), (OURS, 100.0), ("tokio", 10.0), (ON_TOKIO, 50.0)]);
        noisy.rows[1].rounds = vec![4.0, 900.0, 30.0, 500.0, 60.0];
        let screen = |report: &Report| screen(report, &[], &asked_by(&[]));
        let text = screen(&noisy);
        assert!(text.contains("  +tokio 5.0 × tokio; too noisy: pread, best\n"), "{text}");
        assert!(text.contains("Too noisy: no verdict;\nuse more rounds on an idle machine."), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        noisy.rows.truncate(2);
        assert!(screen(&noisy).contains("\n  too noisy for a verdict\n"), "{}", screen(&noisy));
    }

    #[test]
    fn a_case_without_time_is_an_error() {
        let late = |arguments: &[&str]| {
            let left_out =
                [("gather", NO_TIME.to_owned()), ("cached", "in memory".to_owned()), ("log", NO_TIME.to_owned())];
            out_of_time(&left_out, &asked_by(arguments)).unwrap()
        };
        let named = late(&["--time", "30"]);
        let text = "in 30 s no time was left for `64 cold records in a call`, `durable appends, 8 writers`; give more \
                    seconds, such as --time 60";
        assert_eq!((named.kind(), named.to_string()), (ErrorKind::Usage, text.to_owned()));
        assert_eq!(late(&[]).kind(), ErrorKind::Other);
        assert!(late(&["--time", "86400"]).to_string().ends_with("--time 86400"));
        assert!(out_of_time(&[("cached", "in memory".to_owned())], &asked_by(&[])).is_none());
    }

    /// A false difference is reported in at most one run of 20, over all its lines.
    #[test]
    fn level_ways_are_told_apart_in_few_runs() {
        let mut random = crate::random::Random::new(3);
        // The sum of twelve uniform variables is nearly normal.
        let mut noise = || (0..12).map(|_| random.below(1000) as f64 / 1000.0).sum::<f64>() - 6.0;
        let (runs, comparisons) = (100, 24);
        let wrong = (0..runs).filter(|_| {
            (0..comparisons).any(|_| {
                let mut report = report(&[("pread", 1.0), (OURS, 1.0)]);
                report
                    .rows
                    .iter_mut()
                    .for_each(|row| row.rounds.iter_mut().for_each(|round| *round = (0.1 * noise()).exp()));
                Against::of(&report, &report.rows[0], &report.rows[1], comparisons).unwrap().sure
            })
        });
        let wrong = wrong.count();
        assert!(wrong <= 10, "{wrong} of {runs} runs");
    }

    #[test]
    fn only_a_run_without_wishes_is_a_first_one() {
        for plain in ["", "--rounds 9", "--dir /tmp --seed 1 -v", "--json x --report y", "--time 9"] {
            assert!(is_asked(&asked_by(&plain.split_whitespace().collect::<Vec<_>>())), "{plain}");
        }
        for wish in ["tour", "reads", "--quick", "--ways pread", "--file x", "--from x", "--depths 1", "--direct"] {
            assert!(!is_asked(&asked_by(&wish.split_whitespace().collect::<Vec<_>>())), "{wish}");
        }
    }

    #[test]
    fn more_rounds_than_there_may_be_are_not_advised() {
        let screen = screen(&report(&[(OURS, 1.0)]), &[], &asked_by(&["--rounds", "300"]));
        assert!(screen.contains("  nowait bench --rounds 1000 "), "{screen}");
    }

    #[test]
    fn commands_to_go_on_with_are_whole() {
        let deep = "a-folder/".repeat(12);
        let screen = screen(&report(&[(OURS, 1.0)]), &[], &asked_by(&["--dir", &deep]));
        assert!(screen.contains(&format!("  nowait bench --dir {deep} --report page.html\n")), "{screen}");
    }
}
