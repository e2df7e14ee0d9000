//! Temporary directories, on systems where tests mount no file systems.

use std::convert::Infallible;
use std::path::Path;

use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ext4,
    Tmpfs,
}

/// Never exists.
pub(crate) struct Mount(Infallible);

impl Mount {
    pub(crate) fn or_skip(kind: Kind) -> Option<Mount> {
        eprintln!("skipped: {kind:?}: only tests on Linux mount file systems");
        None
    }

    pub(crate) fn sized_or_skip(kind: Kind, _bytes: u64) -> Option<Mount> {
        Mount::or_skip(kind)
    }

    pub(crate) fn path(&self) -> &Path {
        match self.0 {}
    }
}

/// One test, which prints `skipped:`.
#[allow(unused_macros)]
macro_rules! on_every_file_system {
    ($test:path) => {
        #[test]
        fn other_file_systems() {
            $test($crate::common::mounts::Kind::Ext4);
        }
    };
}
#[allow(unused_imports)]
pub(crate) use on_every_file_system;

pub(crate) fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("nowait-test-").tempdir().unwrap()
}
