//! Included by the attached.rs of suites whose tests are compiled with the adapter (compiled_in.py).

use std::io::Write;
use std::{env, fs, thread};

/// Adds the running test to the list of those on the adapter: its program, and its thread's name.
pub(super) fn record_test() {
    let Ok(list) = env::var("SUITE_USED") else { return };
    let program = env::current_exe().unwrap();
    let program = program.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().0;
    let mut list = fs::OpenOptions::new().append(true).create(true).open(list).unwrap();
    list.write_all(format!("{program}::{}\n", thread::current().name().unwrap_or_default()).as_bytes()).unwrap();
}
