//! The header `Range` of a request (RFC 9110, section 14).

use std::ops::Range;

/// Bytes of a file that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Whole,
    Part(Range<u64>),
    /// No byte of the range exists: status 416.
    Nothing,
}

/// Interprets the header for a file of `size` bytes. Several ranges, other units and what is malformed
/// count as no header, as the standard allows.
pub(crate) fn parse(header: Option<&str>, size: u64) -> Asked {
    let Some(bounds) = header.and_then(|header| header.strip_prefix("bytes=")) else { return Asked::Whole };
    let Some((first, last)) = bounds.split_once('-') else { return Asked::Whole };
    let part = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(length)) if first.is_empty() => size.saturating_sub(length)..size,
        _ => return Asked::Whole,
    };
    if part.is_empty() { Asked::Nothing } else { Asked::Part(part) }
}

/// Digits only: `u64::from_str` also accepts a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_file_of_ten_bytes() {
        let cases = [
            (None, Asked::Whole),
            (Some("bytes=0-0"), Asked::Part(0..1)),
            (Some("bytes=2-5"), Asked::Part(2..6)),
            (Some("bytes=9-100"), Asked::Part(9..10)),
            (Some("bytes=4-"), Asked::Part(4..10)),
            (Some("bytes=-3"), Asked::Part(7..10)),
            (Some("bytes=-30"), Asked::Part(0..10)),
            (Some("bytes=0-18446744073709551615"), Asked::Part(0..10)),
            (Some("bytes=10-"), Asked::Nothing),
            (Some("bytes=10-11"), Asked::Nothing),
            (Some("bytes=-0"), Asked::Nothing),
            (Some("bytes=5-4"), Asked::Whole),
            (Some("bytes=0-1,4-5"), Asked::Whole),
            (Some("bytes=+1-2"), Asked::Whole),
            (Some("bytes=-"), Asked::Whole),
            (Some("lines=1-2"), Asked::Whole),
        ];
        for (header, asked) in cases {
            assert_eq!(parse(header, 10), asked, "{header:?}");
        }
        assert_eq!(parse(Some("bytes=0-"), 0), Asked::Nothing);
    }
}
