//! Selects the measured tables, and rejects options that do not apply to them.

use super::{TABLES, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::measure::options::Options;

pub fn by_name(name: &str) -> Option<&'static Table> {
    TABLES.iter().copied().find(|table| table.name == name)
}

/// Returns the table of this name; for a table of an earlier version, the usual values.
pub fn known(name: &str) -> &'static Table {
    by_name(name).unwrap_or(&Table::USUAL)
}

/// Returns whether the speeds of this table rank its ways.
pub fn ranks(name: &str) -> bool {
    known(name).ranked
}

/// Returns the tables with a name on the command line.
pub fn to_ask_for() -> impl Iterator<Item = &'static Table> {
    TABLES.iter().copied().filter(|table| table.part_of.is_none())
}

/// Returns the tables to measure: the named ones, or otherwise the usual ones that the options
/// allow.
pub fn asked(names: &[String], options: &Options) -> Vec<&'static Table> {
    let named = |table: &&'static Table| names.iter().any(|name| name == table.asked_as());
    if !names.is_empty() {
        return TABLES.iter().copied().filter(named).collect();
    }
    let exclusive: Vec<&str> = options_given(options).filter(|option| EXCLUSIVE.contains(option)).collect();
    let takes_all = |table: &&'static Table| exclusive.iter().all(|option| table.takes.contains(option));
    let usual: Vec<_> = TABLES.iter().copied().filter(|table| table.usual).filter(takes_all).collect();
    // If no table has any of the ways, keep all: `check` reports the error.
    let with_ways: Vec<_> = usual.iter().copied().filter(|table| has_ways(table, options)).collect();
    if with_ways.is_empty() { usual } else { with_ways }
}

fn has_ways(table: &Table, options: &Options) -> bool {
    table.ways(options).iter().any(|way| options.chooses(way))
}

/// Options that every named table must take. Other options must be taken by at least one of them.
const EXCLUSIVE: [&str; 1] = ["direct"];

fn options_given(options: &Options) -> impl Iterator<Item = &'static str> {
    options.given().into_iter().filter(|(_, given)| *given).map(|(option, _)| option)
}

/// Returns an option as on the command line.
fn flag(option: &str) -> String {
    format!("--{}", option.replace('_', "-"))
}

/// Rejects options that apply to no named table, or leave a table nothing to measure.
pub fn check(tables: &[&'static Table], options: &Options) -> Result<()> {
    for option in options_given(options) {
        let (exclusive, takers) = (EXCLUSIVE.contains(&option), takers(option));
        let takes = |table: &&&Table| table.takes.contains(&option);
        let one = takers.len() == 1;
        let the_tables = if one { "the table" } else { "the tables" };
        if exclusive && !tables.iter().all(|table| takes(&table) || table.part_of.is_some()) {
            let (option, takers) = (flag(option), listed(&takers));
            return Err(usage(format!("{option} applies only to {the_tables} {takers}; omit it, or the other tables")));
        }
        if !exclusive && !tables.iter().any(|table| takes(&table)) {
            let name = if one { "it" } else { "one of them" };
            return Err(usage(format!(
                "{} applies only to {the_tables} {}; name {name}",
                flag(option),
                listed(&takers)
            )));
        }
    }
    for table in tables {
        let name = table.asked_as();
        if options.file.is_some() && (table.writes_into)(options).is_some() {
            return Err(usage(format!(
                "--file is never modified, but the table {name} writes; omit --file, or name other tables"
            )));
        }
        let mut group = tables.iter().filter(|other| other.asked_as() == name);
        if !group.clone().any(|table| has_ways(table, options)) {
            let all: Vec<&str> = group.by_ref().flat_map(|table| table.ways(options)).collect();
            let mattering = options_given(options).filter(|option| table.takes.contains(option));
            let mattering: Vec<String> = mattering.map(flag).collect();
            let with = if mattering.is_empty() { String::new() } else { format!(" with these {}", listed(&mattering)) };
            return Err(usage(format!("none of --ways is in the table {name}{with}; choose among {}", all.join(", "))));
        }
    }
    Ok(())
}

/// Returns the names of the tables that take an option.
fn takers(option: &str) -> Vec<&'static str> {
    to_ask_for().filter(|table| table.takes.contains(&option)).map(|table| table.name).collect()
}

/// Formats as `a, b and c`.
pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An option that `check` does not know would be ignored if no named table takes it.
    #[test]
    fn every_option_of_a_table_is_checked_and_every_one_that_is_checked_is_taken() {
        let known: Vec<&str> = Options::default().given().iter().map(|(option, _)| *option).collect();
        let taken: Vec<&str> = TABLES.iter().flat_map(|table| table.takes).copied().collect();
        assert!(taken.iter().all(|option| known.contains(option)), "{taken:?}");
        assert!(known.iter().all(|option| taken.contains(option)), "{known:?}");
        assert!(EXCLUSIVE.iter().all(|option| known.contains(option)));
        assert!(Options::new(true, 1).given().iter().all(|(_, given)| !given));
    }

    #[test]
    fn every_table_has_a_name_of_its_own_and_can_be_asked_for_and_every_case_too() {
        for (i, table) in TABLES.iter().enumerate() {
            assert!(TABLES[..i].iter().all(|other| other.name != table.name));
            assert!(to_ask_for().any(|asked| asked.name == table.asked_as()), "{}", table.name);
            assert!(table.title.starts_with(&format!("{}: ", table.name)), "{}", table.name);
            let options = Options::new(false, 1);
            assert!(!table.ways(&options).is_empty() && !table.about.ends_with('.'), "{}", table.name);
            let cases = (table.cases)(&options);
            for (i, case) in cases.iter().enumerate() {
                assert!(cases[..i].iter().all(|other| other.name != case.name), "{} {}", table.name, case.name);
            }
        }
        assert_eq!(asked(&[], &Options::new(true, 1)).len(), 3);
        assert_eq!(asked(&["reads".to_owned()], &Options::new(true, 1)).len(), 1);
    }
}
