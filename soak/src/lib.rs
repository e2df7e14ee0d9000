//! Duration and seed of the tests below `tests/`. See README.md.

/// Seconds that a test runs in each of its environments: `NOWAIT_SOAK_SECONDS`, 60 unless set.
pub fn seconds() -> u64 {
    number("NOWAIT_SOAK_SECONDS").unwrap_or(60)
}

/// Seed of a run: `NOWAIT_TEST_SEED`, another one each time unless set.
pub fn seed() -> u64 {
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos() as u64);
    number("NOWAIT_TEST_SEED").unwrap_or_else(now)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}
