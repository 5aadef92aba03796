//! Converts the characters of a quoted text to JSON.

/// Reads the characters of a text, with escapes of JSON and Python.
#[derive(Debug, Clone, Default)]
pub(super) struct EscapeReader {
    /// An incomplete escape, including its backslash.
    open: Vec<u8>,
}

/// The result of pushing a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escaped {
    Taken,
    /// The byte is not part of the previous escape. Push it again.
    Again,
}

impl EscapeReader {
    /// Returns true if an escape is incomplete.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reads the next byte of a text.
    pub(super) fn push(&mut self, byte: u8, out: &mut Vec<u8>) -> Escaped {
        if self.open.is_empty() {
            if byte == b'\\' {
                self.open.push(byte);
            } else {
                Self::plain(byte, out);
            }
            return Escaped::Taken;
        }
        if let Some(&kind) = self.open.get(1) {
            return self.digit(kind, byte, out);
        }
        match byte {
            b'x' | b'u' | b'U' => {
                self.open.push(byte);
                return Escaped::Taken;
            }
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => out.extend([b'\\', byte]),
            b'\'' => out.push(byte),
            // An unknown escape is a literal backslash.
            _ => {
                out.extend(*b"\\\\");
                self.open.clear();
                return Escaped::Again;
            }
        }
        self.open.clear();
        Escaped::Taken
    }

    /// Writes a literal byte.
    pub(super) fn plain(byte: u8, out: &mut Vec<u8>) {
        match byte {
            b'"' => out.extend(*b"\\\""),
            b'\\' => out.extend(*b"\\\\"),
            b'\n' => out.extend(*b"\\n"),
            b'\r' => out.extend(*b"\\r"),
            b'\t' => out.extend(*b"\\t"),
            0..0x20 => out.extend(format!("\\u{byte:04x}").bytes()),
            _ => out.push(byte),
        }
    }

    fn digit(&mut self, kind: u8, byte: u8, out: &mut Vec<u8>) -> Escaped {
        if !byte.is_ascii_hexdigit() {
            // With too few digits it is a literal backslash and the text after it.
            out.push(b'\\');
            out.append(&mut self.open);
            return Escaped::Again;
        }
        self.open.push(byte);
        let length = match kind {
            b'x' => 4,
            b'u' => 6,
            _ => 10,
        };
        if self.open.len() == length {
            let code =
                std::str::from_utf8(&self.open[2..]).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
            match (kind, code.and_then(char::from_u32)) {
                // Surrogates stay unchanged.
                (b'u', _) => out.extend_from_slice(&self.open),
                (_, Some(letter)) => escape(letter.encode_utf8(&mut [0; 4]), out),
                (_, None) => {
                    out.push(b'\\');
                    out.extend_from_slice(&self.open);
                }
            }
            self.open.clear();
        }
        Escaped::Taken
    }
}

/// Writes a text as the content of a JSON string.
pub(super) fn escape(text: &str, out: &mut Vec<u8>) {
    text.bytes().for_each(|byte| EscapeReader::plain(byte, out));
}
