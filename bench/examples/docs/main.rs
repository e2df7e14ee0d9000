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
//! --ratios        FILE lists cases and ways: the ratio to the best of the ways named, and a finding:
//!                 "faster" or "slower" if its whole interval lies on one side of 1, else "cannot tell"
//! --losses        numbers of rows of the current records in which the library loses, and of latencies
//! --lost, --late, --current    these rows, these latencies, the current records
//! --pages         all pages of measurements, those with a current record first
//! ```

use std::fs;
use std::path::{Path, PathBuf};

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

/// Entries of a folder, in order.
pub(crate) fn listed(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Pages of a folder, and of those below it that are not of builds.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let is_of_builds =
        |path: &Path| path.file_name().is_some_and(|name| name == "target" || name.as_encoded_bytes()[0] == b'.');
    let below = |path: PathBuf| match () {
        () if path.is_symlink() || is_of_builds(&path) => Vec::new(),
        () if path.is_dir() => pages(&path),
        () if path.extension().is_some_and(|extension| extension == "md") => vec![path],
        () => Vec::new(),
    };
    listed(folder).into_iter().flat_map(below).collect()
}

/// A page with its tables made anew.
fn renewed(text: &str, folder: &Path) -> Result<String> {
    let (mut made, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(BEGIN) {
        let (before, marked) = rest.split_at(start);
        let parts = marked[BEGIN.len()..].split_once(" -->\n");
        let parts = parts.and_then(|(options, after)| Some((options, after.split_once(END)?.1)));
        let (options, after) = parts.ok_or("a mark without its end")?;
        let lines = tables::made(options, folder).map_err(|why| format!("{options}: {why}"))?;
        made += &format!("{before}{BEGIN}{options} -->\n\n{}\n\n{END}", lines.join("\n"));
        rest = after;
    }
    Ok(made + rest)
}

/// Pages that are not what they are to be, with what that is.
fn stale() -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for path in pages(&root()) {
        let at = |why: String| format!("{}: {why}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| at(error.to_string()))?;
        let made = renewed(&text, path.parent().unwrap_or(&path)).map_err(at)?;
        if made != text {
            found.push((path, made));
        }
    }
    Ok(found)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let check = match &words[..] {
        [] => false,
        [word] if word == "--check" => true,
        _ => return Err("usage: docs [--check]".to_owned()),
    };
    let stale = stale()?;
    for (path, made) in &stale {
        println!("{}: {}", path.display(), if check { "stale" } else { "made anew" });
        if !check {
            fs::write(path, made).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    if check && !stale.is_empty() { Err("pages are stale: run `make docs`".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_they_are_made() {
        let stale: Vec<PathBuf> = stale().unwrap().into_iter().map(|(path, _)| path).collect();
        assert!(stale.is_empty(), "run `make docs`: {stale:?}");
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
