//! Patterns that select the files to copy.

use std::ffi::OsStr;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::error::{Failure, FailureKind, Operation, Result};
use crate::options::Options;

/// The patterns of `include` and `exclude`.
pub(crate) struct Filter {
    include: Patterns,
    exclude: Patterns,
}

/// Patterns for all entries, and patterns that end in a slash, which match directories only.
struct Patterns {
    all: Globs,
    directories: Globs,
}

/// Patterns for names, and patterns with a slash in them, for paths.
struct Globs {
    names: GlobSet,
    paths: GlobSet,
}

impl Filter {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let wrong = options.include.iter().find(|pattern| pattern.ends_with('/'));
        if let Some(pattern) = wrong {
            let name = pattern.trim_end_matches('/');
            let below = if name.contains('/') { format!("{name}/**") } else { format!("**/{name}/**") };
            return Err(Failure::new(Operation::Copy, Path::new(pattern), FailureKind::Usage)
                .with_detail(
                    "a pattern that ends with a slash matches directories only, and all directories are copied",
                )
                .with_advice(format!("to copy the files in them, include {below}")));
        }
        Ok(Filter { include: Patterns::new(&options.include)?, exclude: Patterns::new(&options.exclude)? })
    }

    /// True if there are no patterns, so that no paths need to be built.
    pub(super) fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns true if a file, or a directory with its contents, is left out. `path` begins below
    /// the source. A source itself has no path, so only its name is matched.
    pub(super) fn excludes(&self, path: Option<&Path>, name: &OsStr, is_directory: bool) -> bool {
        if self.exclude.matches(path, name, is_directory) {
            return true;
        }
        !is_directory && !self.include.is_empty() && !self.include.matches(path, name, is_directory)
    }
}

impl Patterns {
    fn new(patterns: &[String]) -> Result<Self> {
        let (directories, all): (Vec<&str>, Vec<&str>) =
            patterns.iter().map(String::as_str).partition(|pattern| pattern.ends_with('/'));
        Ok(Patterns { all: Globs::new(&all)?, directories: Globs::new(&directories)? })
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.directories.is_empty()
    }

    fn matches(&self, path: Option<&Path>, name: &OsStr, is_directory: bool) -> bool {
        self.all.matches(path, name) || is_directory && self.directories.matches(path, name)
    }
}

impl Globs {
    fn new(patterns: &[&str]) -> Result<Self> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let wrong = |error: globset::Error| {
                Failure::new(Operation::Copy, Path::new(pattern), FailureKind::Usage)
                    .with_detail(format!("invalid pattern: {}", error.kind()))
                    .with_advice("see https://docs.rs/globset for the syntax")
            };
            let text = pattern.trim_end_matches('/');
            let (text, set) = match text.strip_prefix('/') {
                Some(below) => (below, &mut paths),
                None if text.contains('/') => (text, &mut paths),
                None => (text, &mut names),
            };
            set.add(GlobBuilder::new(text).literal_separator(true).build().map_err(wrong)?);
        }
        let built = |set: &GlobSetBuilder| {
            set.build().map_err(|error| {
                Failure::new(Operation::Copy, Path::new(""), FailureKind::Usage)
                    .with_detail(format!("the patterns together are too large: {}", error.kind()))
            })
        };
        Ok(Globs { names: built(&names)?, paths: built(&paths)? })
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty()
    }

    fn matches(&self, path: Option<&Path>, name: &OsStr) -> bool {
        self.names.is_match(Path::new(name)) || path.is_some_and(|path| self.paths.is_match(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_copied(options: Options, path: &str) -> bool {
        let filter = Filter::new(&options).unwrap();
        let path = Path::new(path);
        !filter.excludes(Some(path), path.file_name().unwrap(), false)
    }

    #[test]
    fn patterns_without_a_slash_are_for_names() {
        let options = || Options::new().include("*.rs").exclude("test_*");
        assert!(is_copied(options(), "a/b/lib.rs"));
        assert!(!is_copied(options(), "a/b/lib.toml"));
        assert!(!is_copied(options(), "a/test_b.rs"));
        assert!(is_copied(options(), "test_a/b.rs"), "the directory is left out by itself, as a name");
    }

    #[test]
    fn patterns_with_a_slash_are_for_paths_below_the_source() {
        let options = || Options::new().exclude("target/*/deps").exclude("/top");
        assert!(!is_copied(options(), "target/debug/deps"));
        assert!(is_copied(options(), "crate/target/debug/deps"));
        assert!(is_copied(options(), "target/debug/build/deps"));
        assert!(!is_copied(options(), "top"));
        assert!(is_copied(options(), "a/top"));
        assert!(!is_copied(Options::new().exclude("**/deps/*.d"), "a/b/deps/x.d"));
    }

    #[test]
    fn directories_need_not_be_included() {
        let filter = Filter::new(&Options::new().include("*.rs").exclude("target/")).unwrap();
        assert!(!filter.excludes(Some(Path::new("src")), OsStr::new("src"), true));
        assert!(filter.excludes(Some(Path::new("a/target")), OsStr::new("target"), true));
    }

    /// Symptom: `--exclude build/` also excluded files of that name, which were missing in backups.
    #[test]
    fn a_slash_at_the_end_is_for_directories() {
        let filter = Filter::new(&Options::new().exclude("build/").exclude("/a/b/").exclude("deep/**/x/")).unwrap();
        let excludes = |path: &str, is_directory| {
            let path = Path::new(path);
            filter.excludes(Some(path), path.file_name().unwrap(), is_directory)
        };
        for path in ["build", "sub/build", "a/b", "deep/1/2/x"] {
            assert!(excludes(path, true) && !excludes(path, false), "{path}");
        }
        assert!(!excludes("sub/a/b", true) && !excludes("builds", true));
        for (pattern, instead) in [("src/", "**/src/**"), ("/src/", "/src/**"), ("a/src/", "a/src/**")] {
            let Err(failure) = Filter::new(&Options::new().include(pattern)) else { panic!("{pattern}") };
            assert_eq!(failure.kind(), FailureKind::Usage);
            assert!(failure.to_string().ends_with(&format!("include {instead}")), "{failure}");
        }
    }

    #[test]
    fn a_source_that_was_named_has_a_name_and_no_path() {
        let filter = Filter::new(&Options::new().include("*.c").exclude("secret*").exclude("/top").exclude("/**"));
        let filter = filter.unwrap();
        let excludes = |name: &str, is_directory| filter.excludes(None, OsStr::new(name), is_directory);
        assert!(!excludes("a.c", false) && excludes("a.o", false) && excludes("secret.c", false));
        assert!(!excludes("src", true) && excludes("secrets", true) && !excludes("top", true));
    }

    #[test]
    fn a_pattern_that_cannot_be_read_is_a_wrong_argument() {
        let Err(failure) = Filter::new(&Options::new().include("a[")) else { panic!("it was taken") };
        assert_eq!(failure.kind(), FailureKind::Usage);
        assert!(failure.to_string().contains("a["), "{failure}");
    }
}
