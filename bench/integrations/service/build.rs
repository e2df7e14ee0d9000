//! Tells the program from which commit it was built.

#[path = "../../commit.rs"]
mod commit;

fn main() {
    for sources in ["src", "Cargo.lock", "../../../crates"] {
        println!("cargo::rerun-if-changed={sources}");
    }
    commit::tell();
}
