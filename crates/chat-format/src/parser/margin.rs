//! Whitespace and markers after a text. They become part of it only if more text follows.

/// Whitespace and markers that wait for more text.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingWhitespace {
    /// Whitespace after the text so far.
    space: String,
    /// The length of the whitespace before the latest marker, until text follows the marker.
    before_marker: Option<usize>,
    /// Markers that end the text, with the whitespace around them. They become text if any text follows.
    ends: String,
    /// True after the first text.
    pub(super) has_text: bool,
}

impl PendingWhitespace {
    /// Adds whitespace before the first character of a text.
    pub(super) fn push_space(&mut self, space: &str) {
        if self.has_text || self.before_marker.is_none() {
            self.space.push_str(space);
        }
    }

    /// Adds more text. Returns the final text, which excludes trailing whitespace.
    pub(super) fn text(&mut self, more: &str) -> String {
        let end = more.trim_end().len();
        if end == 0 {
            let waiting = if self.ends.is_empty() { &mut self.space } else { &mut self.ends };
            waiting.push_str(more);
            return String::new();
        }
        (self.has_text, self.before_marker) = (true, None);
        let mut certain = std::mem::take(&mut self.space);
        certain.push_str(&std::mem::take(&mut self.ends));
        certain.push_str(&more[..end]);
        self.space.push_str(&more[end..]);
        certain
    }

    /// Adds a marker that ends the text.
    pub(super) fn push_end(&mut self, marker: &str) {
        self.ends.push_str(marker);
    }

    /// Adds a marker that ends the text, together with the whitespace before it.
    pub(super) fn push_closing_end(&mut self, marker: &str) {
        self.ends.push_str(&std::mem::take(&mut self.space));
        self.ends.push_str(marker);
    }

    /// Skips a marker. Drops whitespace before the first text and between two markers.
    pub(super) fn pass_marker(&mut self) {
        self.ends.clear();
        let kept = if self.has_text { self.before_marker.unwrap_or(self.space.len()) } else { 0 };
        self.space.truncate(kept);
        self.before_marker = Some(kept);
    }

    /// Returns the whitespace after the text, and removes it.
    pub(super) fn take_space(&mut self) -> String {
        std::mem::take(&mut self.space)
    }

    /// Returns the whitespace at the end of an answer, and removes it. After a marker there is none.
    pub(super) fn last_space(&mut self) -> String {
        if self.before_marker.is_none() { self.take_space() } else { String::new() }
    }
}
