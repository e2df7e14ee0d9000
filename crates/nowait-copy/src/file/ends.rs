//! Source and target of a copy, accessed by their descriptors. If the caller passes an instance,
//! only its operations are used, since a simulated file has no descriptor.

use std::cell::OnceCell;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use nowait::{Allocate, DirectIo, File, Nowait, OpenOptions};
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Failure, Operation, Result};
use crate::os::data;

/// One end: a source, or a target that is being written.
pub(crate) struct Endpoint<'a> {
    pub(crate) path: &'a Path,
    pub(crate) device: u64,
    fd: Option<BorrowedFd<'a>>,
    instance: &'a Nowait,
    /// The instance's file, created on first use.
    file: OnceCell<File>,
}

impl<'a> Endpoint<'a> {
    /// Uses a descriptor; the instance makes the calls that a simulated file needs.
    pub(crate) fn of_descriptor(path: &'a Path, device: u64, fd: BorrowedFd<'a>, instance: &'a Nowait) -> Self {
        Endpoint { path, device, fd: Some(fd), instance, file: OnceCell::new() }
    }

    /// Uses only operations of an instance.
    pub(crate) fn of_file(path: &'a Path, file: &File, instance: &'a Nowait) -> Self {
        Endpoint { path, device: 0, fd: None, instance, file: OnceCell::from(file.clone()) }
    }

    /// The descriptor, unless only an instance's operations may be used.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'a>> {
        self.fd
    }

    /// The file, through the page cache, for operations of the instance.
    pub(crate) fn file(&self, operation: Operation) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let fd = self.fd.ok_or_else(|| self.failure(operation, Errno::BADF))?;
        let own = fd.try_clone_to_owned().map_err(|error| Failure::from_io(operation, self.path, &error))?;
        let file = File::from_std(self.instance, fs::File::from(own), self.path)
            .map_err(|error| Failure::from_nowait(operation, self.path, &error))?;
        Ok(self.file.get_or_init(|| file))
    }

    /// The file with direct I/O; `None` if that is refused.
    pub(crate) fn direct(&self, writes: bool) -> Option<File> {
        let Some(fd) = self.fd else {
            // A simulated file has only one kind of descriptor.
            return self.file.get().cloned();
        };
        let mut options = OpenOptions::new();
        // If the source was opened with `O_NOATIME`, it is opened again with that flag.
        let flags = rustix::fs::fcntl_getfl(fd).unwrap_or(OFlags::empty()) & OFlags::NOATIME;
        options.read(true).write(writes).direct(true).custom_flags(flags.bits() as i32);
        let file = options.open_in(self.instance, data::descriptor_path(fd)).wait().ok()?;
        matches!(file.direct(), DirectIo::Granted { .. }).then_some(file)
    }

    /// Reads until `buffer` is full or the file ends; returns the number of bytes.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64, uncached: bool) -> Result<usize> {
        let Some(fd) = self.fd else {
            let read = self.file(Operation::Read)?.read_into(buffer, offset);
            return read.map_err(|error| Failure::from_nowait(Operation::Read, self.path, &error).at(offset));
        };
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            match data::read(fd, &mut buffer[done..], at, uncached) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(errno) => return Err(self.failure(Operation::Read, errno).at(at)),
            }
        }
        Ok(done)
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64, uncached: bool) -> Result<()> {
        match self.fd {
            Some(fd) => data::write(fd, bytes, offset, uncached)
                .map_err(|(errno, done)| self.failure(Operation::Write, errno).at(offset + done as u64)),
            None => {
                let written = self.file(Operation::Write)?.write_all_from(bytes, offset);
                written.map_err(|error| Failure::from_nowait(Operation::Write, self.path, &error).at(offset))
            }
        }
    }

    /// Returns the current size of the file.
    pub(crate) fn size(&self) -> Result<u64> {
        match self.fd {
            Some(fd) => {
                let stat = retry_on_intr(|| rustix::fs::fstat(fd));
                let stat = stat.map_err(|errno| self.failure(Operation::Stat, errno))?;
                Ok(u64::try_from(stat.st_size).unwrap_or(0))
            }
            None => {
                let size = self.file(Operation::Stat)?.size().wait();
                size.map_err(|error| Failure::from_nowait(Operation::Stat, self.path, &error))
            }
        }
    }

    pub(crate) fn set_len(&self, length: u64) -> Result<()> {
        match self.fd {
            Some(fd) => retry_on_intr(|| rustix::fs::ftruncate(fd, length))
                .map_err(|errno| self.failure(Operation::Write, errno).at(length)),
            None => {
                let set = self.file(Operation::Write)?.set_len(length).wait();
                set.map_err(|error| Failure::from_nowait(Operation::Write, self.path, &error).at(length))
            }
        }
    }

    /// Reserves a range; returns false if the file system does not support it.
    pub(crate) fn allocate(&self, range: &std::ops::Range<u64>) -> Result<bool> {
        let (allocated, length) = (Operation::Allocate, range.end - range.start);
        let failed = match self.fd {
            Some(fd) => match data::allocate(fd, range) {
                Ok(()) => return Ok(true),
                Err(errno) if data::is_refused(errno) => return Ok(false),
                Err(errno) => self.failure(allocated, errno),
            },
            None => match self.file(allocated)?.allocate(Allocate::Reserve, range.start, length).wait() {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == nowait::ErrorKind::Unsupported => return Ok(false),
                Err(error) => Failure::from_nowait(allocated, self.path, &error),
            },
        };
        Err(failed.at(range.start).with_detail(format!("no room for {length} bytes")))
    }

    /// Punches a hole; returns false if the file system does not support it.
    pub(crate) fn punch(&self, range: &std::ops::Range<u64>) -> Result<bool> {
        let Some(fd) = self.fd else { return Ok(false) };
        match data::punch(fd, range) {
            Ok(()) => Ok(true),
            Err(errno) if data::is_refused(errno) => Ok(false),
            Err(errno) => Err(self.failure(Operation::Write, errno).at(range.start)),
        }
    }

    /// Makes data and metadata durable.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.fd {
            Some(fd) => retry_on_intr(|| rustix::fs::fsync(fd)).map_err(|errno| self.failure(Operation::Sync, errno)),
            None => {
                let synced = self.file(Operation::Sync)?.sync_all().wait();
                synced.map_err(|error| Failure::from_nowait(Operation::Sync, self.path, &error))
            }
        }
    }

    /// Makes the file system report errors now that it would otherwise report at the last
    /// `close(2)`, whose result is ignored: NFS and FUSE send data then, and may exceed a quota or
    /// fill the disk. No other descriptor may have been closed since the last write, since that
    /// close would have received the report.
    pub(crate) fn hand_over(&self) -> Result<()> {
        let Some(fd) = self.fd else { return Ok(()) };
        let failed = |error: &nowait::Error| Failure::from_nowait(Operation::Close, self.path, error);
        let twin = fd.try_clone_to_owned().map_err(|error| Failure::from_io(Operation::Close, self.path, &error))?;
        let twin = File::from_std(self.instance, fs::File::from(twin), self.path).map_err(|error| failed(&error))?;
        twin.close().map(drop).map_err(|error| failed(&error))
    }

    /// Writes a range back to the device and waits, without making it durable.
    pub(crate) fn write_back(&self, offset: u64, length: u64) -> Result<()> {
        let synced = self.file(Operation::Sync)?.sync_range(offset, length).wait();
        synced.map_err(|error| Failure::from_nowait(Operation::Sync, self.path, &error).at(offset))
    }

    /// Opens the file again, to read it back.
    pub(crate) fn reopen(&self) -> Result<Option<File>> {
        let Some(fd) = self.fd else { return Ok(None) };
        let failed = |errno| match errno {
            Errno::NOENT => self
                .failure(Operation::Verify, errno)
                .with_detail("it cannot be opened again, because /proc is not mounted")
                .with_advice("mount /proc, or copy without verification"),
            errno => self.failure(Operation::Verify, errno),
        };
        let own = data::reopen(fd, OFlags::RDONLY).map_err(failed)?;
        let file = File::from_std(self.instance, fs::File::from(own), self.path);
        file.map(Some).map_err(|error| Failure::from_nowait(Operation::Verify, self.path, &error))
    }

    pub(crate) fn failure(&self, operation: Operation, errno: Errno) -> Failure {
        Failure::from_errno(operation, self.path, errno)
    }
}

/// A source and its copy.
pub(crate) struct Ends<'a> {
    pub(crate) source: Endpoint<'a>,
    pub(crate) target: Endpoint<'a>,
}
