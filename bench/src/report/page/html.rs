//! HTML and SVG as text. What is not a constant of ours is escaped, always: there is no other way
//! in.

use std::fmt::{Display, Write};

#[derive(Default)]
pub(super) struct Html(String);

/// A name and a value.
pub(super) type Attribute<'a> = (&'static str, &'a dyn Display);

impl Html {
    /// An element with what `inside` puts into it.
    pub(super) fn element(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        inside: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.open(name, attributes, ">");
        inside(self);
        let _ = write!(self.0, "</{name}>");
        self
    }

    /// An element with a text.
    pub(super) fn with_text(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        text: impl Display,
    ) -> &mut Self {
        self.element(name, attributes, |html| {
            html.text(text);
        })
    }

    /// An element with nothing in it, in the form that both HTML and SVG take.
    pub(super) fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) -> &mut Self {
        self.open(name, attributes, "/>");
        self
    }

    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    pub(super) fn constant(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    fn open(&mut self, name: &'static str, attributes: &[Attribute<'_>], end: &'static str) {
        let _ = write!(self.0, "<{name}");
        for (name, value) in attributes {
            let _ = write!(self.0, " {name}=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push_str(end);
    }
}

struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // Neither text nor an entity may have these.
                control if control.is_control() && !matches!(control, '\n' | '\t') => self.0.push('\u{fffd}'),
                plain => self.0.push(plain),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_attributes_are_escaped() {
        let mut html = Html::default();
        html.with_text("p", &[("title", &"\"><script>'")], "a<b>&c\u{1}");
        let expected = "<p title=\"&quot;&gt;&lt;script&gt;&#39;\">a&lt;b&gt;&amp;c\u{fffd}</p>";
        assert_eq!(html.finish(), expected);
    }
}
