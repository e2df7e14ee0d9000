//! A file system in memory whose disk and quota fail as a test says (linux/fuse.h).
//!
//! A thread of the test serves it, and the test itself never touches the mount: a thread that waited
//! for an answer would keep the process from ending. It looks at the files where they are kept.

#[path = "../../../nowait/tests/common/fuse/wire.rs"]
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;
use tempfile::TempDir;

use self::wire::{ASYNC_READ, BIG_WRITES, IN_HEADER, WRITE_BYTES_MAX, long, longs, opcode, word, words};
use super::mounts;

const ROOT: u64 = 1;
/// Most requests at a time that no thread waits for.
const BACKGROUND_MAX: u32 = 16;

/// What goes wrong; nothing, without more said.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Each `close(2)`: where a server stores data, and finds that a quota is used up.
    pub flush: Option<Errno>,
    pub sync: Option<Errno>,
    pub rename: Option<Errno>,
    pub set_owner: Option<Errno>,
    /// Reads and writes of the byte at this offset.
    pub read: Option<(u64, Errno)>,
    pub write: Option<(u64, Errno)>,
    /// A bit of the byte at this offset is stored wrong.
    pub rot: Option<u64>,
    /// Times are kept in steps of so many seconds, as FAT keeps them in steps of two.
    pub time_step_seconds: Option<u64>,
}

/// The file system, mounted; unmounted when dropped.
pub(crate) struct Faulty {
    disk: Arc<Mutex<Disk>>,
    point: PathBuf,
    server: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Faulty {
    /// Makes one, or says why not; a kernel without FUSE is none that the tests require.
    pub(crate) fn or_skip() -> Option<Faulty> {
        if !wire::is_there() {
            return None;
        }
        mounts::or_skip("a file system of our own (FUSE)", Faulty::new())
    }

    fn new() -> Result<Faulty, String> {
        let (dir, point) = mounts::folder_and_point()?;
        let device = File::options().read(true).write(true).open("/dev/fuse").map_err(|error| error.to_string())?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        let mounted =
            rustix::mount::mount("nowait-test", &point, "fuse", rustix::mount::MountFlags::empty(), &*options);
        mounted.map_err(|errno| format!("mount: {errno}"))?;
        let disk = Arc::new(Mutex::new(Disk::new()));
        let served = disk.clone();
        let server = std::thread::spawn(move || serve(device, &served));
        Ok(Faulty { disk, point, server: Some(server), _dir: dir })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    pub(crate) fn set(&self, faults: Faults) {
        self.disk().faults = faults;
    }

    /// Makes a file in the root.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let mut disk = self.disk();
        let node = disk.make(ROOT, name.as_bytes(), libc_mode::FILE | 0o644);
        disk.nodes.get_mut(&node).unwrap().bytes = bytes.to_vec();
    }

    /// Removes all files.
    pub(crate) fn clear(&self) {
        self.disk().nodes.get_mut(&ROOT).unwrap().entries.clear();
    }

    /// Bytes of a file in the root.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk();
        let node = disk.nodes[&ROOT].entries.get(name.as_bytes())?;
        Some(disk.nodes[node].bytes.clone())
    }

    /// Names in the root, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.disk().nodes[&ROOT].entries.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        mounts::unmount(&self.point);
        // It ends with the mount.
        let _ = self.server.take().map(JoinHandle::join);
    }
}

/// Types in a mode.
mod libc_mode {
    pub(super) const TYPE: u32 = 0o170_000;
    pub(super) const DIRECTORY: u32 = 0o040_000;
    pub(super) const FILE: u32 = 0o100_000;
    pub(super) const LINK: u32 = 0o120_000;
}

#[derive(Default)]
struct Node {
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds of access and modification.
    times: [(u64, u32); 2],
    bytes: Vec<u8>,
    entries: BTreeMap<Vec<u8>, u64>,
}

struct Disk {
    nodes: HashMap<u64, Node>,
    next: u64,
    faults: Faults,
}

type Answer = Result<Vec<u8>, Errno>;

fn serve(mut device: File, disk: &Mutex<Disk>) {
    let mut request = vec![0; (2 * WRITE_BYTES_MAX) as usize];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) => length,
            // Interrupted before it was read.
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => continue,
            // Unmounted.
            Err(_) => return,
        };
        let request = &request[..length];
        let opcode = word(request, 4);
        if matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
            continue;
        }
        let answer = disk.lock().unwrap_or_else(PoisonError::into_inner).answer(opcode, request);
        wire::reply(&device, request, answer.map_err(Errno::raw_os_error));
    }
}

/// Texts that end in zero bytes.
fn texts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == 0)
}

fn fails(fault: Option<Errno>) -> Answer {
    fault.map_or(Ok(Vec::new()), Err)
}

impl Disk {
    fn new() -> Self {
        let root = Node { mode: libc_mode::DIRECTORY | 0o755, ..Node::default() };
        Disk { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1, faults: Faults::default() }
    }

    fn answer(&mut self, opcode: u32, request: &[u8]) -> Answer {
        let (node, body) = (long(request, 16), &request[IN_HEADER..]);
        let name = |at: usize| texts(&body[at..]).next().unwrap_or_default();
        match opcode {
            opcode::INIT => Ok(wire::init(request, ASYNC_READ | BIG_WRITES, BACKGROUND_MAX)),
            opcode::LOOKUP => self.child(node, name(0)).map(|child| self.entry(child)),
            opcode::GETATTR => Ok(self.attributes_out(node)),
            opcode::SETATTR => self.set_attributes(node, body),
            opcode::READLINK => Ok(self.nodes[&node].bytes.clone()),
            opcode::SYMLINK => {
                let mut given = texts(body);
                let (name, target) = (given.next().unwrap(), given.next().unwrap());
                let made = self.make(node, name, libc_mode::LINK | 0o777);
                self.nodes.get_mut(&made).unwrap().bytes = target.to_vec();
                Ok(self.entry(made))
            }
            opcode::MKDIR => {
                let made = self.make(node, name(8), libc_mode::DIRECTORY | word(body, 0) & 0o7777);
                Ok(self.entry(made))
            }
            opcode::CREATE => {
                let made = self.make(node, name(16), libc_mode::FILE | word(body, 4) & 0o7777);
                Ok([self.entry(made), vec![0; 16]].concat())
            }
            // Those that are open still have their nodes.
            opcode::UNLINK | opcode::RMDIR => {
                self.nodes.get_mut(&node).unwrap().entries.remove(name(0)).map(|_| Vec::new()).ok_or(Errno::NOENT)
            }
            opcode::RENAME => {
                fails(self.faults.rename)?;
                let mut given = texts(&body[8..]);
                let (from, to) = (given.next().unwrap(), given.next().unwrap().to_vec());
                let child = self.nodes.get_mut(&node).unwrap().entries.remove(from).ok_or(Errno::NOENT)?;
                self.nodes.get_mut(&long(body, 0)).unwrap().entries.insert(to, child);
                Ok(Vec::new())
            }
            opcode::OPEN | opcode::OPENDIR => Ok(vec![0; 16]),
            opcode::READ => self.read(node, long(body, 8), word(body, 16) as usize),
            opcode::WRITE => self.write(node, long(body, 8), &body[40..]),
            opcode::READDIR => Ok(self.list(node, long(body, 8), word(body, 16) as usize)),
            opcode::STATFS => Ok(wire::statistics(&[1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19])),
            opcode::FLUSH => fails(self.faults.flush),
            opcode::FSYNC => fails(self.faults.sync),
            opcode::RELEASE | opcode::RELEASEDIR | opcode::FSYNCDIR => Ok(Vec::new()),
            _ => Err(Errno::NOSYS),
        }
    }

    fn child(&self, node: u64, name: &[u8]) -> Result<u64, Errno> {
        self.nodes[&node].entries.get(name).copied().ok_or(Errno::NOENT)
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32) -> u64 {
        let made = self.next;
        self.next += 1;
        self.nodes.insert(made, Node { mode, ..Node::default() });
        self.nodes.get_mut(&parent).unwrap().entries.insert(name.to_vec(), made);
        made
    }

    fn read(&self, node: u64, offset: u64, length: usize) -> Answer {
        let bytes = &self.nodes[&node].bytes;
        let start = bytes.len().min(offset as usize);
        let end = bytes.len().min(start + length);
        match self.faults.read {
            Some((at, errno)) if (start as u64..end as u64).contains(&at) => Err(errno),
            _ => Ok(bytes[start..end].to_vec()),
        }
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Answer {
        let range = offset..offset + data.len() as u64;
        if let Some((_, errno)) = self.faults.write.filter(|(at, _)| range.contains(at)) {
            return Err(errno);
        }
        let bytes = &mut self.nodes.get_mut(&node).unwrap().bytes;
        if bytes.len() < range.end as usize {
            bytes.resize(range.end as usize, 0);
        }
        bytes[range.start as usize..range.end as usize].copy_from_slice(data);
        if let Some(at) = self.faults.rot.filter(|at| range.contains(at)) {
            bytes[at as usize] ^= 1;
        }
        Ok(words(&[data.len() as u32, 0]))
    }

    fn set_attributes(&mut self, node: u64, body: &[u8]) -> Answer {
        const MODE: u32 = 1 << 0;
        const OWNER: u32 = 1 << 1 | 1 << 2;
        const SIZE: u32 = 1 << 3;
        const TIMES: u32 = 1 << 4 | 1 << 5;
        let valid = word(body, 0);
        if valid & OWNER != 0 {
            fails(self.faults.set_owner)?;
        }
        let found = self.nodes.get_mut(&node).unwrap();
        if valid & SIZE != 0 {
            found.bytes.resize(long(body, 16) as usize, 0);
        }
        if valid & MODE != 0 {
            found.mode = found.mode & libc_mode::TYPE | word(body, 68) & 0o7777;
        }
        if valid & OWNER == OWNER {
            found.owner = (word(body, 76), word(body, 80));
        }
        if valid & TIMES == TIMES {
            let kept = |seconds: u64, nanoseconds| match self.faults.time_step_seconds {
                Some(step) => (seconds / step * step, 0),
                None => (seconds, nanoseconds),
            };
            found.times = [kept(long(body, 32), word(body, 56)), kept(long(body, 40), word(body, 60))];
        }
        Ok(self.attributes_out(node))
    }

    fn list(&self, node: u64, offset: u64, room: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, (name, child)) in self.nodes[&node].entries.iter().enumerate().skip(offset as usize) {
            let file_type = (self.nodes[child].mode & libc_mode::TYPE) >> 12;
            let mut entry = longs(&[*child, index as u64 + 1]);
            entry.extend(words(&[name.len() as u32, file_type]));
            entry.extend(name);
            entry.resize(entry.len().next_multiple_of(8), 0);
            if out.len() + entry.len() > room {
                break;
            }
            out.extend(entry);
        }
        out
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let Node { mode, owner, times: [access, modification], bytes, .. } = &self.nodes[&node];
        let size = bytes.len() as u64;
        let mut out = longs(&[node, size, size.div_ceil(512), access.0, modification.0, 0]);
        out.extend(words(&[access.1, modification.1, 0, *mode, 1, owner.0, owner.1, 0, 4096, 0]));
        out
    }

    /// Attributes that the kernel may not keep.
    fn attributes_out(&self, node: u64) -> Vec<u8> {
        [vec![0; 16], self.attributes(node)].concat()
    }

    fn entry(&self, node: u64) -> Vec<u8> {
        [longs(&[node, 0, 0, 0, 0]), self.attributes(node)].concat()
    }
}
