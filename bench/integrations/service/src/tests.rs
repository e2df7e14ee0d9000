//! Both ways answer alike.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use tower::ServiceExt;

use crate::service::{self, Storage};
use crate::with_nowait::WithNowait;
use crate::with_tokio::WithTokio;

/// Status, the headers that matter, and the body.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: StatusCode,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

async fn ask(routes: &Router, method: &str, target: &str, range: Option<&str>, body: impl Into<Body>) -> Answer {
    let request = Request::builder().method(method).uri(target);
    let request = range.into_iter().fold(request, |request, range| request.header(header::RANGE, range));
    let response = routes.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let shown = [header::CONTENT_LENGTH, header::CONTENT_RANGE, header::CONTENT_TYPE, header::ACCEPT_RANGES];
    let headers = shown.into_iter().filter_map(|name| {
        let value = parts.headers.get(&name)?.to_str().unwrap().to_owned();
        Some((name.to_string(), value))
    });
    Answer {
        status: parts.status,
        headers: headers.collect(),
        body: to_bytes(body, usize::MAX).await.unwrap().to_vec(),
    }
}

/// Both services in directories of their own; each request goes to both.
struct Both {
    dir: tempfile::TempDir,
    nowait: (WithNowait, Router),
    tokio: Router,
}

impl Both {
    async fn new() -> Both {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let [nowait, tokio] = ["nowait", "tokio"].map(|name| dir.path().join(name));
        let [nowait_files, tokio_files] = [&nowait, &tokio].map(|dir| crate::make_dir(dir).unwrap());
        let with_nowait = WithNowait::new(&nowait).await.unwrap();
        let with_tokio = WithTokio::new(&tokio).await.unwrap();
        let routes = service::routes(with_nowait.clone(), &nowait_files);
        Both { dir, nowait: (with_nowait, routes), tokio: service::routes(with_tokio, &tokio_files) }
    }

    async fn ask(&self, method: &str, target: &str, range: Option<&str>, body: &[u8]) -> Answer {
        let nowait = ask(&self.nowait.1, method, target, range, body.to_vec()).await;
        let tokio = ask(&self.tokio, method, target, range, body.to_vec()).await;
        assert!(nowait == tokio, "{method} {target} {range:?}: {:?} and {:?}", nowait.status, tokio.status);
        let text = String::from_utf8_lossy(&nowait.body);
        assert!(!text.contains(self.dir.path().to_str().unwrap()), "a client learns the server's path: {text}");
        nowait
    }
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251 + at) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ways_return_the_same_bodies_ranges_and_errors() {
    let both = Both::new().await;
    let whole = content(3_000_001);
    assert_eq!(both.ask("PUT", "/files/large", None, &whole).await.status, StatusCode::NO_CONTENT);
    let answer = both.ask("GET", "/files/large", None, &[]).await;
    assert_eq!((answer.status, answer.body == whole), (StatusCode::OK, true));
    for (range, bytes) in [
        ("bytes=0-0", 0..1),
        ("bytes=4095-8192", 4095..8193),
        ("bytes=100-2500000", 100..2_500_001),
        ("bytes=2990000-", 2_990_000..3_000_001),
        ("bytes=-70000", 2_930_001..3_000_001),
        ("bytes=3000000-9999999", 3_000_000..3_000_001),
    ] {
        let answer = both.ask("GET", "/files/large", Some(range), &[]).await;
        assert_eq!(
            (answer.status, answer.body == whole[bytes.clone()]),
            (StatusCode::PARTIAL_CONTENT, true),
            "{range}"
        );
        let said = format!("bytes {}-{}/3000001", bytes.start, bytes.end - 1);
        assert_eq!(answer.headers["content-range"], said);
        assert_eq!(answer.headers["content-length"], bytes.len().to_string());
    }
    let answer = both.ask("GET", "/files/large", Some("bytes=3000001-"), &[]).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::RANGE_NOT_SATISFIABLE, 0));
    assert_eq!(answer.headers["content-range"], "bytes */3000001");

    // A file that is kept open is replaced; an empty one has no range.
    assert_eq!(both.ask("PUT", "/files/large", None, b"short").await.status, StatusCode::NO_CONTENT);
    assert_eq!(both.ask("GET", "/files/large", None, &[]).await.body, b"short");
    both.ask("PUT", "/files/empty", None, &[]).await;
    assert_eq!(both.ask("GET", "/files/empty", None, &[]).await.status, StatusCode::OK);
    let answer = both.ask("GET", "/files/empty", Some("bytes=0-"), &[]).await;
    assert_eq!(answer.status, StatusCode::RANGE_NOT_SATISFIABLE);

    for name in ["missing", "%2e%2e%2flog", "..", ".hidden", "a%00b", &"n".repeat(300)] {
        let answer = both.ask("GET", &format!("/files/{name}"), None, &[]).await;
        assert_eq!((answer.status, answer.body.len()), (StatusCode::NOT_FOUND, 0), "{name}");
        let answer = both.ask("PUT", &format!("/files/{name}"), None, b"x").await;
        let stored = if name == "missing" { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND };
        assert_eq!(answer.status, stored, "{name}");
    }
    assert_eq!(both.ask("POST", "/log", None, &vec![0; 70_000]).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_records_are_in_both_logs() {
    let both = Both::new().await;
    for number in 1..=20 {
        let answer = both.ask("POST", "/log", None, format!("order {number}").as_bytes()).await;
        assert_eq!((answer.status, answer.body), (StatusCode::OK, format!("{number}\n").into_bytes()));
    }
    both.nowait.0.clone().close().await.unwrap();
    let (log, _) =
        nowait_log::Log::open(both.dir.path().join("nowait/log"), &nowait_log::Options::new()).await.unwrap();
    let mut reader = log.reader(1);
    for number in 1..=20 {
        let record = reader.next().await.unwrap().unwrap();
        assert_eq!(record.bytes, format!("order {number}").as_bytes());
    }
    let by_hand = fs::read(both.dir.path().join("tokio/hand-made.log")).unwrap();
    let expected = (1..=20u32).flat_map(|number| {
        let record = format!("order {number}");
        [&(record.len() as u32).to_le_bytes()[..], record.as_bytes()].concat()
    });
    assert_eq!(by_hand, expected.collect::<Vec<_>>());
}

/// An upload that ends early leaves the old file, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_breaks_replaces_nothing() {
    let both = Both::new().await;
    both.ask("PUT", "/files/table", None, b"old").await;
    for routes in [&both.nowait.1, &both.tokio] {
        let pieces = [Ok(content(100_000)), Err(std::io::Error::other("gone"))];
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        assert_eq!(ask(routes, "PUT", "/files/table", None, body).await.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(both.ask("GET", "/files/table", None, &[]).await.body, b"old");
    let is_clean = |dir: &Path| fs::read_dir(dir.join("files")).unwrap().count() == 1;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !["nowait", "tokio"].iter().all(|way| is_clean(&both.dir.path().join(way))) {
        assert!(std::time::Instant::now() < deadline, "the temporary file stays");
        tokio::task::yield_now().await;
    }
}
