//! Logs of which processes are killed, the power fails and files rot, for `NOWAIT_SOAK_SECONDS` each.

#[path = "../../../crates/nowait/tests/common/mod.rs"]
mod common;
mod kills;
mod model;
mod power;
mod rot;
mod writer;

#[test]
fn kills_lose_nothing_acknowledged() {
    kills::kills();
}

#[test]
fn power_cuts_lose_nothing_acknowledged() {
    power::cuts();
}

#[test]
fn rot_is_reported() {
    rot::rot();
}
