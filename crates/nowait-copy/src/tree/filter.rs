//! Patterns of what is copied.

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

/// Patterns for names, and those with a slash for paths.
struct Patterns {
    names: GlobSet,
    paths: GlobSet,
}

impl Filter {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        Ok(Filter { include: Patterns::new(&options.include)?, exclude: Patterns::new(&options.exclude)? })
    }

    /// False if paths need not be put together: there are no patterns.
    pub(super) fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// True if a directory, with all that is in it, or a file is left out. `path` begins below the
    /// source.
    pub(super) fn excludes(&self, path: &Path, name: &OsStr, is_directory: bool) -> bool {
        if self.exclude.matches(path, name) {
            return true;
        }
        !is_directory && !self.include.is_empty() && !self.include.matches(path, name)
    }
}

impl Patterns {
    fn new(patterns: &[String]) -> Result<Self> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let wrong = |error: globset::Error| {
                Failure::new(Operation::Copy, Path::new(pattern), FailureKind::Usage)
                    .with_detail(format!("a pattern that cannot be read: {}", error.kind()))
                    .with_advice("see https://docs.rs/globset for the syntax")
            };
            let (text, set) = match pattern.strip_prefix('/') {
                Some(below) => (below, &mut paths),
                None if pattern.trim_end_matches('/').contains('/') => (pattern.as_str(), &mut paths),
                None => (pattern.as_str(), &mut names),
            };
            let glob = GlobBuilder::new(text.trim_end_matches('/')).literal_separator(true).build().map_err(wrong)?;
            set.add(glob);
        }
        let built = |set: &GlobSetBuilder| {
            set.build().map_err(|error| {
                Failure::new(Operation::Copy, Path::new(""), FailureKind::Usage)
                    .with_detail(format!("patterns that are too large together: {}", error.kind()))
            })
        };
        Ok(Patterns { names: built(&names)?, paths: built(&paths)? })
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty()
    }

    fn matches(&self, path: &Path, name: &OsStr) -> bool {
        self.names.is_match(Path::new(name)) || self.paths.is_match(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_copied(options: Options, path: &str) -> bool {
        let filter = Filter::new(&options).unwrap();
        let path = Path::new(path);
        !filter.excludes(path, path.file_name().unwrap(), false)
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
        assert!(!filter.excludes(Path::new("src"), OsStr::new("src"), true));
        assert!(filter.excludes(Path::new("a/target"), OsStr::new("target"), true));
    }

    #[test]
    fn a_pattern_that_cannot_be_read_is_a_wrong_argument() {
        let Err(failure) = Filter::new(&Options::new().include("a[")) else { panic!("it was taken") };
        assert_eq!(failure.kind(), FailureKind::Usage);
        assert!(failure.to_string().contains("a["), "{failure}");
    }
}
