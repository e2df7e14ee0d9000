//! Compiles the VFS for SQLite, an example of the C interface.

fn main() {
    let of_c = "../../../crates/nowait-c";
    println!("cargo::rerun-if-changed={of_c}/examples/sqlite_vfs.c");
    println!("cargo::rerun-if-changed={of_c}/include/nowait.h");
    cc::Build::new()
        .file(format!("{of_c}/examples/sqlite_vfs.c"))
        .include(format!("{of_c}/include"))
        .std("c11")
        .define("_GNU_SOURCE", None)
        .opt_level(2)
        .compile("sqlite_vfs");
}
