//! `include/nowait.h` is what cbindgen makes of `src`, and `nowait.map` lists what it declares.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::crate_dir;

/// Entry points in the order of the header. cbindgen follows `mod submit` and `mod change` of the queue.
const SOURCES: [&str; 14] = [
    "src/instance.rs",
    "src/file.rs",
    "src/vectored.rs",
    "src/space.rs",
    "src/metadata.rs",
    "src/lock.rs",
    "src/names.rs",
    "src/gather.rs",
    "src/cache.rs",
    "src/log.rs",
    "src/reader.rs",
    "src/copy.rs",
    "src/queue/mod.rs",
    "src/probe.rs",
];

fn generated() -> String {
    let dir = crate_dir();
    let config = cbindgen::Config::from_file(dir.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(dir.join(source));
    }
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let header = String::from_utf8(header).unwrap();
    // Rustdoc's sections are for readers of Rust.
    let lines: Vec<&str> = header.lines().collect();
    let mut kept = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_rusts = line.trim() == "// # Safety"
            || (line.trim() == "//" && lines.get(at + 1).is_some_and(|next| next.trim() == "// # Safety"));
        if !is_rusts {
            kept.push(*line);
        }
    }
    kept.join("\n") + "\n"
}

fn committed() -> String {
    fs::read_to_string(crate_dir().join("include/nowait.h")).unwrap()
}

/// `NOWAIT_WRITE_HEADER=1` writes it anew.
#[test]
fn the_header_is_that_of_the_sources() {
    let path = crate_dir().join("include/nowait.h");
    let generated = generated();
    if std::env::var_os("NOWAIT_WRITE_HEADER").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(generated.lines()).position(|(one, other)| one != other);
    assert!(
        committed == generated,
        "include/nowait.h is not what src has (from line {:?}); run NOWAIT_WRITE_HEADER=1 cargo test -p nowait-c --test header",
        differs.map(|line| line + 1)
    );
}

/// Names of functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = committed();
    let code: String =
        header.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect();
    let calls = code.match_indices('(').filter_map(|(at, _)| {
        let name = code[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        name.starts_with("nowait_").then(|| name.to_owned())
    });
    calls.collect()
}

#[test]
fn the_version_script_lists_the_functions_of_the_header() {
    let map = fs::read_to_string(crate_dir().join("nowait.map")).unwrap();
    let listed: BTreeSet<String> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("nowait_"))
        .map(str::to_owned)
        .collect();
    assert!(listed.len() > 40);
    assert_eq!(listed, declared());
}

#[test]
fn the_versions_are_those_of_the_crate() {
    let numbers = env!("CARGO_PKG_VERSION").split('.').map(|number| number.parse::<u32>().unwrap());
    let macros = [nowait_c::NOWAIT_VERSION_MAJOR, nowait_c::NOWAIT_VERSION_MINOR, nowait_c::NOWAIT_VERSION_PATCH];
    assert!(numbers.eq(macros));
}

/// Each function says who may call it.
#[test]
fn every_function_says_which_threads_may_call_it() {
    let header = committed();
    for name in declared() {
        let at = header.find(&format!("{name}(")).unwrap();
        let text: Vec<&str> = header[..at].lines().rev().skip(1).take_while(|line| line.starts_with("//")).collect();
        let text: Vec<&str> = text.into_iter().rev().map(|line| line.trim_start_matches('/').trim()).collect();
        let text = text.join(" ");
        let refers =
            ["as nowait_", "As nowait_", "like nowait_", "See nowait_"].iter().any(|words| text.contains(words));
        assert!(text.contains("Threads:") || text.contains("this thread") || refers, "{name}:\n{text}");
    }
}
