//! Ways that copy files and trees: commands, given names.

pub(super) mod command;
mod process;
