//! Tables of Markdown from records.

use std::path::{Path, PathBuf};

use nowait_bench::stats::Ratio;

use crate::losses::Current;
use crate::record::{Record, Row, cases, digits, each_once, fits, grid, lines};
use crate::{Result, listed};

/// Options of a mark.
#[derive(Default)]
struct Options {
    files: Vec<PathBuf>,
    kind: Option<String>,
    tables: Option<String>,
    cases: Option<String>,
    columns: Option<String>,
}

/// Words of a mark; what stands in quotes is one.
fn words(options: &str) -> Vec<String> {
    let parts = options.split('"').enumerate();
    parts
        .flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() })
        .map(str::to_owned)
        .collect()
}

/// The lines that a mark asks for, in a page of this folder.
pub(crate) fn made(options: &str, folder: &Path) -> Result<Vec<String>> {
    let mut words = words(options).into_iter();
    let mut asked = Options::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().map(Some).ok_or(format!("{word} of what?"));
        match word.as_str() {
            "--tables" => asked.tables = value()?,
            "--cases" => asked.cases = value()?,
            "--columns" => asked.columns = value()?,
            _ if word.starts_with("--") => asked.kind = Some(word),
            _ => asked.files.push(folder.join(word)),
        }
    }
    let current = Current::load;
    match (asked.kind.as_deref(), &asked.files[..]) {
        (None | Some("--transpose"), [_, ..]) => table(&asked),
        (Some("--shares"), [file]) => shares(file),
        (Some("--ratios"), [file]) => ratios(file),
        (Some("--records"), []) => records(folder),
        (Some("--losses"), []) => Ok(current()?.counted()),
        (Some("--lost"), []) => current()?.lost(),
        (Some("--late"), []) => Ok(current()?.late()),
        (Some("--current"), []) => Ok(current()?.records()),
        (Some("--pages"), []) => current()?.pages(),
        _ => Err("there is no such option, or it takes other files".to_owned()),
    }
}

fn table(asked: &Options) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for path in &asked.files {
        rows.extend(Record::load(path)?.rows);
    }
    let split = |names: &String| names.split(',').map(str::to_owned).collect();
    let tables = asked.tables.as_ref().map_or_else(|| each_once(rows.iter().map(|row| row.table.clone())), split);
    let ways = each_once(rows.iter().map(|row| row.way.clone()));
    let is_wanted = |case: &str| asked.cases.as_deref().unwrap_or("*").split(';').any(|pattern| fits(pattern, case));
    rows.retain(|row| tables.contains(&row.table) && is_wanted(&row.case));
    rows.sort_by_key(|row| tables.iter().position(|table| *table == row.table));
    let cases = cases(&rows);
    if cases.is_empty() {
        return Err("no row fits the options".to_owned());
    }
    if cases.iter().any(|rows| each_once(rows.iter().map(|row| &row.way)).len() < rows.len()) {
        return Err("a case is in two of the files: make a table of each".to_owned());
    }
    let of = |case: &[&'_ Row], way: &str| case.iter().position(|row| row.way == way);
    let mut grown = Vec::new();
    if let Some(columns) = &asked.columns {
        let name = |column: &str| column.split('=').next().unwrap_or(column).to_owned();
        grown.push(["case", "way"].map(str::to_owned).into_iter().chain(columns.split(',').map(name)).collect());
        for (case, way) in cases.iter().flat_map(|case| ways.iter().map(move |way| (case, way))) {
            let Some(row) = of(case, way).map(|at| case[at]) else { continue };
            let mut line = vec![name_of(row), way.clone()];
            for column in columns.split(',') {
                line.push(cell(row, column)?);
            }
            grown.push(line);
        }
    } else {
        grown.push(["case".to_owned()].into_iter().chain(ways.iter().cloned()).collect());
        for case in &cases {
            let plain = |way: &String| of(case, way).map_or("–".to_owned(), |at| plain_cell(case[at]));
            grown.push([name_of(case[0])].into_iter().chain(ways.iter().map(plain)).collect());
        }
    }
    if asked.kind.is_some() {
        grown =
            (0..grown[0].len()).map(|at| grown.iter().map(|line: &Vec<String>| line[at].clone()).collect()).collect();
        grown[0][0] = "way".to_owned();
    }
    Ok(grid(&grown[0], &grown[1..]))
}

fn name_of(row: &Row) -> String {
    if row.table == "whole" { format!("whole file, {}", row.case) } else { row.case.clone() }
}

fn plain_cell(row: &Row) -> String {
    let speed = row.figure("ops_per_s").unwrap_or(0.0);
    let short = if speed < 1e5 { format!("{:.1}k", speed / 1e3) } else { format!("{:.0}k", speed / 1e3) };
    format!("{short} {} {:.1} µs", row.spread(), row.figure("cpu_us_per_op.total").unwrap_or(0.0))
}

/// A cell of a row; a dash if the row does not have the figure.
fn cell(row: &Row, column: &str) -> Result<String> {
    if let Some((_, field)) = column.split_once('=') {
        let (path, divisor) = field.split_once('/').unwrap_or((field, "1"));
        let divisor: f64 = divisor.parse().map_err(|_| format!("{column}: no number to divide by"))?;
        return Ok(row.figure(path).map_or("–".to_owned(), |figure| digits(figure / divisor)));
    }
    let speed = |speed: f64| {
        let short = if speed < 1e5 { digits(speed / 1e3) } else { format!("{:.0}", speed / 1e3) };
        format!("{short}k {}", row.spread())
    };
    let micros = |nanos: f64| if nanos < 1e5 { digits(nanos / 1e3) } else { format!("{:.0}", nanos / 1e3) };
    let shown = |path: &str, show: &dyn Fn(f64) -> String| row.figure(path).map(show);
    let found = match column {
        "ops/s" | "commits/s" | "rows/s" => shown("ops_per_s", &speed),
        "ms" => shown("ops_per_s", &|speed| digits(1e3 / speed)),
        "MiB/s" => shown("bytes_per_s", &|speed| format!("{:.0}", speed / 1048576.0)),
        "p50 µs" => shown("latency_ns.p50", &micros),
        "p99 µs" => shown("latency_ns.p99", &micros),
        "p99.9 µs" => shown("latency_ns.p999", &micros),
        "p99.9 ms" => shown("latency_ns.p999", &|nanos| format!("{:.3}", nanos / 1e6)),
        "longest ms" => shown("latency_ns.max", &|nanos| format!("{:.1}", nanos / 1e6)),
        "CPU µs" => shown("cpu_us_per_op.total", &|micros| format!("{micros:.1}")),
        "switches" => shown("context_switches_per_op", &|count| format!("{count:.2}")),
        "device bytes" => shown("device_bytes_per_byte", &|bytes| format!("{bytes:.2}")),
        "device writes" => shown("device_writes_per_op", &|count| format!("{count:.2}")),
        "bytes" => shown("file_bytes_per_byte", &|bytes| format!("{bytes:.2}")),
        "in gaps > 1 ms" => shown("stalled_fraction", &|share| format!("{:.0} %", share * 100.0)),
        _ => return Err(format!("there is no column {column}")),
    };
    Ok(found.unwrap_or("–".to_owned()))
}

fn records(folder: &Path) -> Result<Vec<String>> {
    let mut body = Vec::new();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    for path in listed(folder).into_iter().filter(is_record) {
        let record = Record::load(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let command = record.text("command").map(|command| format!("`{command}`"));
        body.push(vec![
            format!("[{name}]({name})"),
            record.text("date").unwrap_or("–").chars().take(16).collect::<String>().replace('T', " "),
            record.text("commit").unwrap_or("**not recorded**").to_owned(),
            command.unwrap_or("not recorded; see the table's text".to_owned()),
        ]);
    }
    Ok(grid(&["file", "measured (UTC)", "commit", "command"], &body))
}

/// The record of a line of a file, beside that file.
fn beside(list: &Path, name: &str) -> Result<Record> {
    Record::load(&list.with_file_name("").join(name))
}

/// Rows of a file of lines "label, JSON, table, case"; its first line names the columns and their ways.
fn shares(list: &Path) -> Result<Vec<String>> {
    let lines = lines(list, 0)?;
    let (first, lines) = lines.split_first().ok_or("a list without lines")?;
    let columns: Vec<(&str, &str)> = first.iter().filter_map(|column| column.split_once('=')).collect();
    let mut body = Vec::new();
    for line in lines {
        let [label, name, table, case] = &line[..] else { return Err(format!("{line:?}: not four fields")) };
        let mut rows = beside(list, name)?.rows;
        rows.retain(|row| row.table == *table && row.case == *case);
        let best = rows.iter().map(Row::speed).fold(0.0, f64::max);
        let mut cells = vec![label.clone()];
        for (_, ways) in &columns {
            let row = ways.split('|').find_map(|way| rows.iter().find(|row| row.way == way));
            let row = row.ok_or(format!("{label}: no row of {ways} in {name}"))?;
            cells.push(format!("{:.2}", row.speed() / best));
        }
        body.push(cells);
    }
    Ok(grid(&[""].into_iter().chain(columns.iter().map(|(name, _)| *name)).collect::<Vec<_>>(), &body))
}

/// Rows of a file of lines "point, ways, JSON, table, case, way"; "*" means all ways but the library's.
fn ratios(list: &Path) -> Result<Vec<String>> {
    let mut body = Vec::new();
    for line in lines(list, 6)? {
        let [point, against, name, table, pattern, way] = &line[..] else { unreachable!("each has six") };
        let mut rows = beside(list, name)?.rows;
        rows.retain(|row| row.table == *table && fits(pattern, &row.case));
        if rows.is_empty() {
            return Err(format!("{point}: no case {pattern} in {name}"));
        }
        for case in cases(&rows) {
            let is_other =
                |row: &Row| !row.is_ours() && (against == "*" || against.split('|').any(|way| way == row.way));
            let others = case.iter().copied().filter(|row| is_other(row));
            let best = others.max_by(|one, other| one.speed().total_cmp(&other.speed()));
            let ours = case.iter().copied().find(|row| row.way == *way);
            let (Some(ours), Some(best)) = (ours, best) else {
                return Err(format!("{point}: {} of {name} has not both {way} and one of {against}", case[0].case));
            };
            let ratio = Ratio::of_rounds(&ours.rounds, &best.rounds).ok_or(format!("{point}: too few rounds"))?;
            let (low, high) = (ratio.low(), ratio.high());
            let finding = match () {
                () if low > 1.0 => "faster",
                () if high < 1.0 => "**slower**",
                () => "cannot tell",
            };
            let said = format!("{:.2} ({low:.2}–{high:.2})", ratio.middle());
            let dearer = dearer(ours, best).map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
            let case = name_of(ours);
            body.push([point, &case, way, &best.way, &said, finding, &dearer].map(str::to_owned).to_vec());
        }
    }
    Ok(grid(&["point", "case", "way", "best other", "ratio", "finding", "CPU of it"], &body))
}

/// Ratio of processor times, where both are known.
fn dearer(ours: &Row, other: &Row) -> Option<f64> {
    let of = |row: &Row, name: &str| row.figure(name).filter(|time| *time != 0.0);
    ["cpu_ms_per_gib", "cpu_us_per_op.total"].iter().find_map(|name| Some(of(ours, name)? / of(other, name)?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const RUN: &str = r#"{"environment": {"date": "2026-11-23T10:00:00Z", "commit": "0123456789ab", "command": "nowait bench reads"},
        "rows": [
        {"table": "reads", "case": "depth=1", "way": "ring", "rounds": [10e3, 20e3, 40e3], "ops_per_s": 20e3, "cpu_us_per_op": {"total": 2}},
        {"table": "reads", "case": "depth=1", "way": "nowait", "rounds": [5e3, 10e3, 20e3], "ops_per_s": 10e3,
            "cpu_us_per_op": {"total": 2}, "latency_ns": {"p50": 1234}},
        {"table": "reads", "case": "depth=8", "way": "ring", "rounds": [1e5, 1e5, 1e5], "ops_per_s": 1e5, "cpu_us_per_op": {"total": 2}}]}"#;

    /// The lines below the head.
    fn made(options: &str, run: &str, list: &str) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("run.json"), run).unwrap();
        fs::write(folder.path().join("list.tsv"), list).unwrap();
        super::made(options, folder.path()).map(|lines| lines[2..].to_vec())
    }

    #[test]
    fn cells() {
        let lines = made("run.json", RUN, "").unwrap();
        assert_eq!(lines[0], "| depth=1 | 20.0k (0.50–2.00) 2.0 µs | 10.0k (0.50–2.00) 2.0 µs |");
        assert_eq!(lines[1], "| depth=8 | 100k (1.00–1.00) 2.0 µs | – |");
        let lines = made("run.json --cases \"*=1\" --transpose", RUN, "").unwrap();
        assert_eq!(lines[1], "| nowait | 10.0k (0.50–2.00) 2.0 µs |");
        let lines = made("run.json --columns switches,p50=latency_ns.p50/1000 --cases *=1", RUN, "").unwrap();
        assert_eq!(lines, ["| depth=1 | ring | – | – |", "| depth=1 | nowait | – | 1.23 |"]);
        for refused in
            ["run.json --columns other", "run.json run.json", "run.json --cases other", "--other", "none.json"]
        {
            assert!(made(refused, RUN, "").is_err(), "{refused}");
        }
    }

    #[test]
    fn shares_are_of_the_best_way_of_the_same_rounds() {
        let list = "# Comment.\nby hand=pread|ring\tours=nowait\ncold\trun.json\treads\tdepth=1\n";
        assert_eq!(made("list.tsv --shares", RUN, list).unwrap(), ["| cold | 1.00 | 0.50 |"]);
    }

    #[test]
    fn a_way_is_faster_or_slower_by_the_whole_interval() {
        let ratio = |run: &str| made("list.tsv --ratios", run, "cold\t*\trun.json\treads\tdepth=1\tnowait\n");
        for (rounds, found) in
            [("5e3, 10e3, 20e3", "0.50 (0.50–0.50) | **slower**"), ("20e3, 40e3, 80e3", "2.00 (2.00–2.00) | faster")]
        {
            let line = ratio(&RUN.replace("5e3, 10e3, 20e3", rounds)).unwrap();
            assert_eq!(line, [format!("| cold | depth=1 | nowait | ring | {found} | 1.00 |")]);
        }
        let scattered = RUN.replace("[5e3, 10e3, 20e3]", "[20e3, 20e3, 20e3]");
        assert!(ratio(&scattered).unwrap()[0].contains("| cannot tell |"));
        assert!(ratio(&RUN.replace("\"nowait\"", "\"other\"")).is_err());
    }

    #[test]
    fn a_run_without_its_commit_is_refused_unless_it_is_older_than_that() {
        assert!(made("--records", RUN, "").unwrap()[0].ends_with("| 0123456789ab | `nowait bench reads` |"));
        let without = RUN.replace("0123456789ab", "");
        assert!(made("--records", &without, "").is_err());
        assert!(made("--records", &without.replace("11-23T", "11-21T"), "").unwrap()[0].contains("**not recorded**"));
    }
}
