//! A round of requests, by wrk(1).

use std::io;
use std::process::Command;
use std::time::Duration;

use super::Result;
use super::case::{Case, Kind};
use super::server::Server;

/// Figures of one way in one round.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) requests: u64,
    pub(super) requests_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Processor time of the server for each request.
    pub(super) cpu_us: f64,
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/measure/wrk.lua");

/// Sends the requests of a case for some time, from the place `start` on.
pub(super) fn round(case: &Case, server: &Server, duration: Duration, start: u64) -> Result<Round> {
    let kind = match case.kind {
        Kind::Range => "range",
        Kind::Put => "put",
        Kind::Append => "append",
    };
    let mut wrk = Command::new("wrk");
    wrk.args(["--threads", "1", "--timeout", "30s", "--script", SCRIPT])
        .args(["--connections", &case.connections.to_string()])
        .args(["--duration", &format!("{}s", duration.as_secs())])
        .args([&format!("http://{}", server.address), "--", kind])
        .args([case.bytes, case.places, start].map(|number| number.to_string()));
    let output = wrk.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("this comparison needs wrk (Debian: apt-get install wrk)"),
        _ => error,
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.strip_prefix("result "));
    let figures = result.map(|result| result.split(' ').filter_map(|figure| figure.parse().ok()).collect::<Vec<u64>>());
    let Some([requests, duration_us, failed, p50_us, p99_us]) = figures.as_deref() else {
        return Err(
            format!("wrk ended with {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)).into()
        );
    };
    if *failed > 0 || *requests == 0 {
        return Err(format!("{failed} requests failed, {requests} succeeded: {text}").into());
    }
    Ok(Round {
        requests: *requests,
        requests_per_s: *requests as f64 * 1e6 / *duration_us as f64,
        p50_us: *p50_us as f64,
        p99_us: *p99_us as f64,
        cpu_us: 0.0,
    })
}
