//! Serves ranges of a file over TCP on tokio: a line `OFFSET LENGTH` is answered with that many
//! bytes. `cargo run --features tokio --example tokio_service -- FILE [ADDRESS]`; then
//! `echo 0 100 | nc 127.0.0.1 7070`.

use nowait::{File, Nowait};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

async fn serve(file: File, stream: TcpStream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (requests, mut answers) = stream.into_split();
    let mut lines = BufReader::new(requests).lines();
    while let Some(line) = lines.next_line().await? {
        let (offset, length) = line.split_once(' ').ok_or("a line is OFFSET LENGTH")?;
        let (offset, length): (u64, usize) = (offset.parse()?, length.trim().parse()?);
        // A client's length is no reason to ask for that much memory.
        let length = length.min(1 << 20);
        // Cached, it is served in this poll; else the task sleeps and others run.
        let (n, buffer) = file.read_at(vec![0; length], offset).await?;
        answers.write_all(&buffer[..n]).await?;
    }
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: tokio_service FILE [ADDRESS]")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7070".to_string());
    // Completions come through tokio's own reactor: no thread of the library's.
    if let Err(error) = Nowait::shared().attach_tokio() {
        eprintln!("a thread will notice completions: {error}");
    }
    let file = File::open(&path).await?;
    let listener = TcpListener::bind(&address).await?;
    println!("{path} is served at {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let file = file.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(file, stream).await {
                eprintln!("{error}");
            }
        });
    }
}
