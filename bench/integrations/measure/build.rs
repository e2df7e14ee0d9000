//! Tells the programs from which commit they were built.

#[path = "../../commit.rs"]
mod commit;

fn main() {
    for sources in [
        "src",
        "../stores",
        "../datafusion",
        "../ballista",
        "../adapters/src",
        "../../../integrations",
        "../Cargo.lock",
        "../../../crates",
    ] {
        println!("cargo::rerun-if-changed={sources}");
    }
    commit::tell();
}
