//! `nowait probe`: how files are served at a path, and what a running program's kernel workers do.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use comfy_table::Cell;
use nowait::DirectIo;
use nowait_probe::{
    Case, Device, Evidence, Options, Outcome, Place, Rates, Reach, Report, Row, Served, Step, Subject, watch,
};
use serde_json::{Value, json};

use crate::cli::{self, Failure, Result};
use crate::show;

const NOT_MET: u8 = 9;
const REFUSED: u8 = 10;
const CANNOT_TELL: u8 = 11;

pub(crate) fn run(options: &cli::Probe) -> Result<()> {
    if let Some(process) = options.pid {
        return watch_process(options, process);
    }
    if !Path::new("/proc/self/fd").exists() {
        show::complain(
            "/proc is not mounted, so no file can be opened again and direct I/O cannot be tried: mount -t proc proc /proc",
        );
    }
    let mut reports = Vec::new();
    let mut outcome = Ok(());
    for path in &options.paths {
        let how = Options::new().requests(options.requests).evict(options.evict).shallow(options.shallow);
        let probed = how.run(path);
        let judged = match probed {
            Ok(report) => {
                let judged = judge(&report, &options.require);
                if options.json {
                    reports.push(report.to_json());
                } else {
                    show::say(format_args!("{}", text(&report, options.explain)));
                }
                judged
            }
            Err(error) => Err(error.into()),
        };
        // All are shown; the first that is not as it should be decides.
        outcome = outcome.and(judged);
    }
    if options.json {
        say!("{:#}", Value::Array(reports));
    }
    outcome
}

/// Meaning of the exit code.
fn judge(report: &Report, required: &[String]) -> Result<()> {
    let path = report.path.display();
    let failure = |code, message| Err(Failure { code, message });
    if let Some(error) = report.scratch_error.as_ref().or(report.file_error.as_ref()) {
        return Err(error.clone().into());
    }
    if let Some(refusal) = &report.reach.refusal {
        let remedy = report.reach.remedy.as_deref().unwrap_or("see above");
        return failure(REFUSED, format!("{path}: {refusal}; {remedy}"));
    }
    if let Some(why) = blindness(report) {
        return failure(CANNOT_TELL, format!("{path}: the effect of io_uring requests cannot be observed: {why}"));
    }
    for name in required {
        let row = Case::ALL.into_iter().find(|case| case.name() == name).and_then(|case| report.row(case));
        let why = match row.map(|row| (&row.ring, row.reason)) {
            Some((Outcome::Seen(rates), _)) if !rates.is_waited_for() => continue,
            Some((Outcome::Seen(rates), reason)) => format!(
                "{} of {} by a kernel worker, {} slept in their submission{}",
                rates.worker,
                rates.requests,
                rates.slept,
                reason.map_or(String::new(), |reason| format!(": {reason}"))
            ),
            Some((other, _)) => unseen(other),
            None => "it was not looked at".to_owned(),
        };
        return failure(NOT_MET, format!("{path}: {name} is not served as required: {why}"));
    }
    Ok(())
}

fn blindness(report: &Report) -> Option<&str> {
    report.scratch.iter().chain(&report.file).find_map(|row| match &row.ring {
        Outcome::CannotTell(why) => Some(why.as_str()),
        _ => None,
    })
}

fn unseen(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Refused(errno) => format!("refused (os error {errno})"),
        Outcome::NotInState => "no cold pages".to_owned(),
        _ => "cannot tell".to_owned(),
    }
}

fn text(report: &Report, explain: bool) -> String {
    let subject = match report.subject {
        Subject::Directory => "a directory",
        Subject::File => "a file",
        _ => "a block device",
    };
    let mut text = format!("{}: {subject}{}\n", report.path.display(), on(&report.place));
    for (name, value) in facts(report) {
        text += &format!("  {name:<9} {value}\n");
    }
    for (title, rows) in [("scratch files", &report.scratch), ("the file itself", &report.file)] {
        if !rows.is_empty() {
            text += &format!("\n{}", table(title, rows));
        }
    }
    if let Some(why) = blindness(report) {
        text += &format!("\n  cannot tell: {why}\n");
    }
    if let Some(controls) = &report.controls {
        text += &format!("\n{}", changes(report));
        let believed = if controls.hold() { "controls hold" } else { "CONTROLS FAIL" };
        text += &format!("\n  {believed}: {controls}\n  {}\n", confirmation(report));
    }
    text.push('\n');
    for (number, line) in wrapped(&report.summary(), 90).iter().enumerate() {
        let name = if number == 0 { "summary" } else { "" };
        text += &format!("  {name:<9} {line}\n");
    }
    if explain {
        text += &explanations(report);
    }
    text + "\n"
}

/// Where verdicts change with depth or size.
fn changes(report: &Report) -> String {
    let on_scratch = report.scratch.iter().map(|row| (row.case.name().to_owned(), row));
    let of_file = report.file.iter().map(|row| (format!("{}, the file itself", row.case.name()), row));
    let asked: Vec<_> = on_scratch.chain(of_file).filter(|(_, row)| !row.steps.is_empty()).collect();
    if asked.is_empty() {
        return report
            .steps_missing
            .as_ref()
            .map_or(String::new(), |why| format!("  one in flight, one size: {why}\n"));
    }
    let mut text = "  with 1 to 1024 in flight, and 4 KiB to 1 MiB:\n".to_owned();
    let width = asked.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut same = 0;
    for (name, row) in &asked {
        let sentences = row.changes();
        same += usize::from(sentences.is_empty());
        for (number, sentence) in sentences.iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            text += &format!("    {name:<width$}  {sentence}\n");
        }
    }
    text += match same {
        0 => "",
        same if same == asked.len() => "    no change\n",
        _ => "    others: no change\n",
    };
    if let Some(why) = &report.steps_missing {
        text += &format!("    incomplete: {why}\n");
    }
    let reasons: BTreeSet<_> = asked.iter().flat_map(|(_, row)| &row.steps).filter_map(step_unseen).collect();
    for why in reasons {
        text += &format!("    incomplete: {why}\n");
    }
    text
}

fn step_unseen(step: &Step) -> Option<String> {
    match &step.ring {
        Outcome::Seen(_) | Outcome::NotInState => None,
        Outcome::CannotTell(why) => Some(why.clone()),
        other => Some(unseen(other)),
    }
}

/// Whether the kernel's tracepoints say the same, or the next step to take.
fn confirmation(report: &Report) -> String {
    let mut text = match (report.unconfirmed(), report.traced()) {
        (Some(why), _) => format!("UNCONFIRMED by the kernel's tracepoints: {why}"),
        (None, traced) => {
            format!("confirmed by the kernel's tracepoints for {} requests", traced.map_or(0, |traced| traced.agreed))
        }
    };
    if report.evidence == Some(Evidence::Tracepoint) {
        text += "\n  workers are not threads of this process: only the tracepoint showed them";
    }
    if !report.reach.defers {
        text += "\n  inline is unconfirmed: before Linux 6.1 it includes requests that the device completed before the submission returned";
    }
    text
}

fn on(place: &Place) -> String {
    match (&place.file_system, &place.mount_options) {
        (Some(name), Some(options)) => format!(" on {name} ({options})"),
        (Some(name), None) => format!(" on {name}"),
        _ => String::new(),
    }
}

fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if !report.place.attributes.is_empty() {
        facts.push(("file", report.place.attributes.join(", ")));
    }
    if let Some(device) = &report.place.device {
        facts.push(("device", of_device(device)));
    }
    facts.push(("io_uring", of_reach(&report.reach)));
    if let Some(remedy) = &report.reach.remedy {
        facts.push(("remedy", remedy.clone()));
    }
    facts.push(("takes", of_abilities(report)));
    for error in report.scratch_error.iter().chain(&report.file_error) {
        facts.push(("error", error.to_string()));
    }
    facts
}

fn of_device(device: &Device) -> String {
    let mut parts = vec![device.name.clone()];
    let mut add = |name: &str, value: Option<String>| parts.extend(value.map(|value| format!("{name} {value}")));
    add("scheduler", device.scheduler.clone());
    add("queue", device.requests_max.map(|requests| requests.to_string()));
    add("read-ahead", device.read_ahead_bytes.map(|bytes| format!("{} KiB", bytes >> 10)));
    add("cache", device.write_cache.clone());
    add("block", device.logical_block_bytes.map(|bytes| bytes.to_string()));
    add("io_poll", device.polls.map(|polls| if polls { "yes" } else { "no" }.to_owned()));
    add("atomic", device.atomic_write_bytes_max.filter(|bytes| *bytes > 0).map(|bytes| bytes.to_string()));
    parts.join(", ")
}

fn of_reach(reach: &Reach) -> String {
    if let Some(refusal) = &reach.refusal {
        let mut parts = vec![format!("REFUSED: {refusal}")];
        parts.extend(reach.disabled.map(|value| format!("kernel.io_uring_disabled {value}")));
        parts.extend(reach.seccomp_filters.map(|filters| format!("seccomp filters {filters}")));
        return parts.join(", ");
    }
    let unknown: Vec<_> = reach.operations.iter().filter(|(_, known)| !known).map(|(name, _)| *name).collect();
    let mut text = "available".to_owned();
    if !unknown.is_empty() {
        text += &format!(", without {}", unknown.join(" "));
    }
    match reach.locked_memory_bytes_max {
        Some(bytes) => text + &format!(", locked memory up to {} KiB", bytes >> 10),
        None => text + ", locked memory without limit",
    }
}

fn of_abilities(report: &Report) -> String {
    let abilities = &report.abilities;
    let is_taken = report.row(Case::DirectRead).is_some_and(|row| matches!(row.ring, Outcome::Seen(_)));
    let yes = |ability: Option<bool>| ability.map_or("?", |ability| if ability { "yes" } else { "no" });
    let direct = match abilities.direct {
        Some(DirectIo::Granted { memory_alignment, offset_alignment }) => {
            format!("by {offset_alignment}, memory by {memory_alignment}")
        }
        Some(DirectIo::Refused) if is_taken => "no, although open accepts O_DIRECT".to_owned(),
        Some(DirectIo::Refused) => "no".to_owned(),
        _ => "?".to_owned(),
    };
    let atomic = abilities.atomic_writes.map_or("no".to_owned(), |atomic| {
        format!("{} to {}, of up to {} parts", atomic.bytes_min, atomic.bytes_max, atomic.segments_max)
    });
    format!(
        "RWF_NOWAIT reads {}, writes {}, direct reads {}; direct I/O {direct}; DONTCACHE {}; atomic writes {atomic}",
        yes(abilities.nowait_reads),
        yes(abilities.nowait_writes),
        yes(abilities.nowait_direct_reads),
        yes(abilities.uncached_writes)
    )
}

fn table(title: &str, rows: &[Row]) -> String {
    // Reasons concern io_uring, so they stand beside its figures.
    let names = [title, "inline", "async", "worker", "slept", "submit us", "total us"];
    let last = [Cell::new("why"), Cell::new("nowait")];
    let mut grid = show::grid(names.into_iter().map(show::heading).chain(last));
    for row in rows {
        let served = row.nowait.as_ref().map_or(String::new(), way);
        let ring = match &row.ring {
            Outcome::Seen(rates) => figures(rates),
            _ => ["", "", "", "", "", ""].map(str::to_owned),
        };
        let why = match (&row.ring, row.reason) {
            (Outcome::Seen(_), reason) => reason.map_or(String::new(), |reason| reason.to_string()),
            (other, _) => unseen(other),
        };
        let mut cells = vec![Cell::new(row.case.name())];
        cells.extend(ring.map(|figure| Cell::new(figure).set_alignment(comfy_table::CellAlignment::Right)));
        cells.extend([why, served].map(Cell::new));
        grid.add_row(cells);
    }
    show::lines(&grid)
}

/// In microseconds.
fn micro(nanoseconds: u64) -> String {
    let micro = nanoseconds as f64 / 1e3;
    if micro < 9.95 { format!("{micro:.1}") } else { format!("{micro:.0}") }
}

fn figures(rates: &Rates) -> [String; 6] {
    let share = |count: u32| share(count, rates.requests);
    [
        share(rates.inline),
        share(rates.asynchronous),
        share(rates.worker),
        share(rates.slept),
        micro(rates.submit_ns.median),
        micro(rates.total_ns.median),
    ]
}

fn share(count: u32, of: u32) -> String {
    match count {
        0 => "-".to_owned(),
        // A few are not shown as "0 %", and nearly all not as "100 %".
        count => {
            // Ties to even: of two halves of a percent one is rounded down.
            let percent = (f64::from(count) * 100.0 / f64::from(of)).round_ties_even();
            format!("{} %", if count < of { percent.clamp(1.0, 99.0) } else { percent })
        }
    }
}

/// The ways that the library took, the most frequent first.
fn way(served: &Served) -> String {
    let mut ways = [(served.inline, "inline"), (served.ring, "ring"), (served.aio, "libaio"), (served.pool, "pool")];
    ways.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let used = ways.iter().filter(|(count, _)| *count > 0).count();
    let names = ways[..used].iter().map(|(count, name)| match used {
        1 => (*name).to_owned(),
        _ => format!("{name} {count}"),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    if served.worker > 0 { format!("{names} ({} to workers)", served.worker) } else { names }
}

fn explanations(report: &Report) -> String {
    let mut text = "
  inline      complete when the io_uring_enter that submitted it returned
  async       completed later, without a thread
  worker      given to a kernel thread, which makes a plain call
  slept       the thread slept inside io_uring_enter; counted beside the three above
  submit      time of io_uring_enter, median; total: until the completion. Requests come one at a time, with pauses:
              they are slower than those of a busy program
  nowait      where this library's counters say that the same requests went, one at a time: inline on the caller's
              thread, to a ring, to libaio, or to a pool thread
  no cold pages   pages stay in memory (tmpfs), or all of the file is cached (--evict)
  in flight   requests submitted by one io_uring_enter; the table has one at a time. \"By workers\" is more than half of
              the requests, \"partly\" more than a quarter; \"sleeps\" is more than half of the submissions. \"Perhaps\":
              workers ran, and without tracepoints their requests cannot be counted
  confirmed   of every request, the tracepoints that the submitting thread passed say the same: io_uring_complete inside
              the submission (inline), io_uring_queue_async_work (worker), sched_switch inside it (slept)
"
    .to_owned();
    let reasons: BTreeSet<_> = report.scratch.iter().chain(&report.file).filter_map(|row| row.reason).collect();
    for reason in reasons {
        text += &format!("\n  {}\n", reason.name());
        for line in wrapped(reason.explanation(), 92) {
            text += &format!("      {line}\n");
        }
    }
    text
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let full = lines.last().is_some_and(|line| !line.is_empty() && line.len() + 1 + word.len() > width);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

fn watch_process(options: &cli::Probe, process: u32) -> Result<()> {
    let watched = watch(process, Duration::from_secs(options.seconds.into()))?;
    let seconds = watched.elapsed.as_secs_f64();
    if options.json {
        let threads = watched.threads.iter().map(|thread| {
            json!({
                "thread": thread.number, "name": thread.name, "runs": thread.runs,
                "on_processor_ns": thread.on_processor.as_nanos() as u64,
                "read_bytes": thread.read_and_written.map(|(read, _)| read),
                "written_bytes": thread.read_and_written.map(|(_, written)| written),
            })
        });
        let threads: Vec<_> = threads.collect();
        say!(
            "{:#}",
            json!({ "process": process, "elapsed_ns": watched.elapsed.as_nanos() as u64, "threads": threads, "punts": watched.punts,
                "untraced": watched.untraced })
        );
        return Ok(());
    }
    let name = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("comm")).unwrap_or_default();
    say!("process {process} ({}), watched for {seconds:.1} s", name.trim_end());
    match watched.punts {
        Some(punts) => {
            say!("  {:.0} requests a second went to workers, by the kernel's tracepoint", punts as f64 / seconds)
        }
        None => say!(
            "  the kernel's tracepoint cannot be counted: {}",
            watched.untraced.as_deref().unwrap_or("the reason is not known")
        ),
    }
    if watched.threads.is_empty() {
        say!("  no kernel workers: its requests are inline or asynchronous, or it makes none");
        return Ok(());
    }
    let names = ["kernel thread", "runs/s", "CPU ms/s", "read MiB/s", "written MiB/s"];
    let mut grid = show::grid(names.into_iter().map(show::heading));
    for thread in &watched.threads {
        let mib = |bytes: Option<u64>| {
            bytes.map_or("?".to_owned(), |bytes| format!("{:.2}", bytes as f64 / f64::from(1 << 20) / seconds))
        };
        grid.add_row(show::cells([
            format!("{} {}", thread.name, thread.number),
            format!("{:.0}", thread.runs as f64 / seconds),
            format!("{:.1}", thread.on_processor.as_secs_f64() * 1e3 / seconds),
            mib(thread.read_and_written.map(|(read, _)| read)),
            mib(thread.read_and_written.map(|(_, written)| written)),
        ]));
    }
    show::say(format_args!("{}", show::lines(&grid)));
    if options.explain {
        say!(
            "\n  iou-wrk-N works for thread N, iou-sqp-N polls the submission queue of one (N in the first pid namespace).\n  \
             A worker runs about once for each request, and once more each time it waited. Requests that are inline or\n  \
             asynchronous have no worker: io_uring serves them from the thread that submitted them."
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_not_rounded_to_none_or_all() {
        assert_eq!(
            [(0, 32), (1, 1000), (999, 1000), (32, 32), (16, 32)].map(|(n, of)| share(n, of)),
            ["-", "1 %", "99 %", "100 %", "50 %"]
        );
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-long-word b", 3), ["a-long-word", "b"]);
    }
}
