//! Checks the repository's Markdown pages: every link leads somewhere, the book contains every page, and the page of
//! each crate in a registry stands alone.

use std::path::{Component, Path, PathBuf};

fn root() -> Option<PathBuf> {
    let root = normal(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    if root.join("docs/SUMMARY.md").is_file() {
        return Some(root);
    }
    println!("skipped: this is not a clone of the repository");
    None
}

/// The path without `..`, whether or not it exists.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Adds the Markdown files below a directory, without build directories and hidden ones.
fn add_pages(dir: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        let is_built = ["target", "node_modules", "site-packages"].contains(&&*name);
        if path.is_dir() && !path.is_symlink() && !is_built && !name.starts_with('.') {
            add_pages(&path, pages);
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
}

fn pages_below(dir: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    add_pages(dir, &mut pages);
    pages.sort();
    pages
}

/// The text without code: neither links nor headings are in it.
fn prose(page: &Path) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim_start();
        let ticks = &trimmed[..trimmed.len() - trimmed.trim_start_matches('`').len()];
        match fence {
            None if ticks.len() >= 3 => fence = Some(ticks),
            None => lines.push(line),
            Some(open) if trimmed.trim_end() == open => fence = None,
            Some(_) => {}
        }
    }
    assert!(fence.is_none(), "{}: a code block has no end", page.display());
    lines.join("\n")
}

/// The targets of `[text](target)`. Code between backticks contains none.
fn links(prose: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = prose;
    while let Some(at) = rest.find(['`', ']']) {
        if let Some(code) = rest[at..].strip_prefix('`') {
            // A link's text may be code: the bracket after it is found next.
            rest = code.split_once('`').map_or("", |(_, after)| after);
        } else if let Some(target) = rest[at..].strip_prefix("](") {
            let (target, after) = target.split_once(')').unwrap_or((target, ""));
            found.push(target);
            rest = after;
        } else {
            rest = &rest[at + 1..];
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(prose: &str) -> Vec<String> {
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let mut anchors: Vec<String> = Vec::new();
    for heading in headings {
        let mut text = String::new();
        let mut rest = heading.trim_start_matches('#').trim();
        while let Some((before, link)) = rest.split_once("](") {
            text.push_str(before);
            rest = link.split_once(')').map_or("", |(_, after)| after);
        }
        text.push_str(rest);
        let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let anchor = kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase();
        let again = (1..).map(|number| format!("{anchor}-{number}")).find(|name| !anchors.contains(name));
        anchors.push(if anchors.contains(&anchor) { again.unwrap() } else { anchor });
    }
    anchors
}

fn is_absolute(target: &str) -> bool {
    ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Why a link leads nowhere.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let found = if path.is_empty() { page.to_owned() } else { normal(&page.parent().unwrap().join(path)) };
    if !found.exists() {
        return Some(format!("{}: there is no {path}", page.display()));
    }
    let anchor = anchor.filter(|_| found.extension().is_some_and(|extension| extension == "md"))?;
    let known = anchors(&prose(&found));
    (!known.iter().any(|name| name == anchor))
        .then(|| format!("{}: {path} has no #{anchor}: {known:?}", page.display()))
}

#[test]
fn links_lead_somewhere() {
    let Some(root) = root() else { return };
    let mut checked = 0;
    let mut faults = Vec::new();
    for page in pages_below(&root) {
        let prose = prose(&page);
        let targets = links(&prose).into_iter().filter(|target| !is_absolute(target));
        for target in targets {
            faults.extend(fault(&page, target));
            checked += 1;
        }
    }
    assert!(checked > 300, "only {checked} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.md");
    let text = "# A `b` [c](d)\n\n## A b c\n```\n[not](a-link)\n# not-a-heading\n```\n\
                `[nor](this)` [is `x`](page.md#a-b-c-1)\n";
    std::fs::write(&page, text).unwrap();
    let prose = prose(&page);
    assert_eq!(links(&prose), ["d", "page.md#a-b-c-1"]);
    assert_eq!(anchors(&prose), ["a-b-c", "a-b-c-1"]);
    assert_eq!(fault(&page, "page.md#a-b-c-1"), None);
    assert_eq!(fault(&page, "#a-b-c"), None);
    assert!(fault(&page, "#d").is_some() && fault(&page, "other.md").is_some());
}

/// The hidden lines of the Rust blocks of a page: rustdoc compiles and omits them, and a forge shows them.
fn hidden_lines(text: &str) -> Vec<&str> {
    let mut hidden = Vec::new();
    let mut fence: Option<(&str, bool)> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let ticks = &trimmed[..trimmed.len() - trimmed.trim_start_matches('`').len()];
        match fence {
            None if ticks.len() >= 3 => fence = Some((ticks, trimmed[ticks.len()..].starts_with("rust"))),
            None => {}
            Some((open, _)) if trimmed.trim_end() == open => fence = None,
            Some((_, is_rust)) if is_rust && (trimmed == "#" || trimmed.starts_with("# ")) => hidden.push(line),
            Some(_) => {}
        }
    }
    hidden
}

/// Symptom: lines that rustdoc hides were shown on a forge, and the block did not compile as pasted.
#[test]
fn rust_blocks_of_pages_hide_no_lines() {
    let Some(root) = root() else { return };
    let shown = |page: &Path| page.starts_with(root.join("docs")) || page.ends_with("README.md");
    let pages: Vec<_> = pages_below(&root).into_iter().filter(|page| shown(page)).collect();
    assert!(pages.len() > 30, "only {} pages were found", pages.len());
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let hidden = hidden_lines(&text);
        assert!(hidden.is_empty(), "{}: {hidden:?}", page.display());
    }
    let text = "# A\n```sh\n# b\n```\n```rust\n#[test]\n# c\n#\n```\n# D\n````rust,ignore\n```\n  # e\n````\n";
    assert_eq!(hidden_lines(text), ["# c", "#", "  # e"]);
}

#[test]
fn the_book_contains_every_page() {
    let Some(root) = root() else { return };
    let docs = root.join("docs");
    let summary = prose(&docs.join("SUMMARY.md"));
    let mut in_book: Vec<_> = links(&summary).into_iter().map(|link| docs.join(link)).collect();
    in_book.sort();
    // tools/book adds the records.
    let is_record = |page: &Path| page.parent().and_then(Path::parent) == Some(&docs.join("measurements"));
    let pages: Vec<_> =
        pages_below(&docs).into_iter().filter(|page| !page.ends_with("SUMMARY.md") && !is_record(page)).collect();
    assert!(pages.len() > 20, "only {} pages were found", pages.len());
    assert_eq!(in_book, pages, "docs/SUMMARY.md lists each page of docs/ once");
}

#[test]
fn pages_of_registries_stand_alone() {
    let Some(root) = root() else { return };
    let crates = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut checked = 0;
    for folder in crates.chain([root.join("bench")]) {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if manifest.lines().any(|line| line == "publish = false") && !folder.join("pyproject.toml").exists() {
            continue;
        }
        let page = folder.join("README.md");
        assert!(page.is_file(), "{} has no README.md for its registry", folder.display());
        assert!(!manifest.contains("../README.md"), "{} has the page of another crate", folder.display());
        let prose = prose(&page);
        let relative: Vec<_> = links(&prose).into_iter().filter(|target| !is_absolute(target)).collect();
        assert!(relative.is_empty(), "{}: a registry does not have {relative:?}", page.display());
        let lines = std::fs::read_to_string(&page).unwrap().lines().count();
        assert!(lines <= 40, "{} has {lines} lines", page.display());
        checked += 1;
    }
    assert!(checked >= 8, "only {checked} crates were found");
}
