//! Reads and verifies the control file, or rebuilds it from segment headers if it is lost.

use crate::dir::{CONTROL, LogDir, Unreadable, Window, is_direct};
use crate::format::{BadControl, CONTROL_BYTES, Control, Epochs, Measured, NUMBER_MAX, PAGE, SegmentHeader, VERSION};
use crate::options::{Durability, SEGMENT_BYTES_MAX, Submitter};
use crate::os;
use nowait::{Error, ErrorKind, OpenOptions, Result};

use super::Place;

/// A control file, with its damage.
#[derive(Default)]
pub(crate) struct ControlFile {
    pub(crate) control: Option<Control>,
    pub(crate) bad_copy: Option<Place>,
    pub(crate) unreadable: Vec<Unreadable>,
}

pub(crate) fn read_control(dir: &LogDir) -> Result<ControlFile> {
    let path = dir.join(CONTROL);
    let file = match dir.open_file(OpenOptions::new().read(true), CONTROL) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ControlFile::default()),
        other => other?,
    };
    let mut window = Window::past_errors(file);
    let bytes = window.at(0, CONTROL_BYTES)?;
    let bad_copy = Control::bad_copy(bytes).map(|offset| Place { path: path.clone(), offset });
    match Control::decode(bytes) {
        Ok(control) if is_plausible(&control) => {
            Ok(ControlFile { control: Some(control), bad_copy, unreadable: window.take_unreadable() })
        }
        Err(BadControl::Version(version)) => {
            let advice = match version > VERSION {
                true => "use a later one",
                // No release wrote version 1.
                false => "read it with the library that wrote it, and append its records to a new log",
            };
            let text =
                format!("the log has version {version} of the format, and this library supports {VERSION}: {advice}");
            let error = os::error(os::RECOVER, ErrorKind::Unsupported, &path);
            Err(error.with_range(0, CONTROL_BYTES as u64).with_advice(text))
        }
        Ok(_) | Err(BadControl::Damaged) => {
            Ok(ControlFile { unreadable: window.take_unreadable(), ..ControlFile::default() })
        }
    }
}

fn is_plausible(control: &Control) -> bool {
    (2 * PAGE as u64..=SEGMENT_BYTES_MAX).contains(&control.segment_bytes)
        && control.segment_bytes % PAGE as u64 == 0
        && control.depth > 0
        && control.oldest <= control.newest
        && control.newest <= NUMBER_MAX
        && control.head <= control.newest
        && control.watermark <= NUMBER_MAX
        && control.epochs.newest() <= NUMBER_MAX
        && control.epochs.are_in_order()
}

/// True if the creation of a log was interrupted: it creates one segment of zeros, and writes the
/// control file last.
pub(crate) fn is_unfinished(dir: &LogDir, numbers: &[u64]) -> Result<bool> {
    let [number @ 1] = *numbers else { return Ok(numbers.is_empty()) };
    let mut window = Window::new(dir.open(number, false, true)?);
    Ok(window.at(0, PAGE)?.iter().all(|byte| *byte == 0))
}

/// Rebuilds a control file from segment headers. They do not contain the strategy, so the slowest
/// is chosen, which works everywhere.
pub(crate) fn rebuild_control(dir: &LogDir, numbers: &[u64]) -> Result<Control> {
    let mut rebuilt: Option<Control> = None;
    for &number in numbers {
        let file = dir.open(number, false, true)?;
        let direct = is_direct(&file);
        let header = SegmentHeader::decode_unknown(Window::past_errors(file).at(0, PAGE)?, number);
        let Some(header) = header else { continue };
        let control = Control {
            log_id: header.log_id,
            segment_bytes: header.bytes,
            sync: Durability::WriteAndSync.code(),
            caller: Submitter::Call.code(),
            depth: 1,
            direct,
            // The range is unknown, so no segment counts as missing.
            oldest: 0,
            newest: 0,
            measured: Measured::default(),
            head: 0,
            watermark: 0,
            epochs: Epochs::default(),
        };
        if rebuilt.as_ref().is_some_and(|known| known.log_id != control.log_id) {
            return Err(no_control(dir, "the segments belong to several logs"));
        }
        let largest = rebuilt.as_ref().map_or(0, |known| known.segment_bytes).max(control.segment_bytes);
        rebuilt = Some(Control { segment_bytes: largest, ..rebuilt.unwrap_or(control) });
    }
    rebuilt.filter(is_plausible).ok_or_else(|| no_control(dir, "no segment has an intact header"))
}

/// Returns the newest missing segment after `head`, the newest one of the chain. The control file
/// shows that it existed. Lower numbers that the chain omits were cut off, put aside by a salvage,
/// or left by an earlier opening.
pub(crate) fn missing_behind(control: &Control, numbers: &[u64], head: u64) -> Option<u64> {
    let there = numbers.iter().rev().skip_while(|number| **number > control.newest);
    let in_a_row = (1..=control.newest).rev().zip(there).take_while(|(expected, number)| expected == *number);
    let missing = control.newest - in_a_row.count() as u64;
    (missing > head && missing >= control.oldest).then_some(missing).filter(|missing| *missing > 0)
}

fn no_control(dir: &LogDir, why: &str) -> Error {
    let path = dir.join(CONTROL);
    let text = format!("the control file is lost, and {why}; restore the control file from a copy");
    os::error(os::RECOVER, ErrorKind::Damaged, &path).with_range(0, CONTROL_BYTES as u64).with_advice(text)
}
