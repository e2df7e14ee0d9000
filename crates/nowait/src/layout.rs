//! Compares ARCHITECTURE.md with the sources: the order of the files, the files with `unsafe`, and the names of tests.
//! Also checks the items of `lib.rs`, and the names of types in all crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Module = Vec<String>;

struct Sources {
    /// The code of each file, without comments and tests.
    code: BTreeMap<String, String>,
    modules: BTreeMap<Module, String>,
    /// The full path of a name that a module exports again.
    exported: BTreeMap<(Module, String), Module>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read_below(dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("target") {
            continue;
        } else if path.is_dir() {
            read_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.insert(path, text);
        }
    }
}

fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').filter(|part| !["lib", "mod"].contains(part)).map(str::to_owned).collect()
}

/// The paths of a `use` declaration.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some((head, body)) = tree.strip_suffix('}').and_then(|tree| tree.split_once('{')) else {
        return match tree.split(" as ").next() {
            Some("") | None => {}
            Some(path) => paths.push(format!("{prefix}{path}")),
        };
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(body[start..at].trim(), &format!("{prefix}{head}"), paths);
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths of all `use` declarations, and whether they export.
fn uses(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = code[line..at].trim();
        if before.is_empty() || before.starts_with("pub") {
            let tree = code[at + 4..].split(';').next().unwrap_or_default();
            let mut paths = Vec::new();
            expand(&tree.split_whitespace().collect::<Vec<_>>().join(" "), "", &mut paths);
            // In a module within the file, `super` is the file.
            let is_inner = code[line..].starts_with(' ');
            let from_file = |path: String| match path.strip_prefix("super::") {
                Some(name) if is_inner => format!("self::{name}"),
                _ => path,
            };
            found.extend(paths.into_iter().map(|path| (!before.is_empty(), from_file(path))));
        }
    }
    found
}

impl Sources {
    fn read() -> Option<Self> {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        if !src.is_dir() || !root().join("ARCHITECTURE.md").is_file() {
            println!("skipped: this is not a clone of the repository");
            return None;
        }
        let mut files = BTreeMap::new();
        read_below(&src, &mut files);
        let mut code = BTreeMap::new();
        for (path, text) in files {
            let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
            let text = text.split("\n#[cfg(all(test").next().unwrap_or_default();
            let name = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
            code.insert(name, without_comments(text));
        }
        let modules = code.keys().map(|file| (module_of(file), file.clone())).collect();
        let mut sources = Sources { code, modules, exported: BTreeMap::new() };
        for (file, code) in &sources.code {
            for (exports, path) in uses(code) {
                if let (true, Some(full)) = (exports, sources.full(&module_of(file), &path)) {
                    let name = full.last().cloned().unwrap_or_default();
                    sources.exported.insert((module_of(file), name), full);
                }
            }
        }
        Some(sources)
    }

    /// The path from the crate's root, or none if it leads to another crate.
    fn full(&self, module: &Module, path: &str) -> Option<Module> {
        let mut parts = path.split("::").map(str::to_owned).peekable();
        let mut full = module.clone();
        match parts.peek()?.as_str() {
            "crate" => full.clear(),
            "self" => {}
            "super" => {
                while parts.next_if(|part| part == "super").is_some() {
                    full.pop();
                }
                return Some(full.into_iter().chain(parts).collect());
            }
            first => {
                full.push(first.to_owned());
                self.modules.get(&full)?;
            }
        }
        Some(full.into_iter().chain(parts.skip(1)).collect())
    }

    /// The file that declares what a path leads to.
    fn file_of(&self, path: &Module) -> &str {
        let mut path = path.clone();
        for _ in 0..6 {
            let length = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length])).unwrap();
            let next = path.get(length).map(|name| (path[..length].to_vec(), name.clone()));
            match next.and_then(|next| self.exported.get(&next)) {
                Some(full) if *full != path => path = full.iter().chain(&path[length + 1..]).cloned().collect(),
                _ => return &self.modules[&path[..length]],
            }
        }
        panic!("{path:?} is exported in a circle");
    }

    /// The files that a file uses.
    fn used_by(&self, file: &str) -> BTreeSet<&str> {
        let (module, code) = (module_of(file), &self.code[file]);
        let declared = uses(code).into_iter().filter(|(exports, _)| !exports || !file.ends_with("mod.rs"));
        let inline = code.match_indices("crate::").map(|(at, _)| {
            let rest = &code[at..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && !['_', ':'].contains(&c)).unwrap_or(rest.len());
            rest[..end].trim_end_matches(':').to_owned()
        });
        let paths = declared.map(|(_, path)| path).chain(inline.filter(|path| path != "crate"));
        paths.filter_map(|path| self.full(&module, &path)).map(|path| self.file_of(&path)).collect()
    }
}

fn page() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// The place of each file in the list, and the files that the list marks with `[u]`.
fn listed() -> (BTreeMap<String, usize>, BTreeSet<String>) {
    let page = page();
    let list = page.split("## The files of").nth(1).unwrap().split("```").nth(1).unwrap();
    let (mut places, mut marked, mut folder) = (BTreeMap::new(), BTreeSet::new(), String::new());
    let parent = |file: &str| file.rsplit_once('/').map_or(String::new(), |(parent, _)| format!("{parent}/"));
    for line in list.trim().lines() {
        let mut base = if line.starts_with(' ') { folder.clone() } else { String::new() };
        for (at, entry) in line.trim_start().split("  ").next().unwrap().split(", ").enumerate() {
            let name = entry.trim_end_matches(" [u]");
            let file = format!("{base}{name}");
            if at == 0 {
                base = parent(&file);
                folder = if line.starts_with(' ') { folder } else { base.clone() };
            }
            if entry != name {
                marked.insert(file.clone());
            }
            let place = places.len();
            assert!(places.insert(file, place).is_none(), "{name} is listed twice: {line}");
        }
    }
    (places, marked)
}

/// The circles of files that the page names below the list.
fn circles() -> Vec<BTreeSet<String>> {
    let page = page();
    let list = page.split("The files of these circles").nth(1).unwrap().split("\n## ").next().unwrap();
    let files = |circle: &str| circle.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    list.split("\n* ").skip(1).map(files).collect()
}

#[test]
fn systems_differ_in_few_files() {
    let Some(sources) = Sources::read() else { return };
    let may = ["sys/", "engine/kernel/", "engine/tokio.rs", "file/as_std.rs", "lib.rs", "layout.rs", "pages.rs"];
    let others = sources.code.iter().filter(|(file, _)| !may.iter().any(|start| file.starts_with(start)));
    let depend: Vec<_> = others.filter(|(_, code)| depends_on_system(code)).map(|(file, _)| file).collect();
    assert!(depend.is_empty(), "only sys/ depends on the system: {depend:?}");
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn depends_on_system(code: &str) -> bool {
    ["target_os", "cfg(unix)", "cfg(windows)", "std::os::", "rustix::", "libc::"].iter().any(|name| code.contains(name))
}

#[test]
fn systems_differ_in_few_files_of_the_python_package() {
    if Sources::read().is_none() {
        return;
    }
    let src = root().join("crates/nowait-python/src");
    let mut files = BTreeMap::new();
    read_below(&src, &mut files);
    let depend = files.iter().filter(|(_, text)| depends_on_system(&without_comments(text)));
    let depend: BTreeSet<_> = depend.map(|(path, _)| path.strip_prefix(&src).unwrap().to_str().unwrap()).collect();
    let os = ["lib.rs", "os/eventfd.rs", "os/mod.rs", "os/unix.rs", "os/windows.rs"];
    assert_eq!(depend, BTreeSet::from(os), "only os/ and the list of modules depend on the system");
}

#[test]
fn files_use_those_above_them() {
    let Some(sources) = Sources::read() else { return };
    let (places, _) = listed();
    let used_by: BTreeMap<_, _> = places.keys().map(|file| (file.as_str(), sources.used_by(file))).collect();
    let circles = circles();
    for (file, used) in &used_by {
        assert!(sources.code.contains_key(*file), "{file} does not exist");
        for used in used.iter().filter(|used| places.get(**used).is_some_and(|at| *at > places[*file])) {
            let is_named = circles.iter().any(|circle| circle.contains(*file) && circle.contains(*used));
            assert!(is_named, "{file} uses {used}, which is below, and ARCHITECTURE.md names no circle with both");
        }
    }
    // Each uses another file of its circle, and another uses it.
    for circle in &circles {
        for file in circle {
            let others = || circle.iter().filter(|other| *other != file);
            let uses =
                used_by.get(file.as_str()).is_some_and(|used| others().any(|other| used.contains(other.as_str())));
            let is_used = others().any(|other| used_by[other.as_str()].contains(file.as_str()));
            assert!(uses && is_used, "{file} is in no circle of {circle:?}");
        }
    }
    let arrows: usize = used_by.values().map(BTreeSet::len).sum();
    assert!(arrows > 400, "only {arrows} uses were found");
    let declares = |code: &str| !["fn ", "struct ", "enum ", "trait "].iter().any(|word| code.contains(word));
    for (file, code) in &sources.code {
        let is_for_tests = ["layout.rs", "op/fixture.rs", "pages.rs"].contains(&file.as_str());
        assert!(places.contains_key(file) || is_for_tests || declares(code), "{file} is not in ARCHITECTURE.md");
    }
}

#[test]
fn no_file_is_longer_than_a_reader_can_hold() {
    const LINES_MAX: usize = 700;
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    read_below(&src, &mut files);
    for (path, text) in files {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines: divide it by its concepts", path.display());
    }
}

/// A type that a file declares outside of its tests, and whether it is private.
fn declared(line: &str) -> Option<(&str, bool)> {
    let code = line.trim_start();
    let (is_private, item) = match (code.strip_prefix("pub "), code.strip_prefix("pub(")) {
        (Some(item), _) => (false, item),
        (None, Some(rest)) => (true, rest.split_once(") ")?.1),
        (None, None) => (true, code),
    };
    // An indented `type` is an associated one.
    let kinds = ["struct ", "enum ", "union ", "trait ", "unsafe trait ", "type "];
    let kind = kinds.into_iter().find(|kind| item.starts_with(kind) && (*kind != "type " || code == line))?;
    let name = item[kind.len()..].split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    name.starts_with(char::is_uppercase).then_some((name, is_private))
}

/// Two declarations in one file are alternatives (`#[cfg]`), or local to modules and functions.
#[test]
fn a_private_type_has_a_name_that_no_other_type_of_its_crate_has() {
    const TWICE: [(&str, &str, &str); 2] = [
        ("nowait", "Engine", "a trait, and the public enum of its implementations"),
        ("nowait-log", "Pipeline", "an alias for the type of the same name, on files"),
    ];
    if Sources::read().is_none() {
        return;
    }
    let folders = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut twice = BTreeSet::new();
    for folder in folders.chain([root().join("bench")]).filter(|folder| folder.join("src").is_dir()) {
        let krate = folder.file_name().unwrap().to_str().unwrap();
        let mut files = BTreeMap::new();
        read_below(&folder.join("src"), &mut files);
        let mut places = BTreeMap::<&str, (bool, BTreeSet<PathBuf>)>::new();
        let is_test = |path: &&PathBuf| path.ends_with("tests.rs") || path.iter().any(|part| part == "tests");
        for path in files.keys().filter(|path| !is_test(path)) {
            let is_test_module = |line: &&str| line.starts_with("mod ") && line.contains("test") && line.ends_with('{');
            let code = files[path].lines().take_while(|line| !is_test_module(line));
            for (name, is_private) in code.filter_map(declared) {
                let place = places.entry(name).or_default();
                place.0 |= is_private;
                // Each system has its own types of the same names in these folders; a build contains one.
                let of_systems = |folder: &&Path| ["sys", "os", "system"].iter().any(|name| folder.ends_with(name));
                let path =
                    if path.ends_with("tokio_absent.rs") { path.with_file_name("tokio.rs") } else { path.clone() };
                place.1.insert(path.ancestors().find(of_systems).map_or(path.clone(), Path::to_path_buf));
            }
        }
        assert!(places.len() > 5, "only {} types were found in {krate}", places.len());
        let clashing = places.iter().filter(|(_, (is_private, files))| *is_private && files.len() > 1);
        twice.extend(clashing.map(|(name, (_, files))| (krate.to_owned(), (*name).to_owned(), format!("{files:?}"))));
    }
    let known = |krate: &str, name: &str| TWICE.iter().any(|known| (known.0, known.1) == (krate, name));
    let unknown: Vec<_> = twice.iter().filter(|(krate, name, _)| !known(krate, name)).collect();
    assert!(unknown.is_empty(), "two types with one name: {unknown:#?}");
    for (krate, name, _) in TWICE {
        assert!(twice.iter().any(|clash| (&*clash.0, &*clash.1) == (krate, name)), "{krate}: {name} is unique now");
    }
}

fn has_unsafe(code: &str) -> bool {
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|form| code.contains(form))
}

#[test]
fn unsafe_is_where_it_is_named() {
    let Some(sources) = Sources::read() else { return };
    let found = sources.code.iter().filter(|(file, code)| *file != "layout.rs" && has_unsafe(code));
    assert_eq!(found.map(|(file, _)| file.clone()).collect::<BTreeSet<_>>(), listed().1);
}

/// In folders that are no crates of the workspace.
#[test]
fn unsafe_of_adapters_and_suites_is_where_it_is_named() {
    if Sources::read().is_none() {
        return;
    }
    let mut files = BTreeMap::new();
    for folder in ["integrations", "suites"] {
        read_below(&root().join(folder), &mut files);
    }
    let has_unsafe = |text: &str| text.lines().any(|line| has_unsafe(line.split("//").next().unwrap()));
    let found = files.iter().filter(|(_, text)| has_unsafe(text));
    let found: BTreeSet<_> = found.map(|(path, _)| path.strip_prefix(root()).unwrap().to_str().unwrap()).collect();
    let page = page();
    let table = page.split("contain `unsafe`:\n\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let named: BTreeSet<_> =
        table.lines().filter_map(|row| row.split('`').nth(1).filter(|name| name.ends_with(".rs"))).collect();
    assert_eq!(found, named);
}

#[test]
fn tests_of_invariants_exist() {
    if Sources::read().is_none() {
        return;
    }
    let mut files = BTreeMap::new();
    read_below(Path::new(env!("CARGO_MANIFEST_DIR")), &mut files);
    let page = page();
    let law = page.split("## What must stay true").nth(1).unwrap().split("\n## ").next().unwrap();
    let names = law.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 2 && !name.contains('.'));
    let names = names.filter(|name| name.chars().all(|c| c.is_lowercase() || c == '_')).collect::<Vec<_>>();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(files.values().any(|text| text.contains(&format!("fn {name}("))), "there is no test {name}");
    }
    let named = law.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
    for name in named {
        let exists = |folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name).is_file();
        assert!(["tests/contract", "tests/rigs", "tests", "src"].into_iter().any(exists), "there is no file {name}");
    }
}
