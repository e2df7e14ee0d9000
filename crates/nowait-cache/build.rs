//! One error on other systems, in place of those of each call that they lack.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        println!(
            "cargo::error=nowait-cache needs Linux; nowait, nowait-log and nowait-object-store do not (docs/platforms.md)"
        );
    }
}
