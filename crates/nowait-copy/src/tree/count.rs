//! Counts the files and bytes to copy, concurrently with the copy, for the time left.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use super::Tree;
use super::dir::DIRECTORY;
use super::dir::{Identity, identity};
use super::listing::Listing;
use super::stat_argument;
use crate::options::Follow;

/// A directory being counted: its descriptor, its listing, and the position in it.
struct Level {
    dir: OwnedFd,
    listing: Listing,
    next: usize,
    relative: PathBuf,
    identity: Identity,
}

impl Tree<'_> {
    /// Counts files and their bytes in all sources. Skips unreadable entries, which the copy
    /// reports.
    pub(crate) fn count_all(&self) {
        for top in &self.tops {
            let source = top.source();
            let Ok(stat) = stat_argument(&source, self.shared.options.follow) else { continue };
            let file_type = FileType::from_raw_mode(stat.st_mode);
            if top.name().is_some_and(|name| self.filter.excludes(None, name, file_type.is_dir())) {
                continue;
            }
            match file_type {
                FileType::RegularFile => self.shared.meter.found(stat.st_size as u64),
                FileType::Directory => {
                    if let Ok(dir) = rustix::fs::openat(CWD, &source, DIRECTORY, Mode::empty()) {
                        self.count_below(dir);
                    }
                }
                _ => {}
            }
        }
        if !self.shared.meter.is_cancelled() {
            self.shared.meter.walked();
        }
    }

    fn count_below(&self, top: OwnedFd) {
        let (follow, one_file_system) = (self.shared.options.follow, self.shared.options.one_file_system);
        let (stat_flags, open_flags) = match follow {
            Follow::Always => (AtFlags::empty(), DIRECTORY),
            _ => (AtFlags::SYMLINK_NOFOLLOW, DIRECTORY | OFlags::NOFOLLOW),
        };
        let level = |dir: OwnedFd, relative| {
            let identity = rustix::fs::fstat(&dir).map_or((0, 0), |stat| identity(&stat));
            let listing = Listing::next_part(dir.as_fd()).unwrap_or_default();
            Level { dir, listing, next: 0, relative, identity }
        };
        let mut levels = vec![level(top, PathBuf::new())];
        while let Some(at) = levels.last_mut() {
            if self.shared.meter.is_cancelled() {
                return;
            }
            if at.next == at.listing.len() {
                match at.listing.has_more {
                    true => (at.listing, at.next) = (Listing::next_part(at.dir.as_fd()).unwrap_or_default(), 0),
                    false => _ = levels.pop(),
                }
                continue;
            }
            let (name, file_type) = at.listing.entry(at.next);
            at.next += 1;
            let stat = || rustix::fs::statat(&at.dir, name, stat_flags);
            let file_type = match file_type {
                FileType::Symlink if follow == Follow::Always => {
                    stat().map_or(file_type, |stat| FileType::from_raw_mode(stat.st_mode))
                }
                known => known,
            };
            let relative = || at.relative.join(OsStr::from_bytes(name.to_bytes()));
            if !self.filter.is_empty() && self.filter.excludes(Some(&relative()), name_of(name), file_type.is_dir()) {
                continue;
            }
            if file_type.is_dir() {
                let opened = rustix::fs::openat(&at.dir, name, open_flags, Mode::empty());
                let below = opened.map(|dir| level(dir, relative())).ok();
                let is_copied = |below: &Level| {
                    let is_loop = levels.iter().any(|above| above.identity == below.identity);
                    !is_loop && (!one_file_system || below.identity.0 == levels[0].identity.0)
                };
                let below = below.filter(is_copied);
                levels.extend(below);
                continue;
            }
            if let Ok(stat) = stat() {
                if FileType::from_raw_mode(stat.st_mode).is_file() {
                    self.shared.meter.found(stat.st_size as u64);
                }
            }
        }
    }
}

fn name_of(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}
