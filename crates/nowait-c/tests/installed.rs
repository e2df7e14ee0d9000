//! The installed library: what `install` puts where, what the shared library exports, and the
//! examples, which use it as programs do.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use common::{COMPILERS, Compiler, SONAME, crate_dir, folder, has, run, static_library};

/// A folder that the library is installed in.
struct Prefix(PathBuf);

impl Prefix {
    /// Installed once for all tests of this file, in cargo's folder for that.
    fn shared() -> &'static Prefix {
        static SHARED: OnceLock<Prefix> = OnceLock::new();
        SHARED.get_or_init(|| Prefix::install(Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowait-c")))
    }

    fn install(at: PathBuf) -> Prefix {
        let prefix = Prefix(at);
        prefix.script("install");
        prefix
    }

    fn script(&self, action: &str) {
        let mut command = Command::new(crate_dir().join("install"));
        command.arg(action).env("PREFIX", &self.0).env("STATIC", static_library()).env("CC", "gcc");
        // So that the engine of fio is left out wherever the tests run.
        run(command.env("FIO_SOURCE", "/none"));
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }

    /// Flags by pkg-config.
    fn flags(&self, asked: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        let output = run(command.args(asked).arg("nowait").env("PKG_CONFIG_PATH", self.path("lib/pkgconfig")));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles an example against the shared library.
    fn example(&self, compiler: &Compiler, name: &str, out: &Path) -> PathBuf {
        let program = out.join(format!("{name}-{}", compiler.program));
        let mut command = Command::new(compiler.program);
        command.args([compiler.standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_GNU_SOURCE"]);
        command.arg(crate_dir().join("examples").join(name)).arg("-I").arg(self.path("include"));
        command.arg("-L").arg(self.path("lib")).args(["-lnowait", "-lpthread", "-o"]).arg(&program);
        run(&mut command);
        program
    }

    fn run(&self, program: &Path, arguments: &[&str], input: &str) -> String {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", self.path("lib"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn has_gcc() -> bool {
    has("gcc", "gcc") && has("g++", "g++")
}

fn files(dir: &Path, found: &mut BTreeSet<String>, root: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => files(&path, found, root),
            false => drop(found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned())),
        }
    }
}

fn symbols(library: &Path) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect()
}

/// Exactly the listed functions, each with its version; and no other name of this library.
#[test]
fn the_shared_library_exports_what_is_listed() {
    if !has_gcc() {
        return;
    }
    let prefix = Prefix::shared();
    let map = fs::read_to_string(crate_dir().join("nowait.map")).unwrap();
    let version = map.split(' ').next().unwrap();
    let mut listed: BTreeSet<String> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("nowait_"))
        .map(|name| format!("{name}@@{version}"))
        .collect();
    // The version itself is a symbol, too.
    listed.insert(version.to_owned());
    let exported = symbols(&prefix.path("lib/libnowait.so"));
    let exported: BTreeSet<String> =
        exported.into_iter().map(|name| name.replace(&format!("{version}@@{version}"), version)).collect();
    assert_eq!(exported, listed);
    let output = run(Command::new("readelf").arg("-d").arg(prefix.path("lib/libnowait.so")));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("soname: [{SONAME}]")), "{text}");
    assert!(!text.contains("uring"), "it needs no library of rings: {text}");
}

#[test]
fn what_is_installed_is_removed() {
    if !has_gcc() {
        return;
    }
    let folder = folder();
    let prefix = Prefix::install(folder.path().to_path_buf());
    // Of others, in the same folders.
    fs::write(prefix.path("include/other.h"), "").unwrap();
    let mut found = BTreeSet::new();
    files(&prefix.0, &mut found, &prefix.0);
    let version = env!("CARGO_PKG_VERSION");
    let so = format!("lib/libnowait.so.{version}");
    let expected = [
        "include/nowait.h",
        "include/nowait.hpp",
        "include/other.h",
        "lib/cmake/nowait/nowait-config-version.cmake",
        "lib/cmake/nowait/nowait-config.cmake",
        "lib/libnowait.a",
        "lib/libnowait.so",
        &format!("lib/{SONAME}"),
        &so,
        "lib/pkgconfig/nowait.pc",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
    prefix.script("uninstall");
    let mut left = BTreeSet::new();
    files(&prefix.0, &mut left, &prefix.0);
    assert_eq!(left, ["include/other.h".to_owned()].into());
    assert!(!prefix.path("lib/cmake").exists());
}

#[test]
fn pkg_config_knows_it() {
    if !has_gcc() || !has("pkg-config", "pkg-config") {
        return;
    }
    let prefix = Prefix::shared();
    assert_eq!(prefix.flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    assert_eq!(prefix.flags(&["--cflags"]), [format!("-I{}", prefix.path("include").display())]);
    let libs = prefix.flags(&["--libs"]);
    assert_eq!(libs, [format!("-L{}", prefix.path("lib").display()), "-lnowait".to_owned()]);
}

/// A program with no shared library at all. The compiler adds its unwinder: libgcc_s is shared only.
#[test]
fn a_program_is_linked_statically() {
    if !has_gcc() || !has("pkg-config", "pkg-config") {
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let file = out.path().join("file");
    fs::write(&file, "0123456789").unwrap();
    for compiler in COMPILERS.iter().filter(|one| one.language == "c" && has(one.program, one.package)) {
        let program = out.path().join(compiler.program);
        let mut command = Command::new(compiler.program);
        command.args([compiler.standard, "-D_GNU_SOURCE", "-static"]).arg(crate_dir().join("examples/gather.c"));
        run(command.args(prefix.flags(&["--cflags", "--libs", "--static"])).arg("-o").arg(&program));
        assert_eq!(prefix.run(&program, &[file.to_str().unwrap(), "7:3", "0:2"], ""), "78901");
    }
}

/// Whatever the umask of who installs, and in a folder with a blank: all may read it, and
/// pkg-config's flags are whole.
#[test]
fn others_can_use_what_is_installed() {
    if !has_gcc() || !has("pkg-config", "pkg-config") {
        return;
    }
    let folder = folder();
    let at = folder.path().join("a blank");
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077 && exec \"$0\" install"]).arg(crate_dir().join("install"));
    run(command.env("PREFIX", &at).env("STATIC", static_library()).env("CC", "gcc").env("FIO_SOURCE", "/none"));
    let prefix = Prefix(at);
    let mut found = BTreeSet::new();
    files(&prefix.0, &mut found, &prefix.0);
    assert!(found.len() > 5);
    for file in found {
        let mut path = prefix.0.join(&file);
        while path != folder.path() {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            let wanted = if path.is_dir() || file.contains(".so") { 0o755 } else { 0o644 };
            assert_eq!(mode & wanted, wanted, "{}: {mode:o}", path.display());
            path.pop();
        }
    }
    let flags = prefix.flags(&["--cflags"]).join(" ");
    assert_eq!(flags, format!("-I{}", prefix.path("include").display()).replace(' ', "\\ "));
}

#[test]
fn paths_that_cannot_work_are_refused() {
    for path in ["relative", "/a&b", "/a|b", "/a\\b"] {
        let output = Command::new(crate_dir().join("install")).arg("install").env("PREFIX", path).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}: {output:?}");
    }
}

#[test]
fn cmake_knows_it() {
    if !has_gcc() || !has("cmake", "cmake") {
        return;
    }
    let prefix = Prefix::shared();
    let work = folder();
    let sources = work.path().join("sources");
    fs::create_dir(&sources).unwrap();
    fs::copy(crate_dir().join("examples/gather.c"), sources.join("gather.c")).unwrap();
    let project = "cmake_minimum_required(VERSION 3.13)\nproject(uses C)\nfind_package(nowait 0.1 REQUIRED)\n\
        set(CMAKE_C_STANDARD 11)\nadd_executable(shared gather.c)\ntarget_link_libraries(shared nowait::nowait)\n\
        add_executable(fixed gather.c)\ntarget_link_libraries(fixed nowait::static)\n";
    fs::write(sources.join("CMakeLists.txt"), project).unwrap();
    let build = work.path().join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&sources).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.0.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    let file = work.path().join("file");
    fs::write(&file, "0123456789").unwrap();
    for program in ["shared", "fixed"] {
        let answer = prefix.run(&build.join(program), &[file.to_str().unwrap(), "7:3", "0:2"], "");
        assert_eq!(answer, "78901", "{program}");
    }
    // Another minor version is another interface.
    fs::write(sources.join("CMakeLists.txt"), project.replace("nowait 0.1", "nowait 0.2")).unwrap();
    let mut refused = Command::new("cmake");
    refused.arg("-S").arg(&sources).arg("-B").arg(work.path().join("other"));
    let output = refused.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.0.display())).output().unwrap();
    assert!(!output.status.success());
}

#[test]
fn examples_in_c() {
    if !has_gcc() {
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8 % 90 + 32).collect();
    let file = out.path().join("file");
    fs::write(&file, &bytes).unwrap();
    let path = file.to_str().unwrap();
    let c = COMPILERS.iter().filter(|compiler| compiler.language == "c" && has(compiler.program, compiler.package));
    for (round, compiler) in c.enumerate() {
        let gather = prefix.example(compiler, "gather.c", out.path());
        let answer = prefix.run(&gather, &[path, "200000:4000", "7:5", "199999:2"], "");
        assert_eq!(answer.as_bytes(), [&bytes[200_000..204_000], &bytes[7..12], &bytes[199_999..200_001]].concat());
        let output =
            Command::new(&gather).args([path, "299999:2"]).env("LD_LIBRARY_PATH", prefix.path("lib")).output().unwrap();
        assert!(!output.status.success());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("gather range 0") && message.contains(path), "{message}");

        let epoll = prefix.example(compiler, "epoll.c", out.path());
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(prefix.run(&epoll, &[path], ""), format!("{sum}\n"));

        let log = prefix.example(compiler, "log.c", out.path());
        let dir = out.path().join(format!("log-{round}"));
        assert_eq!(prefix.run(&log, &[dir.to_str().unwrap()], "one\ntwo\n"), "1: one\n2: two\n");
        assert_eq!(prefix.run(&log, &[dir.to_str().unwrap()], "three\n"), "1: one\n2: two\n3: three\n");
    }
}

/// The seed of this library is a function of fifteen lines. Ours, made right, has twenty at most.
#[test]
fn the_example_of_a_gather_is_short() {
    let text = fs::read_to_string(crate_dir().join("examples/gather.c")).unwrap();
    let begin = text.find("int gather_reads(").unwrap();
    let length = text[begin..].find("\n}\n").unwrap();
    let lines = text[begin..begin + length].lines().count() + 1;
    assert!(lines <= 20, "{lines}");
}

#[test]
fn examples_in_cpp() {
    if !has_gcc() {
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let source = out.path().join("source");
    fs::create_dir(&source).unwrap();
    let names: Vec<PathBuf> = (0..5).map(|number| source.join(number.to_string())).collect();
    for (number, name) in names.iter().enumerate() {
        fs::write(name, "line\n".repeat(number * 30_000)).unwrap();
    }
    let paths: Vec<&str> = names.iter().map(|name| name.to_str().unwrap()).collect();
    let cpp = COMPILERS.iter().filter(|compiler| compiler.language == "c++" && has(compiler.program, compiler.package));
    for compiler in cpp {
        let copy = prefix.example(compiler, "copy.cpp", out.path());
        let target = out.path().join(format!("target-{}", compiler.program));
        let answer = prefix.run(&copy, &[source.to_str().unwrap(), target.to_str().unwrap()], "");
        assert_eq!(answer, format!("5 files, {} bytes\n", 5 * 30_000 * (1 + 2 + 3 + 4)));
        assert_eq!(fs::read(target.join("4")).unwrap(), fs::read(&names[4]).unwrap());

        let later = Compiler { standard: "-std=c++20", ..*compiler };
        let coroutine = prefix.example(&later, "coroutine.cpp", out.path());
        let answer: BTreeSet<String> = prefix.run(&coroutine, &paths, "").lines().map(str::to_owned).collect();
        let expected = paths.iter().enumerate().map(|(number, path)| format!("{path}: {}", number * 30_000));
        assert_eq!(answer, expected.collect());
    }
}

#[test]
fn example_in_go() {
    if !has_gcc() || !has("pkg-config", "pkg-config") || !has("go", "golang-go") {
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let file = out.path().join("file");
    fs::write(&file, "0123456789").unwrap();
    let program = out.path().join("records");
    let mut build = Command::new("go");
    build.current_dir(crate_dir().join("examples/go")).args(["build", "-o"]).arg(&program).arg(".");
    build.env("PKG_CONFIG_PATH", prefix.path("lib/pkgconfig")).env("CC", "gcc").env("GOFLAGS", "-mod=mod");
    build.env("GOCACHE", out.path().join("cache")).env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    run(&mut build);
    let path = file.to_str().unwrap();
    assert_eq!(prefix.run(&program, &[path, "7", "3", "0", "2"], ""), "78901");
}

/// The foreign function interface is final since Java 22.
#[test]
fn example_in_java() {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    if !has_gcc() || !has("java", "openjdk-25-jdk-headless") {
        return;
    }
    let version = VERSION.get_or_init(|| {
        let output = Command::new("java").arg("--version").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.split(' ').nth(1)?.split('.').next()?.parse().ok()
    });
    if version.is_none_or(|version| version < 22) {
        println!("skipped: java is {version:?}, and the example needs 22 or later");
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let file = out.path().join("file");
    fs::write(&file, "0123456789").unwrap();
    let mut command = Command::new("java");
    command.arg("--enable-native-access=ALL-UNNAMED").arg(crate_dir().join("examples/java/Records.java"));
    let output = run(command.arg(prefix.path("lib/libnowait.so")).arg(&file).args(["7", "3"]));
    assert_eq!(output.stdout, b"789");
}

/// The programs of the guide compile, without a warning.
#[test]
fn the_guide_compiles() {
    if !has_gcc() {
        return;
    }
    let out = folder();
    let page = |name: &str| fs::read_to_string(crate_dir().join("../../docs/guide").join(name)).unwrap();
    let guide = ["c.md", "from-liburing.md"].map(page).concat();
    let blocks: Vec<&str> = guide.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 5);
    for (number, block) in blocks.iter().enumerate() {
        let source = out.path().join(format!("{number}.c"));
        fs::write(&source, block).unwrap();
        run(COMPILERS[0].command().arg("-fsyntax-only").arg(&source));
    }
}

/// The guide's first program, in an empty directory: its commands make what it reads.
#[test]
fn the_first_program_of_the_guide_runs_as_it_says() {
    if !has_gcc() || !has("pkg-config", "pkg-config") {
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let page = fs::read_to_string(crate_dir().join("../../docs/guide/c.md")).unwrap();
    let read = page.split("\n## Read\n").nth(1).unwrap();
    let block = |language: &str| read.split(language).nth(1).unwrap().split("```").next().unwrap();
    fs::write(out.path().join("program.c"), block("```c\n")).unwrap();
    let mut command = Command::new("sh");
    command.args(["-euc", block("```sh\n")]).current_dir(out.path());
    command.env("PKG_CONFIG_PATH", prefix.path("lib/pkgconfig")).env("LD_LIBRARY_PATH", prefix.path("lib"));
    assert_eq!(run(&mut command).stdout, b"4096 bytes\n");
}

/// The example for users of liburing, with a `main`.
#[test]
fn the_page_from_liburing_sums_pages() {
    if !has_gcc() {
        return;
    }
    let (prefix, out) = (Prefix::shared(), folder());
    let page = fs::read_to_string(crate_dir().join("../../docs/guide/from-liburing.md")).unwrap();
    let block = page.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let main = "#include <stdio.h>\n\
                int main(int count, char **words) { printf(\"%d\", (int)sum_of_pages(words[count - 1])); }\n";
    let (source, file) = (out.path().join("sum.c"), out.path().join("file"));
    fs::write(&source, [block, main].concat()).unwrap();
    fs::write(&file, vec![3; 32 * 4096]).unwrap();
    let program = prefix.example(&COMPILERS[0], source.to_str().unwrap(), out.path());
    assert_eq!(prefix.run(&program, &[file.to_str().unwrap()], ""), "96");
    assert_eq!(prefix.run(&program, &["/none"], ""), "-2");
}
