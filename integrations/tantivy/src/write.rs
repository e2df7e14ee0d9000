//! A new file of an index.

use std::io::{self, Write};

use nowait::File;
use nowait::stream::Writer;
use tantivy::directory::{AntiCallToken, TerminatingWrite};

/// Writes a file in order, with write-behind.
pub(super) struct Output(Writer);

impl Output {
    pub(super) fn new(file: &File) -> Output {
        Output(Writer::new(file, 0))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl TerminatingWrite for Output {
    /// Makes the contents durable.
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        Ok(self.0.sync_data().wait()?)
    }
}
