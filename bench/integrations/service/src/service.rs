//! The HTTP side of the service, common to both ways: routes, ranges, bounds, errors, shutdown.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::range::{self, Asked};

/// Longest body in one buffer; longer ones are streams.
const WHOLE_BYTES_MAX: u64 = 64 << 10;
/// Largest file that a client may store, and largest record.
const FILE_BYTES_MAX: u64 = 1 << 30;
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Responses that read at the same time: a bound on memory.
const READS_MAX: usize = 512;
/// Files that are kept open.
const FILES_MAX: usize = 1024;

/// Content of a file or of a request, in order.
pub(crate) type Chunks = BoxStream<'static, io::Result<Bytes>>;

/// File I/O of the service; everything else is common to both ways.
pub(crate) trait Storage: Clone + Send + Sync + 'static {
    type File: Clone + Send + Sync + 'static;

    /// Opens a file; returns its size, too.
    fn open(&self, path: &Path) -> impl Future<Output = io::Result<(Self::File, u64)>> + Send;
    /// Reads a range that the file contains.
    fn read(&self, file: Self::File, range: Range<u64>) -> impl Future<Output = io::Result<Bytes>> + Send;
    /// Reads a range in pieces, as the client takes them.
    fn stream(&self, file: Self::File, range: Range<u64>) -> impl Future<Output = io::Result<Chunks>> + Send;
    /// Replaces or creates a file: durably, and all or nothing, also after a crash.
    fn replace(&self, path: &Path, content: Chunks) -> impl Future<Output = io::Result<()>> + Send;
    /// Appends a record to the log; returns its number once it is durable.
    fn append(&self, record: Bytes) -> impl Future<Output = io::Result<u64>> + Send;
    /// Returns counters in the text format of Prometheus.
    fn metrics(&self) -> String;
    /// Ends the storage, after the last request.
    fn close(self) -> impl Future<Output = io::Result<()>> + Send;
}

struct Service<S: Storage> {
    storage: S,
    dir: PathBuf,
    open: Mutex<OpenFiles<S::File>>,
    reads: Arc<Semaphore>,
}

/// Files by name, with their sizes. A file never changes in place: a PUT puts another in its stead.
struct OpenFiles<F> {
    files: HashMap<String, (F, u64)>,
    /// Number of replacements. What was opened before one is not kept after it.
    replaced: u64,
}

/// Serves until the process receives SIGINT or SIGTERM; then ends the requests, then the storage.
pub(crate) async fn serve<S: Storage>(listener: TcpListener, storage: S, dir: &Path) -> io::Result<()> {
    println!("listening on {}", listener.local_addr()?);
    let listener = listener.tap_io(|connection| _ = connection.set_nodelay(true));
    let mut terminated = signal(SignalKind::terminate())?;
    let ended = async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    axum::serve(listener, routes(storage.clone(), dir)).with_graceful_shutdown(ended).await?;
    storage.close().await
}

/// Returns the routes of the service; its files are in `dir`.
pub(crate) fn routes<S: Storage>(storage: S, dir: &Path) -> Router {
    let open = Mutex::new(OpenFiles { files: HashMap::new(), replaced: 0 });
    let service = Service { storage, dir: dir.to_path_buf(), open, reads: Arc::new(Semaphore::new(READS_MAX)) };
    Router::new()
        .route("/files/{name}", get(get_file::<S>).put(put_file::<S>))
        .route("/log", post(append::<S>).layer(DefaultBodyLimit::max(RECORD_BYTES_MAX)))
        .route("/metrics", get(metrics::<S>))
        .with_state(Arc::new(service))
}

async fn get_file<S: Storage>(
    State(service): State<Arc<Service<S>>>,
    UrlPath(name): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let permit = service.reads.clone().acquire_owned().await.expect("it is never closed");
    let (file, size) = service.open(name).await?;
    let (status, range) = match range::parse(headers.get(header::RANGE).and_then(|range| range.to_str().ok()), size) {
        Asked::Whole => (StatusCode::OK, 0..size),
        Asked::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Asked::Nothing => return Err(Failure::NoSuchRange(size)),
    };
    let Range { start, end } = range;
    let length = end - start;
    let body = if length <= WHOLE_BYTES_MAX {
        Body::from(service.storage.read(file, range).await?)
    } else {
        let chunks = service.storage.stream(file, range).await?;
        // The status has been sent. An error ends the connection before the body's length.
        Body::from_stream(chunks.inspect(move |chunk| {
            let _held_until_the_end = &permit;
            if let Err(error) = chunk {
                eprintln!("{error}");
            }
        }))
    };
    let response = Response::builder()
        .status(status)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CONTENT_LENGTH, length)
        .header(header::CONTENT_TYPE, "application/octet-stream");
    let response = match status {
        StatusCode::PARTIAL_CONTENT => {
            response.header(header::CONTENT_RANGE, format!("bytes {start}-{}/{size}", end - 1))
        }
        _ => response,
    };
    response.body(body).map_err(|error| Failure::Storage(io::Error::other(error)))
}

async fn put_file<S: Storage>(
    State(service): State<Arc<Service<S>>>,
    UrlPath(name): UrlPath<String>,
    body: Body,
) -> Result<StatusCode, Failure> {
    let path = service.path(&name)?;
    let mut room = FILE_BYTES_MAX;
    let content = body.into_data_stream().map(move |chunk| {
        // The client is gone, or sent something else than HTTP.
        let chunk = chunk.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
        room = room.checked_sub(chunk.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(chunk)
    });
    service.storage.replace(&path, content.boxed()).await?;
    let mut open = service.open_files();
    open.replaced += 1;
    open.files.remove(&name);
    Ok(StatusCode::NO_CONTENT)
}

async fn append<S: Storage>(State(service): State<Arc<Service<S>>>, record: Bytes) -> Result<String, Failure> {
    let number = service.storage.append(record).await?;
    Ok(format!("{number}\n"))
}

async fn metrics<S: Storage>(State(service): State<Arc<Service<S>>>) -> String {
    service.storage.metrics()
}

impl<S: Storage> Service<S> {
    async fn open(&self, name: String) -> Result<(S::File, u64), Failure> {
        let replaced = {
            let open = self.open_files();
            if let Some(file) = open.files.get(&name) {
                return Ok(file.clone());
            }
            open.replaced
        };
        let file = self.storage.open(&self.path(&name)?).await?;
        let mut open = self.open_files();
        if open.replaced == replaced && open.files.len() < FILES_MAX {
            open.files.insert(name, file.clone());
        }
        Ok(file)
    }

    /// Returns the path of a file that clients may name: no directory, no hidden file.
    fn path(&self, name: &str) -> Result<PathBuf, Failure> {
        match name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            true => Err(Failure::Storage(io::ErrorKind::NotFound.into())),
            false => Ok(self.dir.join(name)),
        }
    }

    fn open_files(&self) -> MutexGuard<'_, OpenFiles<S::File>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is not served. The error's text contains the server's path: it goes to the server's
/// own output, the client receives the status.
enum Failure {
    NoSuchRange(u64),
    Storage(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Storage(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error = match self {
            Failure::NoSuchRange(size) => {
                let range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
                return (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response();
            }
            Failure::Storage(error) => error,
        };
        let status = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename | io::ErrorKind::IsADirectory => {
                StatusCode::NOT_FOUND
            }
            io::ErrorKind::ConnectionAborted => StatusCode::BAD_REQUEST,
            io::ErrorKind::FileTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            eprintln!("{error}");
        }
        status.into_response()
    }
}
