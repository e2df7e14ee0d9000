//! Files of a directory, as a case finds them: in the page cache, or verified not to be.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nowait_bench::sys::{self, PAGE};
use nowait_bench::{Error, ErrorKind, Result};

/// Share of the files in the page cache when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Cold,
    Hot,
}

impl State {
    pub const ALL: [State; 2] = [State::Cold, State::Hot];

    pub fn name(self) -> &'static str {
        match self {
            State::Cold => "cold",
            State::Hot => "hot",
        }
    }
}

/// Files that stay as they are.
#[derive(Debug)]
pub struct Files(Vec<(PathBuf, File, u64)>);

/// Attempts at having pages cached, or not: some stay for a while that were to go.
const ATTEMPTS: u32 = 6;

impl Files {
    /// All regular files below these directories, written back.
    pub fn below(dirs: &[&Path]) -> Result<Files> {
        let mut files = Vec::new();
        dirs.iter().try_for_each(|dir| add(dir, &mut files))?;
        Ok(Files(files))
    }

    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, _, size)| size).sum()
    }

    pub fn make(&self, state: State) -> Result<()> {
        match state {
            State::Cold => self.make_cold(),
            State::Hot => self.make_hot(),
        }
    }

    /// Drops all pages of all files, and verifies that all but one in a thousand are gone.
    fn make_cold(&self) -> Result<()> {
        for (path, file, size) in &self.0 {
            let allowed = size.div_ceil(PAGE) / 1000;
            let mut cached = u64::MAX;
            for attempt in 0..ATTEMPTS {
                pause(attempt);
                sys::drop_cache(file).map_err(|error| Error::io("fadvise DONTNEED on", path, &error))?;
                cached = pages(path, file, *size)?.0;
                if cached <= allowed {
                    break;
                }
            }
            if cached > allowed {
                let text = format!(
                    "cannot make {} cold: {cached} pages are still cached; choose a --dir on a disk, and end what \
                     reads it",
                    path.display()
                );
                return Err(Error::new(ErrorKind::NotCold, text));
            }
        }
        Ok(())
    }

    /// Reads what is not in the page cache, and verifies that it stays there.
    fn make_hot(&self) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        for (path, file, size) in &self.0 {
            let mut missing = u64::MAX;
            for attempt in 0..ATTEMPTS {
                pause(attempt);
                missing = pages(path, file, *size)?.1;
                if missing == 0 {
                    break;
                }
                let mut opened = File::open(path).map_err(|error| Error::io("open", path, &error))?;
                while opened.read(&mut buffer).map_err(|error| Error::io("read", path, &error))? > 0 {}
            }
            if missing > 0 {
                let text = format!(
                    "cannot keep {} in the page cache: {missing} pages are gone after reading; use a smaller --scale",
                    path.display()
                );
                return Err(Error::new(ErrorKind::Other, text));
            }
        }
        Ok(())
    }
}

fn add(dir: &Path, files: &mut Vec<(PathBuf, File, u64)>) -> Result<()> {
    let failed = |operation, path: &Path| {
        let path = path.to_path_buf();
        move |error| Error::io(operation, &path, &error)
    };
    for entry in fs::read_dir(dir).map_err(failed("read the directory", dir))? {
        let path = entry.map_err(failed("read the directory", dir))?.path();
        if path.is_dir() {
            add(&path, files)?;
            continue;
        }
        let file = File::open(&path).map_err(failed("open", &path))?;
        file.sync_all().map_err(failed("sync", &path))?;
        let size = file.metadata().map_err(failed("stat", &path))?.len();
        files.push((path, file, size));
    }
    Ok(())
}

/// Numbers of pages that are in the page cache, and that are not.
fn pages(path: &Path, file: &File, size: u64) -> Result<(u64, u64)> {
    let pages = sys::residency(file, size).map_err(|error| Error::io("mincore of", path, &error))?;
    let cached = pages.iter().filter(|&&page| page).count() as u64;
    Ok((cached, pages.len() as u64 - cached))
}

/// Waits before another attempt; not before the first.
fn pause(attempt: u32) {
    if attempt > 0 {
        thread::sleep(Duration::from_millis(10 << attempt));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_directories_of_directories_are_made_cold_and_hot() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        for (name, length) in [("a", 3 << 20), ("below/b", 5000), ("below/empty", 0)] {
            fs::write(dir.path().join(name), vec![7; length]).unwrap();
        }
        let files = Files::below(&[dir.path()]).unwrap();
        assert_eq!((files.0.len(), files.bytes()), (3, (3 << 20) + 5000));
        let cached = || files.0.iter().map(|(path, file, size)| pages(path, file, *size).unwrap().0).sum::<u64>();
        match files.make(State::Cold) {
            // In memory nothing is ever cold.
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotCold),
            Ok(()) => assert_eq!(cached(), 0),
        }
        files.make(State::Hot).unwrap();
        assert_eq!(cached(), 768 + 2);
        assert!(Files::below(&[&dir.path().join("missing")]).is_err());
    }
}
