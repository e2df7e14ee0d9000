//! Makes anew what is generated in the pages of the repository, between two marks.
//!
//! ```sh
//! cargo run --example docs               # in bench/; `make docs` runs this
//! cargo run --example docs -- --check    # writes nothing, says which page is stale; exit code 1 if one is
//! ```
//!
//! FILE is relative to the page, and the text between the marks is not to be edited:
//!
//! ```text
//! <!-- generated: FILE... [options] -->
//! <!-- end -->
//! ```
//!
//! Without options each case has a row and each way a cell: median operations a second, (slowest round
//! - fastest round, as fractions of it), processor time of the whole process per operation.
//!
//! ```text
//! --tables A,B    only these tables of the run
//! --cases A;B     only these cases; patterns as of a shell
//! --transpose     a row for each way, a cell for each case
//! --columns A,B   a row for each case and way, with these columns: those of `column`, or
//!                 NAME=FIELD.FIELD/DIVISOR of the row's JSON
//! --records       of all files in the page's folder: when they were measured, and at which commit
//! --shares        FILE lists rows of runs; speed as a share of the best way's in the same rounds
//! --bars          FILE lists what is to be reached: the ratio to the best of the ways named, and a
//!                 finding: "met" if its interval lies above the bar, "short" if below, else "cannot tell"
//! --losses        numbers of rows of the current records in which the library loses, and of latencies
//! --lost, --late, --current    these rows, these latencies, the current records
//! --topics, --others           pages with a current record, and all others
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod losses;
mod record;
mod tables;

/// Why a page cannot be made.
pub(crate) type Result<T> = std::result::Result<T, String>;

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("bench/ is in the repository").to_owned()
}

/// Pages of a folder, and of those below it that are not of builds.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if name != "target" && !name.starts_with('.') {
                pages(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// A page with its tables made anew.
fn renewed(text: &str, folder: &Path) -> Result<String> {
    let (mut made, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(BEGIN) {
        let (before, marked) = rest.split_at(start);
        let parts = marked[BEGIN.len()..].split_once(" -->\n").and_then(|(options, after)| {
            let (_, after) = after.split_once(END)?;
            (!options.contains('\n')).then_some((options, after))
        });
        let (options, after) = parts.ok_or("a mark without its end")?;
        let lines = tables::made(options, folder).map_err(|why| format!("{options}: {why}"))?;
        made += &format!("{before}{BEGIN}{options} -->\n\n{}\n\n{END}", lines.join("\n"));
        rest = after;
    }
    Ok(made + rest)
}

/// Pages that are not what they are to be, with what that is.
fn stale() -> Result<Vec<(PathBuf, String)>> {
    let (mut paths, mut found) = (Vec::new(), Vec::new());
    pages(&root(), &mut paths);
    paths.sort();
    for path in paths {
        let at = |why: String| format!("{}: {why}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| at(error.to_string()))?;
        let made = renewed(&text, path.parent().unwrap_or(&path)).map_err(at)?;
        if made != text {
            found.push((path, made));
        }
    }
    Ok(found)
}

fn run(check: bool) -> Result<bool> {
    let stale = stale()?;
    for (path, made) in &stale {
        let name = path.strip_prefix(root()).unwrap_or(path).display();
        if check {
            println!("{name}: stale; run `make docs`");
        } else {
            fs::write(path, made).map_err(|error| format!("{name}: {error}"))?;
            println!("{name}: made anew");
        }
    }
    let unused = losses::Current::load()?.unused_causes()?;
    unused.iter().for_each(|text| println!("causes.tsv: no lost row has this cause any more: {text}"));
    Ok(!check || (stale.is_empty() && unused.is_empty()))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let made = match &words[..] {
        [] => run(false),
        [word] if word == "--check" => run(true),
        _ => Err("usage: docs [--check]".to_owned()),
    };
    made.map_or_else(
        |why| {
            eprintln!("docs: {why}");
            ExitCode::FAILURE
        },
        |fresh| if fresh { ExitCode::SUCCESS } else { ExitCode::FAILURE },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_they_are_made() {
        let stale: Vec<PathBuf> = stale().unwrap().into_iter().map(|(path, _)| path).collect();
        assert!(stale.is_empty(), "run `make docs`: {stale:?}");
        assert_eq!(losses::Current::load().unwrap().unused_causes().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_outside_of_marks_stays() {
        let folder = losses::folder();
        assert_eq!(renewed("text\n", &folder).unwrap(), "text\n");
        let page = "a\n<!-- generated: --losses -->\nold\n<!-- end -->\nb\n";
        let made = renewed(page, &folder).unwrap();
        assert!(made.starts_with("a\n<!-- generated: --losses -->\n\n* `nowait`: "), "{made}");
        assert!(made.ends_with("\n\n<!-- end -->\nb\n") && !made.contains("old"), "{made}");
        assert!(renewed("<!-- generated: --losses -->\n", &folder).is_err());
        assert!(renewed("<!-- generated: none.json -->\n<!-- end -->\n", &folder).is_err());
    }
}
