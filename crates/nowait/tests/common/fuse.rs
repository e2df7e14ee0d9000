//! A file system that stops answering when it is told to.
//!
//! It has one file, [`NAME`], of zeros; what is written to it is forgotten. A child process serves
//! it (linux/fuse.h): were it this process, a thread that waits for an answer would keep the
//! connection open when the process is ended, for ever.

pub(crate) mod wire;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use tempfile::TempDir;

use self::wire::{ASYNC_DIO, ASYNC_READ, BIG_WRITES, IN_HEADER, long, longs, opcode, word, words};
use super::{child, mounts};

pub(crate) const NAME: &str = "file";
const FILE_BYTES: u64 = 1 << 30;
/// Most requests at a time that no thread waits for.
const BACKGROUND_MAX: u32 = 1024;

/// Role of the child that serves.
pub(crate) const ROLE: &str = "fuse";

const HANG: u8 = b'h';
const HANG_CLOSES: u8 = b'c';
const FAIL_READS: u8 = b'f';
const GO_ON: u8 = b'g';
/// How long each read and write takes while it goes on, in milliseconds.
const DELAY: &str = "NOWAIT_TEST_FUSE_DELAY";
/// Line that the child prints when it is done.
const DONE: &str = "fuse: done";

/// The file system, mounted. Ends with whatever waits for it when dropped.
pub(crate) struct Stalling {
    child: Child,
    answers: BufReader<ChildStdout>,
    point: PathBuf,
    _dir: TempDir,
}

impl Stalling {
    /// Makes one, or says why not; a kernel without FUSE is none that the tests require.
    pub(crate) fn or_skip(delay: Duration) -> Option<Stalling> {
        if !wire::is_there() {
            return None;
        }
        mounts::or_skip("a file system of our own (FUSE)", Stalling::slow(delay))
    }

    /// Makes one whose reads and writes take so long. The test binary's `child` has to [`serve`] in
    /// the role `fuse`.
    fn slow(delay: Duration) -> Result<Stalling, String> {
        let (dir, point) = mounts::folder_and_point()?;
        let mut command = child::command_at(ROLE, &point);
        command.env(DELAY, delay.as_millis().to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut stalling = Stalling { child, answers, point, _dir: dir };
        stalling.wait_for_answer()?;
        Ok(stalling)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.point.join(NAME)
    }

    /// From now on no open, read, write, sync or look at attributes ends.
    pub(crate) fn hang(&mut self) {
        self.tell(HANG);
    }

    /// From now on no `close(2)` ends, and anything else does.
    pub(crate) fn hang_closes(&mut self) {
        self.tell(HANG_CLOSES);
    }

    /// From now on reads fail, no look at attributes ends, and anything else does.
    pub(crate) fn fail_reads(&mut self) {
        self.tell(FAIL_READS);
    }

    /// Those that came meanwhile end, and all that follow.
    pub(crate) fn go_on(&mut self) {
        self.tell(GO_ON);
    }

    fn tell(&mut self, what: u8) {
        self.child.stdin.as_mut().unwrap().write_all(&[what]).unwrap();
        self.wait_for_answer().unwrap();
    }

    fn wait_for_answer(&mut self) -> Result<(), String> {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            match self.answers.read_line(&mut line) {
                Ok(1..) if line.contains(DONE) => return Ok(()),
                Ok(1..) => seen += &line,
                _ => return Err(format!("the process that serves has ended:\n{seen}")),
            }
        }
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        // The connection ends with its only descriptor, and what waits for an answer gets an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
        mounts::unmount(&self.point);
    }
}

/// The child's part: mounts, and serves until it is ended or its parent is gone.
pub(crate) fn serve() {
    let point = child::path();
    // One that is ended with threads that wait for us keeps its end of the pipe open.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    mount(&device, &point);
    println!("{DONE}");
    let delay = Duration::from_millis(std::env::var(DELAY).unwrap().parse().unwrap());
    let mut server = Server { device, delay, told: GO_ON, held: Vec::new(), late: VecDeque::new() };
    let mut request = vec![0; 256 << 10];
    let mut input = std::io::stdin();
    loop {
        let mut fds = [PollFd::new(&server.device, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
        let tick = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        rustix::event::poll(&mut fds, (!server.late.is_empty()).then_some(&tick)).unwrap();
        let [has_request, is_told] = fds.map(|fd| !fd.revents().is_empty());
        while server.late.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let (_, request) = server.late.pop_front().unwrap();
            server.answer(&request);
        }
        if is_told {
            let mut what = [0];
            match input.read(&mut what) {
                Ok(1) => server.obey(what[0]),
                // The parent is gone, and cannot unmount.
                _ => {
                    drop(server);
                    return mounts::unmount(&point);
                }
            }
        }
        if has_request {
            match server.device.read(&mut request) {
                Ok(length) => server.serve(&request[..length]),
                // Interrupted before it was read.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => panic!("/dev/fuse: {error}"),
            }
        }
    }
}

fn mount(device: &File, point: &Path) {
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let text = |text: &str| std::ffi::CString::new(text).unwrap();
    let (source, point, kind, options) =
        (text("nowait-test"), text(point.to_str().unwrap()), text("fuse"), text(&options));
    // SAFETY: four strings that outlive the call.
    let result = unsafe { libc::mount(source.as_ptr(), point.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    assert_eq!(result, 0, "mount: {}", std::io::Error::last_os_error());
}

struct Server {
    device: File,
    delay: Duration,
    /// Last command.
    told: u8,
    /// Requests that were not answered.
    held: Vec<Vec<u8>>,
    /// Those that are to be, and when.
    late: VecDeque<(Instant, Vec<u8>)>,
}

impl Server {
    fn obey(&mut self, what: u8) {
        self.told = what;
        for request in std::mem::take(&mut self.held) {
            self.serve(&request);
        }
        println!("{DONE}");
    }

    fn serve(&mut self, request: &[u8]) {
        let opcode = word(request, 4);
        let is_transfer = matches!(opcode, opcode::READ | opcode::WRITE | opcode::FSYNC);
        let hangs = match self.told {
            HANG => is_transfer || matches!(opcode, opcode::OPEN | opcode::GETATTR),
            HANG_CLOSES => opcode == opcode::FLUSH,
            FAIL_READS => opcode == opcode::GETATTR,
            _ => false,
        };
        if hangs {
            return self.held.push(request.to_vec());
        }
        if self.delay > Duration::ZERO && is_transfer {
            return self.late.push_back((Instant::now() + self.delay, request.to_vec()));
        }
        self.answer(request);
    }

    fn answer(&mut self, request: &[u8]) {
        let (opcode, node) = (word(request, 4), long(request, 16));
        let answer = match opcode {
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return,
            opcode::INIT => Ok(wire::init(request, ASYNC_READ | BIG_WRITES | ASYNC_DIO, BACKGROUND_MAX)),
            opcode::LOOKUP if request[IN_HEADER..].starts_with(NAME.as_bytes()) => Ok(entry()),
            opcode::LOOKUP => Err(libc::ENOENT),
            opcode::GETATTR | opcode::SETATTR => Ok(attributes_out(node)),
            opcode::OPEN => Ok(vec![0; 16]),
            opcode::READ if self.told == FAIL_READS => Err(libc::EIO),
            // A handle, the offset, the length.
            opcode::READ => {
                let (offset, length) = (long(request, IN_HEADER + 8), u64::from(word(request, IN_HEADER + 16)));
                Ok(vec![0; FILE_BYTES.saturating_sub(offset).min(length) as usize])
            }
            opcode::WRITE => Ok(longs(&[u64::from(word(request, IN_HEADER + 16))])),
            opcode::STATFS => Ok(wire::statistics(&[0; 5])),
            opcode::FLUSH | opcode::RELEASE | opcode::FSYNC => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        wire::reply(&self.device, request, answer);
    }
}

fn attributes(node: u64) -> Vec<u8> {
    let is_folder = node == 1;
    let length = if is_folder { 0 } else { FILE_BYTES };
    let mut out = longs(&[node, length, length / 512, 0, 0, 0]);
    let mode = if is_folder { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    out.extend(words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    out
}

fn attributes_out(node: u64) -> Vec<u8> {
    [vec![0; 16], attributes(node)].concat()
}

fn entry() -> Vec<u8> {
    const NODE: u64 = 2;
    /// How long the kernel may keep the name, in seconds.
    const KEPT: u64 = 3600;
    // Between them a generation; behind them how long attributes may be kept, and nanoseconds.
    [[NODE, 0, KEPT].map(u64::to_ne_bytes).concat(), vec![0; 16], attributes(NODE)].concat()
}
