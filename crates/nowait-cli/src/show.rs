//! Results and complaints as text.

use std::fmt;
use std::io::{self, Write};
use std::process;

use comfy_table::{Attribute, Cell, CellAlignment, Table};

/// Prints a result. Who reads it may go away, which is no error; a disk that is full is one, and
/// ends the program.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    match stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("cannot print the result: {error}"));
            process::exit(1);
        }
        _ => {}
    }
}

/// Prints an error on stderr. If stderr is closed, the exit code still reports it.
pub(crate) fn complain(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "nowait: {text}");
}

/// Formats a number of things: "1 file", "2 files".
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A table without lines.
pub(crate) fn grid(header: impl Iterator<Item = Cell>) -> Table {
    let mut grid = Table::new();
    grid.load_preset(comfy_table::presets::NOTHING).set_header(header).force_no_tty();
    for column in grid.column_iter_mut() {
        column.set_padding((0, 2));
    }
    grid
}

pub(crate) fn heading(name: &str) -> Cell {
    Cell::new(name).set_alignment(CellAlignment::Right).add_attribute(Attribute::Bold)
}

/// Figures to the right, names to the left.
pub(crate) fn cells(texts: impl IntoIterator<Item = String>) -> Vec<Cell> {
    let align = |text: &String| {
        let name = text.trim_start().starts_with(char::is_alphabetic);
        if name { CellAlignment::Left } else { CellAlignment::Right }
    };
    texts.into_iter().map(|text| Cell::new(&text).set_alignment(align(&text))).collect()
}

pub(crate) fn lines(grid: &Table) -> String {
    grid.lines().map(|line| format!("  {}\n", line.trim_end())).collect()
}
