//! The page that `nowait bench --report` writes, in a real browser: chromium or google-chrome, or
//! what NOWAIT_BROWSER names.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// One that hangs is killed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A report with tables of today and of earlier versions, and what is awkward to show.
fn made() -> serde_json::Value {
    let tables = [
        ("reads", &["depth=1", "depth=4", "depth=32"][..]),
        ("whole", &["depth=32"]),
        ("cached", &["threads=1", "64K,half"]),
        ("gather", &["records=1,cold", "records=64,cold", "records=1,cached", "records=64,cached"]),
        ("writes", &["dir=ext4 depth=1", "dir=ext4 depth=16", "fs=xfs depth=1", "fs=xfs depth=16"]),
        ("stall", &["overwrite memory=128M", "dir=ext4"]),
        ("dd", &["read block=16K depth=1", "read block=1M depth=1", "copy block=1M depth=1"]),
        ("log", &["writers=1 size=128", "writers=64 size=128"]),
        ("prefault", &["populate", "rows"]),
        ("scan", &["block=4K depth=1", "block=16K depth=1", "stride=4 block=4K depth=1"]),
        ("files", &["data-cold depth=1", "data-cold depth=16", "open=128 hot depth=1000"]),
        ("zipf", &["s=0.99 depth=1", "s=0.99 depth=16", "s=1.20 depth=16"]),
        ("ranges", &["tasks=32"]),
        ("readwrite", &["direct depth=1", "buffered depth=1"]),
        ("<b>new & odd</b>", &["a case with \"quotes\""]),
    ];
    let ways = ["pread", "threads", "libaio", "ring", "nowait", "nowait-tokio"];
    let mut rows = Vec::new();
    for (table, cases) in tables {
        for (i, case) in cases.iter().enumerate() {
            for (j, way) in ways.iter().enumerate() {
                let speed = 10_000.0 * ((i + 1) * (j + 2)) as f64;
                let latency = 20_000 * (j as u64 + 1);
                rows.push(serde_json::json!({
                    "table": table, "case": case, "way": way, "ops_per_s": speed, "bytes_per_s": speed * 4096.0,
                    "latency_ns": {"p50": latency, "p99": 3 * latency, "p999": 9 * latency, "max": 400 * latency},
                    "cpu_us_per_op": {"caller": 3.0, "ring_workers": 0.5, "pool": j as f64, "total": 3.5 + j as f64, "system": 1.0},
                    "context_switches_per_op": 0.5, "punts_per_op": 0.0, "inline_fraction": null,
                    "rounds": [speed * 0.9, speed, speed * 1.2], "stalled_fraction": 0.25, "cpu_ms_per_gib": 80.0,
                }));
            }
        }
    }
    serde_json::json!({
        "environment": {
            "version": "0.1.0", "date": "2026-11-22T00:00:00Z", "kernel": "6.18 <x>", "filesystem": "ext4", "device": "vda",
            "command": "nowait bench '<script>alert(1)</script>'", "cpus": 2, "seed": 7,
        },
        "partial": "interrupted",
        "notes": [{"code": "direct-refused", "text": "log: <i>direct-dsync</i> is not measured"}],
        "rows": rows,
    })
}

fn page_of(report: &serde_json::Value, dir: &Path) -> PathBuf {
    let (json, page) = (dir.join("run.json"), dir.join("page.html"));
    fs::write(&json, report.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nowait-bench"));
    let output = command.args(["--from"]).arg(&json).arg("--report").arg(&page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Where each way is worst"));
    page
}

struct Browser {
    program: PathBuf,
    /// Its profile, and what it makes.
    dir: TempDir,
}

impl Browser {
    /// `None` where there is none, which is said.
    fn find() -> Option<Self> {
        let named = std::env::var_os("NOWAIT_BROWSER").map(PathBuf::from);
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let on_path = |name: &str| std::env::split_paths(&paths).map(|dir| dir.join(name)).find(|path| path.is_file());
        let program = named.or_else(|| ["chromium", "google-chrome", "chromium-browser"].into_iter().find_map(on_path));
        if program.is_none() {
            eprintln!("skipped: no chromium or google-chrome on PATH, and NOWAIT_BROWSER is not set");
        }
        Some(Self { program: program?, dir: TempDir::new().unwrap() })
    }

    /// Returns its output and its log.
    fn run(&self, page: &Path, arguments: &[&str]) -> (String, String) {
        let (out, log) = (self.dir.path().join("out"), self.dir.path().join("log"));
        let mut command = Command::new(&self.program);
        // As root it does not run in its sandbox. What it asks of its maker by itself is not the
        // page's.
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--enable-logging=stderr", "--window-size=1280,3000"]).args(arguments);
        command.arg(format!("--user-data-dir={}", self.dir.path().join("profile").display()));
        command.arg(format!("file://{}", page.display()));
        command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&log).unwrap()).stdin(Stdio::null());
        // With its own processes in a group, so that none outlives this test.
        let mut child = command.process_group(0).spawn().unwrap();
        let status = ended(&mut child);
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        assert!(status, "{} {arguments:?}: {}", self.program.display(), read(&log));
        (read(&out), read(&log))
    }

    fn made(&self, page: &Path, name: &str, arguments: &[&str]) -> Vec<u8> {
        let path = self.dir.path().join(name);
        let kind = if name.ends_with(".pdf") { "print-to-pdf" } else { "screenshot" };
        let kind = format!("--{kind}={}", path.display());
        let (_, log) = self.run(page, &[&[kind.as_str()], arguments].concat());
        fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}: {log}"))
    }
}

fn ended(child: &mut Child) -> bool {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        if began.elapsed() > PATIENCE {
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            return child.wait().is_ok_and(|status| status.success());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn complaints(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("CONSOLE")).collect()
}

#[test]
fn a_browser_shows_every_table_and_asks_for_nothing() {
    let Some(browser) = Browser::find() else { return };
    let dir = TempDir::new().unwrap();
    let report = made();
    let page = page_of(&report, dir.path());
    let (dom, log) = browser.run(&page, &["--dump-dom"]);
    assert_eq!(complaints(&log), [""; 0]);
    let mut tables: Vec<String> = vec!["map".to_owned(), "stall gaps".to_owned()];
    for row in report["rows"].as_array().unwrap() {
        // As a browser writes an attribute that holds these.
        let table = row["table"].as_str().unwrap().replace('&', "&amp;");
        tables.extend(["speeds", "figures"].map(|kind| format!("{table} {kind}")));
        assert!(!dom.contains("<script"), "an element out of a string");
    }
    let escaped = |name: &str| name.replace('<', "&lt;").replace('>', "&gt;");
    for table in tables {
        // Newer browsers escape < and > in attributes, too.
        let names = [&table, &escaped(&table)].map(|name| format!("data-table=\"{name}\""));
        assert!(names.iter().any(|name| dom.contains(name.as_str())), "{table}");
    }
    assert!(dom.matches("<svg").count() > 20 && dom.contains("Partial: interrupted"));

    // That a request, and an error, would have been seen.
    let control = dir.path().join("control.html");
    let text = fs::read_to_string(&page).unwrap();
    fs::write(&control, text.replace("<main>", "<main><img src=\"http://127.0.0.1:9/x.png\">")).unwrap();
    let (_, log) = browser.run(&control, &["--dump-dom"]);
    assert!(complaints(&log).iter().any(|line| line.contains("127.0.0.1")), "{log}");
}

#[test]
fn the_page_can_be_seen_in_light_and_dark_and_be_printed() {
    let Some(browser) = Browser::find() else { return };
    let dir = TempDir::new().unwrap();
    let page = page_of(&made(), dir.path());
    let blank = dir.path().join("blank.html");
    fs::write(&blank, "<!DOCTYPE html><title>nothing</title>").unwrap();
    let (light, dark) = ("--blink-settings=preferredColorScheme=1", "--blink-settings=preferredColorScheme=0");
    let nothing = browser.made(&blank, "blank.png", &[light]);
    let [light, dark] = [("light.png", light), ("dark.png", dark)].map(|(name, scheme)| {
        let picture = browser.made(&page, name, &[scheme]);
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10 * nothing.len(), "{name}: {}", picture.len());
        picture
    });
    assert_ne!(light, dark);
    let (nothing, printed) = (browser.made(&blank, "blank.pdf", &[]), browser.made(&page, "page.pdf", &[]));
    assert!(printed.starts_with(b"%PDF") && printed.len() > 10 * nothing.len(), "{}", printed.len());
    let pages =
        |pdf: &[u8]| pdf.windows(12).filter(|bytes| bytes == b"/Type /Page\n" || bytes == b"/Type /Page ").count();
    assert!(pages(&printed) > pages(&nothing));
}

#[test]
fn what_is_no_report_is_5_and_both_on_stdout_is_2() {
    let dir = TempDir::new().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nowait-bench"));
        let output = command.args(arguments).current_dir(dir.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    fs::write(dir.path().join("text"), "not JSON").unwrap();
    fs::write(dir.path().join("other"), "{\"rounds\": []}").unwrap();
    for path in ["text", "other", "nonexistent", "/"] {
        let (code, message) = run(&["--from", path, "--report", "page.html"]);
        assert!(code == Some(5) && message.contains(path) && message.contains("--from"), "{message}");
    }
    assert!(!dir.path().join("page.html").exists());
    assert_eq!(run(&["--from", "text", "--json", "-", "--report", "-"]).0, Some(2));
    assert_eq!(run(&["reads", "--from", "text"]).0, Some(2));
}
