//! Shared by the tests: where things are, compilers, and programs that are run.

#![allow(unreachable_pub)]
#![allow(dead_code)] // Each test uses a part.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;

pub fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The static library that cargo built for this test. (An older one of other features may lie beside
/// it: the one that was built last is that of these sources.)
pub fn static_library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built =
        |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let files = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let archives = files.filter(|path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libnowait_c") && name.ends_with(".a")
    });
    archives.max_by_key(|path| built(path)).unwrap_or_else(|| panic!("no libnowait_c*.a in {}", deps.display()))
}

/// A folder with the shared library, linked once for all tests of a file. (The static one has
/// hundreds of megabytes of debug information: each program would take seconds.)
pub fn shared_library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowait-c-programs");
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join(format!("libnowait.so.{}", env!("CARGO_PKG_VERSION")));
        let mut command = Command::new(crate_dir().join("install"));
        run(command.arg("link").arg(&library).env("STATIC", static_library()).env("CC", "gcc"));
        for name in [SONAME, "libnowait.so"] {
            let link = folder.join(name);
            _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&library, link).unwrap();
        }
        folder
    })
}

pub const SONAME: &str =
    concat!("libnowait.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// Whether a program is installed; says so if not.
pub fn has(program: &str, package: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if !found {
        println!("skipped: no {program} (Debian: apt-get install {package})");
    }
    found
}

/// Runs a command; its output if it succeeds, a panic with its output if not.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A language and a compiler for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compiler {
    pub program: &'static str,
    pub package: &'static str,
    pub standard: &'static str,
    /// Name of the language, for `-x`.
    pub language: &'static str,
}

pub const COMPILERS: [Compiler; 4] = [
    Compiler { program: "gcc", package: "gcc", standard: "-std=c11", language: "c" },
    Compiler { program: "g++", package: "g++", standard: "-std=c++17", language: "c++" },
    Compiler { program: "clang", package: "clang", standard: "-std=c11", language: "c" },
    Compiler { program: "clang++", package: "clang", standard: "-std=c++17", language: "c++" },
];

impl Compiler {
    /// A command that compiles with all warnings as errors.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args([self.standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_GNU_SOURCE", "-g", "-O1"]);
        command.arg("-I").arg(crate_dir().join("include"));
        command
    }

    /// Compiles a program, and links it with the shared library.
    #[track_caller]
    pub fn build(&self, source: &Path, program: &Path, more: &[&str]) {
        let libraries = shared_library();
        let mut command = self.command();
        command.args(more).args(["-x", self.language]).arg(source).args(["-x", "none", "-o"]).arg(program);
        command.arg("-L").arg(libraries).args(["-lnowait", "-lpthread"]);
        run(command.arg(format!("-Wl,-rpath,{}", libraries.display())));
    }
}

/// A folder on the disk, and not in memory.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}
