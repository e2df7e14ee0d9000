//! Converts a report to JSON.

use nowait::DirectIo;
use serde_json::{Value, json};

use crate::{Evidence, Outcome, Report, Row, Traced};

impl Report {
    /// Returns the report as JSON, in the form that `nowait probe --json` prints (feature `json`).
    pub fn to_json(&self) -> Value {
        report_as_json(self)
    }
}

fn report_as_json(report: &Report) -> Value {
    let Report { place, reach, abilities, .. } = report;
    json!({
        "path": report.path,
        "subject": format!("{:?}", report.subject).to_lowercase(),
        "file_system": place.file_system,
        "mount_options": place.mount_options,
        "attributes": place.attributes,
        "device": place.device.as_ref().map(|device| json!({
            "name": device.name,
            "scheduler": device.scheduler,
            "requests_max": device.requests_max,
            "read_ahead_bytes": device.read_ahead_bytes,
            "write_cache": device.write_cache,
            "polls": device.polls,
            "logical_block_bytes": device.logical_block_bytes,
            "atomic_write_bytes_max": device.atomic_write_bytes_max,
        })),
        "io_uring": {
            "available": reach.refusal.is_none(),
            "refusal": reach.refusal.as_ref().map(ToString::to_string),
            "errno": reach.refusal.as_ref().map(|refusal| refusal.raw_os_error()),
            "remedy": reach.remedy,
            "disabled": reach.disabled,
            "group": reach.group,
            "seccomp_filters": reach.seccomp_filters,
            "locked_memory_bytes_max": reach.locked_memory_bytes_max,
            "defers_completions": reach.defers,
            "operations": reach.operations.iter().map(|(name, known)| (*name, *known)).collect::<std::collections::BTreeMap<_, _>>(),
        },
        "abilities": {
            "nowait_reads": abilities.nowait_reads,
            "nowait_writes": abilities.nowait_writes,
            "nowait_direct_reads": abilities.nowait_direct_reads,
            "uncached_writes": abilities.uncached_writes,
            "direct": match abilities.direct {
                Some(DirectIo::Granted { memory_alignment, offset_alignment }) => {
                    json!({ "memory_alignment_bytes": memory_alignment, "offset_alignment_bytes": offset_alignment })
                }
                Some(DirectIo::Refused) => json!(false),
                _ => Value::Null,
            },
            "atomic_writes": abilities.atomic_writes.map(|atomic| json!({
                "bytes_min": atomic.bytes_min, "bytes_max": atomic.bytes_max, "segments_max": atomic.segments_max,
            })),
        },
        "controls": report.controls.map(|controls| json!({
            "hold": controls.hold(),
            "forced": controls.forced, "forced_seen": controls.forced_seen,
            "plain": controls.plain, "plain_seen": controls.plain_seen,
        })),
        "evidence": match &report.evidence {
            Some(Evidence::ThreadsAndTracepoint) => json!("threads and tracepoint"),
            Some(Evidence::Threads { .. }) => json!("threads"),
            Some(Evidence::Tracepoint) => json!("tracepoint"),
            _ => Value::Null,
        },
        "untraced": match &report.evidence {
            Some(Evidence::Threads { untraced }) => json!(untraced),
            _ => Value::Null,
        },
        "traced": report.traced().map(traced_as_json),
        "confirmed": report.unconfirmed().is_none(),
        "unconfirmed": report.unconfirmed(),
        "steps_missing": report.steps_missing,
        "summary": report.summary(),
        "scratch": report.scratch.iter().map(row_as_json).collect::<Vec<_>>(),
        "scratch_error": report.scratch_error.as_ref().map(ToString::to_string),
        "file": report.file.iter().map(row_as_json).collect::<Vec<_>>(),
        "file_error": report.file_error.as_ref().map(ToString::to_string),
    })
}

fn row_as_json(row: &Row) -> Value {
    let nowait = row.nowait.map(|served| {
        json!({
            "requests": served.requests, "inline": served.inline, "ring": served.ring, "aio": served.aio,
            "pool": served.pool, "worker": served.worker, "failed": served.failed,
            "total_median_ns": served.total_ns.median, "total_max_ns": served.total_ns.max,
        })
    });
    let steps = row.steps.iter();
    let steps = steps.map(|step| json!({ "depth": step.depth, "bytes": step.bytes, "ring": ring_as_json(&step.ring) }));
    json!({
        "case": row.case.name(), "ring": ring_as_json(&row.ring), "nowait": nowait,
        "reason": row.reason.map(|reason| reason.name()), "steps": steps.collect::<Vec<_>>(), "changes": row.changes(),
    })
}

fn ring_as_json(ring: &Outcome) -> Value {
    match ring {
        Outcome::Seen(rates) => json!({
            "outcome": "seen",
            "verdict": rates.verdict().way.name(), "sleeps": rates.verdict().sleeps,
            "confirmed": rates.is_confirmed(), "traced": rates.traced.map(traced_as_json),
            "requests": rates.requests, "submissions": rates.submissions,
            "inline": rates.inline, "async": rates.asynchronous, "worker": rates.worker,
            "unclear": rates.unclear, "slept": rates.slept, "failed": rates.failed,
            "submit_median_ns": rates.submit_ns.median, "submit_max_ns": rates.submit_ns.max,
            "total_median_ns": rates.total_ns.median, "total_max_ns": rates.total_ns.max,
        }),
        Outcome::Refused(errno) => json!({ "outcome": "refused", "errno": errno }),
        Outcome::NotInState => json!({ "outcome": "not in state" }),
        Outcome::CannotTell(why) => json!({ "outcome": "cannot tell", "why": why }),
    }
}

fn traced_as_json(traced: Traced) -> Value {
    json!({
        "requests": traced.requests, "agreed": traced.agreed, "worker_differs": traced.worker_differs,
        "inline_differs": traced.inline_differs, "slept_differs": traced.slept_differs,
    })
}
