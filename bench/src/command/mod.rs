//! `nowait bench`: options to tables, tables to a report, report to text, JSON and a page.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::machine::environment::Environment;
use crate::machine::load::Watch;
use crate::machine::testfile::{self, TestFile};
use crate::machine::tree::sweep;
use crate::measure::options::Options;
use crate::measure::progress::{Course, Plan};
use crate::report::figures::whole_size_of;
use crate::report::notes::{Code, Note};
use crate::report::page::page;
use crate::report::verdict::{counted, to_json};
use crate::report::{Report, in_order, preflight};
use crate::table::{self, Phase, Run, Table};
use crate::ways;
use crate::{Error, ErrorKind, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use self::args::Bench;
use self::first::{Budget, LeftOut};
use self::show::Colour;

mod against;
mod args;
mod first;
mod show;

/// Runs the command until `cancel` is set. `commit` names the sources that the program was built
/// from.
pub fn run(options: &Bench, commit: Option<&str>, cancel: &AtomicBool) -> Result<()> {
    let tour = tour(options);
    let options = tour.as_ref().unwrap_or(options);
    if let Some(code) = options.explain.as_ref().and_then(|code| Code::by_name(code.as_deref()?)) {
        return print_to(io::stdout().lock(), &show::explanation(code));
    }
    let results = Results::open(options)?;
    let output = Output { to_stderr: results.on_stdout() };
    if let Some(path) = &options.from {
        let report = earlier(path)?;
        if let Some(other) = &options.against {
            return compare(&report, other, results, &output);
        }
        output.print(&show::environment(&report.environment))?;
        return results.show(&report, None, options, &output);
    }
    let mut parts = parts(options)?;
    let tables: Vec<&'static Table> = parts.iter().flat_map(|part| part.tables.iter().copied()).collect();
    let asked = parts[0].asked.clone();
    let is_first = parts[0].is_first;
    let size = tables.iter().filter_map(|table| (table.file_size)(&asked)).max();
    let made = size.map(|size| asked.size.unwrap_or(size)).filter(|_| asked.file.is_none());
    // An error of the place is the only output.
    match &asked.file {
        Some(path) => drop(TestFile::existing(path)?),
        None => {
            drop(testfile::create_nameless(&asked.dir)?);
            sweep(&asked.dir);
        }
    }
    let plan = plan(&parts, made);
    announce(&plan, &asked, made)?;

    let place = Environment::of(asked.file.as_deref().unwrap_or(&asked.dir));
    let watch = Watch::begin(place.device.as_deref());
    let mut course = Course::new(plan, bar());
    let file = size.map(|size| test_file(&asked, size, cancel, &mut course)).transpose()?;
    let commit = commit.map(str::to_owned);
    let environment = Environment { commit, load: watch.load(), ..environment(place, file.as_ref(), &tables, &asked) };
    let mut report = Report { environment: environment.clone(), ..Report::default() };
    course.hide();
    let short = is_first && !options.verbose;
    if !short {
        output.print(&show::environment(&environment))?;
    }
    if let Some(file) = &file {
        preflight::look_at_file(file, &mut report)?;
    }
    let writes = tables.iter().any(|table| (table.writes_into)(&asked).is_some());
    let in_order = tables.iter().any(|table| table.in_order);
    preflight::look_at_system(&environment, writes, in_order, &mut report);

    let (mut budget, mut left_out) = (Budget::new(options), Vec::new());
    let mut measure = |file: Option<&TestFile>, phase: Phase| -> Result<()> {
        for part in &mut parts {
            let (asked, tables) = (&mut part.asked, &part.tables);
            if part.is_first {
                // The part's only table has one phase.
                if tables.iter().any(|table| (table.file_size)(asked).is_some() != (phase == Phase::File)) {
                    continue;
                }
                match budget.next(tables[0].name) {
                    Some(time) => asked.budget = time,
                    None => {
                        left_out.push((tables[0].name, first::NO_TIME.to_owned()));
                        continue;
                    }
                }
            }
            let mut run = Run { options: asked, file, cancel, course: &mut course, report: &mut report };
            let measured = run.measure(tables, &[phase]);
            run.course.hide();
            match measured {
                Err(error) if part.is_first => match first::left_out(&error, run.report) {
                    Some(why) => left_out.push((tables[0].name, why)),
                    None => return Err(error),
                },
                measured => measured?,
            }
        }
        Ok(())
    };
    let (ran, not_cold) = match measure(file.as_ref(), Phase::File) {
        Err(error) if error.kind() == ErrorKind::NotCold => (Ok(()), Some(error)),
        ran => (ran, None),
    };
    // Frees the file's memory and disk space before other files are written.
    drop(file);
    let ran = ran.and_then(|()| measure(None, Phase::Directory));
    // Cold cases that were left out are an error only if nothing else was measured.
    let ran = match ran.and_then(|()| not_cold.map_or(Ok(()), Err)) {
        Err(error) if error.kind() == ErrorKind::NotCold && !report.rows.is_empty() => Ok(()),
        ran => ran,
    };
    let ran = ran.and_then(|()| is_complete(&report, &left_out, options));
    report.environment.load = watch.load();
    preflight::look_at_load(&mut report);
    preflight::look_at_rows(&mut report);
    // The completed rows are kept after an error, too.
    report.partial = ran.as_ref().err().map(|error| match error.kind() {
        ErrorKind::Interrupted => "interrupted".to_owned(),
        _ => error.to_string(),
    });
    let text = short.then(|| first::screen(&report, &left_out, options));
    let shown = results.show(&report, text, options, &output);
    ran.and(shown)
}

/// Returns an error if the run had no time for a case, or measured none.
fn is_complete(report: &Report, left_out: &[LeftOut], options: &Bench) -> Result<()> {
    if let Some(error) = first::out_of_time(left_out, options) {
        return Err(error);
    }
    if !report.rows.is_empty() {
        return Ok(());
    }
    let explains = |note: &&Note| matches!(note.code, Code::WayLeftOut | Code::CaseLeftOut | Code::DirectRefused);
    let notes = report.notes.iter().filter(explains).map(|note| note.text.as_str());
    let reasons = in_order(left_out.iter().map(|(_, why)| why.as_str()).chain(notes));
    Err(Error::new(ErrorKind::NothingMeasured, format!("no case was measured: {}", reasons.join("; "))))
}

/// Tables to measure with the same options.
struct RunPart {
    asked: Options,
    tables: Vec<&'static Table>,
    /// True for a table of the first run, which has one time limit for all tables.
    is_first: bool,
}

/// Tables to measure.
fn parts(options: &Bench) -> Result<Vec<RunPart>> {
    let asked = settled(&options.asked);
    if first::is_asked(options) {
        return Ok(first::parts(options));
    }
    let tables = table::asked(&options.tables, &asked);
    table::check(&tables, &asked)?;
    Ok(vec![RunPart { asked, tables, is_first: false }])
}

/// `file` is the size in bytes of the test file to create.
fn plan(parts: &[RunPart], file: Option<u64>) -> Plan {
    let tables = parts.iter().flat_map(|part| table::plan(&part.tables, &part.asked, None).tables).collect();
    Plan { file_s: file.map_or(0.0, Plan::writing_s), tables }
}

/// Prints how long the run will take.
fn announce(plan: &Plan, asked: &Options, file: Option<u64>) -> Result<()> {
    let cases = counted(plan.tables.iter().map(|table| table.cases).sum());
    let file = file.map_or_else(String::new, |bytes| {
        format!("; a test file of {} in {}", whole_size_of(bytes), asked.dir.display())
    });
    let (time, turns) = (duration(plan.seconds()), plan.turns());
    print_to(io::stderr().lock(), &format!("nowait bench: {time}: {cases}, {turns} single measurements{file}\n"))
}

/// Formats a duration: `about 45 s`, `about 4 min`.
fn duration(seconds: f64) -> String {
    match seconds {
        short if short < 99.5 => format!("about {:.0} s", short.max(1.0)),
        long => format!("about {:.0} min", long / 60.0),
    }
}

/// Compares two earlier runs.
fn compare(report: &Report, other: &Path, results: Results, output: &Output) -> Result<()> {
    let against = earlier(other)?;
    let pairs = against::pairs(report, &against);
    if pairs.is_empty() {
        let text = format!("no row is in both runs; give --against a run of the same tables, not {}", other.display());
        return Err(Error::new(ErrorKind::BadFile, text));
    }
    output.print(&against::shown(&pairs, report, &against, output.colour()))?;
    if let Some(json) = results.json {
        json.write(&(serde_json::to_string_pretty(&pairs).expect("pairs are plain data") + "\n"))?;
    }
    match pairs.iter().filter(|pair| pair.change == against::Change::Worse).count() {
        0 => Ok(()),
        worse => Err(Error::new(ErrorKind::Worse, format!("worse than {} in {worse} rows", other.display()))),
    }
}

/// Reads the --json file of an earlier run.
fn earlier(path: &Path) -> Result<Report> {
    let unusable = |why: String| {
        let text = format!("cannot use {}: {why}; give --from a file that `nowait bench --json` wrote", path.display());
        Error::new(ErrorKind::BadFile, text)
    };
    let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if report.rows.is_empty() { Err(unusable("it has no rows".to_owned())) } else { Ok(report) }
}

/// Returns the tables of `tour`, shortened to minutes.
fn tour(options: &Bench) -> Option<Bench> {
    let named = options.tables.iter().any(|table| table == args::TOUR);
    let toured = table::to_ask_for().filter(|table| table.toured).map(|table| table.name.to_owned());
    let asked = Options { quick: true, ..options.asked.clone() };
    named.then(|| Bench { tables: toured.chain(options.tables.clone()).collect(), asked, ..options.clone() })
}

/// Converts the options of the command to those of tables.
fn settled(asked: &Options) -> Options {
    // Checks of the whole machine need root.
    let thorough = rustix::process::geteuid().is_root() && !asked.quick;
    Options { drop_caches: thorough, lower_dirty_limit: thorough, ..asked.clone().settled() }
}

fn test_file(asked: &Options, usual_size: u64, cancel: &AtomicBool, course: &mut Course) -> Result<TestFile> {
    let file = match &asked.file {
        Some(path) => TestFile::existing(path),
        None => {
            let size = asked.size.unwrap_or(usual_size);
            course.begin("making the test file", Plan::writing_s(size), size);
            TestFile::make(&asked.dir, size, asked.seed, cancel, |bytes| course.step(bytes))
        }
    }?;
    if asked.direct { file.past_the_cache() } else { Ok(file) }
}

fn environment(place: Environment, file: Option<&TestFile>, tables: &[&'static Table], asked: &Options) -> Environment {
    let written = || tables.iter().find_map(|table| (table.writes_into)(asked)).unwrap_or_default();
    let (file_bytes, origin) = file.map_or_else(written, |file| (file.size(), file.origin()));
    Environment {
        io_uring: ways::io_uring_state(),
        file_bytes,
        file_origin: origin.to_owned(),
        seed: asked.seed,
        ..place
    }
}

/// Destination of the tables.
struct Output {
    to_stderr: bool,
}

impl Output {
    fn colour(&self) -> Colour {
        let terminal = if self.to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        // https://no-color.org: set and not empty.
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if terminal && !refused { Colour::On } else { Colour::Off }
    }

    fn print(&self, text: &str) -> Result<()> {
        if self.to_stderr { print_to(io::stderr().lock(), text) } else { print_to(io::stdout().lock(), text) }
    }
}

/// Prints text for people.
fn print_to(to: impl Write, text: &str) -> Result<()> {
    if show::is_utf8_locale() { write_to(to, text) } else { write_to(to, &show::ascii(text)) }
}

/// A reader that closed the pipe (`| head`) is not an error.
fn write_to(mut to: impl Write, text: &str) -> Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Other, format!("cannot print the result: {error}")))
        }
        _ => Ok(()),
    }
}

/// Files written besides the tables.
struct Results {
    json: Option<Destination>,
    page: Option<Destination>,
}

impl Results {
    fn open(options: &Bench) -> Result<Self> {
        let open =
            |path: &Option<PathBuf>, option| path.as_deref().map(|path| Destination::open(path, option)).transpose();
        let results = Self { json: open(&options.json, "--json")?, page: open(&options.report, "--report")? };
        match (&results.json, &results.page) {
            (Some(json), Some(page)) if json.is_stdout() && page.is_stdout() => Err(Error::new(
                ErrorKind::Usage,
                "--json and --report cannot both go to stdout; give one of them a path",
            )),
            (Some(json), Some(page)) if json.is_same(page) => Err(Error::new(
                ErrorKind::Usage,
                "--json and --report are the same file; give one of them another path",
            )),
            _ => Ok(results),
        }
    }

    fn on_stdout(&self) -> bool {
        [&self.json, &self.page].into_iter().flatten().any(Destination::is_stdout)
    }

    /// Prints the tables, and writes the requested files if there are figures. Writes them even if
    /// printing fails, for example on a closed terminal.
    fn show(self, report: &Report, screen: Option<String>, options: &Bench, output: &Output) -> Result<()> {
        let all = || show::report(report, options.verbose, output.colour());
        let explained = options.explain.as_ref().map_or_else(String::new, |_| show::explanations(report));
        let printed = output.print(&(screen.unwrap_or_else(all) + &explained));
        if report.rows.is_empty() && report.partial.is_some() {
            let kept = [&self.json, &self.page].into_iter().flatten().filter_map(Destination::kept);
            let note = |path: &Path| format!("no case was completed: {} is left as it was\n", path.display());
            return printed.and(kept.map(note).try_for_each(|note| print_to(io::stderr().lock(), &note)));
        }
        if let Some(json) = self.json {
            json.write(&to_json(report))?;
        }
        self.page.map_or(Ok(()), |destination| destination.write(&page(report)))?;
        printed
    }
}

/// Destination of a result. It is opened before the measurement, so that a wrong path costs no
/// time. An existing file keeps its content until the new result is complete; without a result, a
/// new file is removed.
struct Destination {
    option: &'static str,
    /// `None` for stdout.
    file: Option<(File, PathBuf)>,
    remove: bool,
}

impl Destination {
    fn open(path: &Path, option: &'static str) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { option, file: None, remove: false });
        }
        let remove = fs::symlink_metadata(path).is_err();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| cannot_write(path, option, &error))?;
        Ok(Self { option, file: Some((file, path.to_owned())), remove })
    }

    fn is_stdout(&self) -> bool {
        self.file.is_none()
    }

    /// True if two paths name the same file.
    fn is_same(&self, other: &Self) -> bool {
        let about = |destination: &Self| {
            let about = destination.file.as_ref()?.0.metadata().ok()?;
            about.is_file().then(|| (about.dev(), about.ino()))
        };
        about(self).is_some_and(|mine| Some(mine) == about(other))
    }

    /// Path of a file that existed before the run.
    fn kept(&self) -> Option<&Path> {
        self.file.as_ref().filter(|_| !self.remove).map(|(_, path)| path.as_path())
    }

    fn write(mut self, text: &str) -> Result<()> {
        let Some((file, path)) = &mut self.file else { return write_to(io::stdout().lock(), text) };
        let regular = file.metadata().is_ok_and(|about| about.is_file());
        let emptied = if regular { file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|error| cannot_write(path, self.option, &error))?;
        self.remove = false;
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let (Some((_, path)), true) = (&self.file, self.remove) {
            let _ = fs::remove_file(path);
        }
    }
}

fn cannot_write(path: &Path, option: &str, error: &io::Error) -> Error {
    let text = format!("cannot write the result to {}: {error}; give {option} another path, or -", path.display());
    Error::new(ErrorKind::of_write(error), text)
}

/// Returns a progress bar on stderr; indicatif draws nothing if stderr is not a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %, {prefix}  {msg}");
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.with_style(style.expect("the template is a constant"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: Bench,
    }

    /// Symptom: a run whose ways this system refuses ended with code 0, without a figure.
    #[test]
    fn a_run_that_measures_nothing_is_an_error_that_tells_why() {
        let options = Command::parse_from(["bench", "reads", "--ways", "ring"]).bench;
        let notes = [(Code::ReadAhead, "far"), (Code::WayLeftOut, "ring is left out: io_uring is refused")];
        let notes = notes.map(|(code, text)| Note::new(code, text)).into();
        let mut report = Report { notes, ..Report::default() };
        let error = is_complete(&report, &[], &options).unwrap_err();
        assert_eq!(error.kind().exit_code(), 6);
        assert_eq!(error.to_string(), "no case was measured: ring is left out: io_uring is refused");
        report.rows.push(Row::default());
        assert!(is_complete(&report, &[], &options).is_ok());
    }
}
