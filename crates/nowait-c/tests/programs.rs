//! The contract programs in `tests/c`: compiled as C11 and as C++17, by gcc and by clang, without a
//! warning; run by themselves, under AddressSanitizer and under valgrind.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{COMPILERS, crate_dir, folder, has, run};

const PROGRAMS: [&str; 12] =
    ["files", "changes", "names", "locks", "gather", "cache", "bad_input", "wild", "queue", "queued", "log", "copy"];

fn source(name: &str) -> PathBuf {
    crate_dir().join("tests/c").join(name).with_extension("c")
}

/// Runs a program in a folder of its own, `through` another if that is not empty.
#[track_caller]
fn run_in_folder(program: &Path, through: &[&str]) {
    let folder = folder();
    let mut command = match through {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    if let ["valgrind", ..] = through {
        command.env("NOWAIT_TEST_WITHOUT_FORK", "1").env("NOWAIT_TEST_CALLS", "3000");
    }
    run(command.arg(folder.path()));
}

#[test]
fn programs_run_as_c_and_as_cpp_by_every_compiler() {
    if !has("gcc", "gcc") {
        return;
    }
    let out = folder();
    for compiler in COMPILERS.iter().filter(|compiler| has(compiler.program, compiler.package)) {
        if compiler.language == "c++" {
            let program = out.path().join(format!("raii-{}", compiler.program));
            // With coroutines, and without.
            for standard in ["-std=c++20", compiler.standard] {
                compiler.build(&crate_dir().join("tests/c/raii.cpp"), &program, &[standard]);
                run_in_folder(&program, &[]);
            }
        }
        for name in PROGRAMS {
            let program = out.path().join(format!("{name}-{}-{}", compiler.program, compiler.standard));
            compiler.build(&source(name), &program, &[]);
            run_in_folder(&program, &[]);
        }
    }
}

/// A database over the library, whose processes are killed: `examples/sqlite_vfs.c`.
#[test]
fn sqlite_keeps_its_promises() {
    let [compiler, ..] = COMPILERS;
    if !has(compiler.program, compiler.package) || !has_sqlite(compiler.program) {
        return;
    }
    let out = folder();
    let vfs = crate_dir().join("examples/sqlite_vfs.c");
    let vfs = vfs.to_str().unwrap();
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for sanitizers in [&[][..], &sanitizers] {
        let program = out.path().join(format!("sqlite-{}", sanitizers.len()));
        compiler.build(&source("sqlite"), &program, &[sanitizers, &[vfs, "-lsqlite3"]].concat());
        run_in_folder(&program, &[]);
    }
}

fn has_sqlite(compiler: &str) -> bool {
    let out = folder();
    let source = out.path().join("try.c");
    std::fs::write(&source, "#include <sqlite3.h>\nint main(void) { return sqlite3_libversion_number() == 0; }\n")
        .unwrap();
    let tried = Command::new(compiler).arg(&source).arg("-o").arg(out.path().join("try")).arg("-lsqlite3").output();
    let has = tried.is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: no sqlite3.h (Debian: apt-get install libsqlite3-dev)");
    }
    has
}

/// The headers need no other before them, may be included twice, and declare nothing twice.
#[test]
fn the_headers_stand_alone() {
    let out = folder();
    let twice = |name: &str| {
        let source = out.path().join(format!("{name}.c"));
        let text = format!("#include <{name}>\n#include <{name}>\nint main(void) {{ return 0; }}\n");
        std::fs::write(&source, text).unwrap();
        source
    };
    let (c, cpp) = (twice("nowait.h"), twice("nowait.hpp"));
    for compiler in COMPILERS.iter().filter(|compiler| has(compiler.program, compiler.package)) {
        let mut command = compiler.command();
        run(command.args(["-Wredundant-decls", "-fsyntax-only", "-x", compiler.language]).arg(&c));
        if compiler.language == "c++" {
            for standard in ["-std=c++17", "-std=c++20"] {
                let mut command = compiler.command();
                run(command.args([standard, "-fsyntax-only", "-x", "c++"]).arg(&cpp));
            }
        }
    }
}

/// The callers' memory: nothing is written to it before or after its time, nor beyond its end.
#[test]
fn programs_run_under_address_sanitizer() {
    let out = folder();
    let [compiler, ..] = COMPILERS;
    if !has(compiler.program, compiler.package) {
        return;
    }
    for name in PROGRAMS {
        let program = out.path().join(name);
        compiler.build(
            &source(name),
            &program,
            &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-sanitize=alignment"],
        );
        run_in_folder(&program, &[]);
    }
}

/// The library's own memory, too. valgrind knows no ring's completions, so that what io_uring has
/// read counts as not initialised: errors of that kind are left out here.
#[test]
fn programs_run_under_valgrind() {
    if !has("valgrind", "valgrind") || !has("gcc", "gcc") {
        return;
    }
    let out = folder();
    for name in PROGRAMS {
        let program = out.path().join(name);
        COMPILERS[0].build(&source(name), &program, &[]);
        let through = [
            "valgrind",
            "-q",
            "--error-exitcode=9",
            "--undef-value-errors=no",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--fair-sched=yes",
        ];
        run_in_folder(&program, &through);
    }
}
