//! Keeps the beginning and the end of an output within a byte limit.

use std::collections::VecDeque;

/// Keeps the first and the last bytes, half of the limit each, and counts the dropped bytes between them.
#[derive(Debug)]
pub struct Clipped {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Clipped {
    /// Creates a buffer for this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { half: bytes / 2, head: Vec::new(), tail: VecDeque::new(), dropped: 0 }
    }

    /// Appends output.
    pub fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.dropped += over as u64;
    }

    /// Returns the text with a note of what was dropped. Invalid UTF-8 becomes replacement characters.
    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        // A character divided by the cut is dropped too.
        let end = match std::str::from_utf8(&self.head) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.head.len(),
        };
        let start = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        let dropped = self.dropped + (self.head.len() - end + start) as u64;
        let (head, tail) =
            (String::from_utf8_lossy(&self.head[..end]), String::from_utf8_lossy(&tail[start..]));
        format!("{head}\n[{dropped} bytes were left out here]\n{tail}")
    }
}

/// Returns a text without its middle if it has more than this many bytes.
pub(crate) fn clipped(text: &str, bytes: usize) -> String {
    let mut clipped = Clipped::new(bytes);
    clipped.push(text.as_bytes());
    clipped.text()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clipped(bytes: usize, segments: &[&[u8]]) -> Clipped {
        let mut clipped = Clipped::new(bytes);
        for segment in segments {
            clipped.push(segment);
        }
        clipped
    }

    #[test]
    fn a_short_text_stays_and_a_long_one_says_what_it_lost() {
        assert_eq!(clipped(8, &[b"abcd", b"efgh"]).text(), "abcdefgh");
        assert_eq!(clipped(8, &[b"abcd", b"efghi"]).text(), "abcd\n[1 bytes were left out here]\nfghi");
        assert_eq!(clipped(0, &[b"abc"]).text(), "\n[3 bytes were left out here]\n");
        // The cuts divide two-byte characters.
        assert_eq!(clipped(6, &["éééééé".as_bytes()]).text(), "é\n[8 bytes were left out here]\né");
        assert_eq!(clipped(6, &[b"a\xffb"]).text(), "a\u{fffd}b");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            segments in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            bytes in 0..64usize,
        ) {
            let slices: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
            let whole = segments.concat();
            let text = clipped(bytes, &slices).text();
            prop_assert_eq!(&text, &clipped(bytes, &[&whole]).text());
            if whole.len() <= bytes / 2 * 2 {
                prop_assert_eq!(text, String::from_utf8_lossy(&whole));
            }
        }
    }
}
