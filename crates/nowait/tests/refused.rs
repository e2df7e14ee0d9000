//! Where io_uring is refused, everything works without it, and says why. Each refusal is real, in a process of its own.

mod common;
mod promises;

use std::collections::BTreeMap;

use common::{child, mounts};
use nowait::{Engine, ErrorKind, Nowait};
use promises::{Ctx, keeps_every_promise};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const LOCKED_MEMORY: &str = "locked memory";

/// What a seccomp filter may answer, and a word by which the reason is known.
const ANSWERS: [(i32, &str); 6] = [
    (libc::EPERM, "forbidden"),
    (libc::EACCES, "forbidden"),
    (libc::ENOSYS, "not in this kernel"),
    (libc::ENOMEM, "ulimit -l"),
    (libc::EINVAL, "refused"),
    (libc::EOPNOTSUPP, "refused"),
];

#[test]
fn by_a_filter() {
    for (errno, _) in ANSWERS {
        child::play(&errno.to_string());
    }
}

#[test]
fn by_a_limit_on_locked_memory() {
    child::play(LOCKED_MEMORY);
}

#[test]
fn child() {
    let Some(role) = child::role() else { return };
    if role == LOCKED_MEMORY {
        return without_locked_memory();
    }
    let errno = role.parse().unwrap();
    filter(errno);
    let word = ANSWERS.iter().find(|answer| answer.0 == errno).unwrap().1;
    check(Nowait::shared(), errno, word);
}

/// Lets the kernel answer `errno` to `io_uring_setup(2)`, in all threads from now on.
fn filter(errno: i32) {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let answer = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

fn check(nowait: &Nowait, errno: i32, word: &str) {
    assert!(!nowait.has_ring());
    let refusal = nowait.ring_refusal().unwrap();
    assert_eq!(refusal.raw_os_error(), errno);
    let text = refusal.to_string();
    for part in [word, "io_uring_setup", &format!("os error {errno}")] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    let error = Nowait::builder().engine(Engine::Uring).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnavailable);
    assert!(error.to_string().contains(&text), "{error}");
    keeps_every_promise(&Ctx::with(nowait.clone(), mounts::temp_dir()));
    assert_eq!(nowait.stats().ring, 0);
    assert!(nowait.stats().pool > 0);
}

fn without_locked_memory() {
    if child::is_root() {
        // Root is exempt from the limit.
        child::become_nobody();
    }
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is only read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
    match Nowait::shared().ring_refusal() {
        Some(_) => check(Nowait::shared(), libc::ENOMEM, "ulimit -l"),
        None => eprintln!("skipped: {LOCKED_MEMORY}: this kernel grants a ring without any"),
    }
}
