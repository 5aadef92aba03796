//! Decodes byte tokens, and decodes bytes to text incrementally.

/// The replacement for an invalid byte or sequence.
const REPLACEMENT: &str = "\u{FFFD}";

/// Returns the bytes of a byte-level token. A token with a character outside the alphabet is taken literally.
pub(super) fn spelled_bytes(token: &str) -> Vec<u8> {
    token.chars().map(spelled_byte).collect::<Option<_>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Decodes GPT-2's alphabet: printable bytes represent themselves, and the other 68 are mapped in order to U+0100
/// and up.
pub(super) fn spelled_byte(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Decodes UTF-8 incrementally. Complete characters are emitted immediately, and invalid bytes become U+FFFD.
#[derive(Debug, Clone, Default)]
pub(super) struct Utf8 {
    /// The bytes of an incomplete character. At most three bytes between calls.
    held: Vec<u8>,
}

impl Utf8 {
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            let invalid = chunk.invalid();
            // The last sequence may be an incomplete character. All others are invalid.
            if invalid.is_empty() || is_incomplete(&self.held[used..]) {
                break;
            }
            text.push_str(REPLACEMENT);
            used += invalid.len();
        }
        self.held.drain(..used);
        text
    }

    pub(super) fn drop_incomplete(&mut self) {
        self.held.clear();
    }

    pub(super) fn finish(&mut self) -> Option<String> {
        let incomplete = !std::mem::take(&mut self.held).is_empty();
        incomplete.then(|| REPLACEMENT.to_string())
    }
}

/// Returns true if `bytes` are exactly an incomplete character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

/// A run of byte tokens. It is text if the complete run is valid UTF-8; otherwise every byte becomes U+FFFD. The
/// text is therefore known only at the end of the run, or when the run becomes invalid.
#[derive(Debug, Clone, Default)]
pub(super) struct ByteRun {
    held: Vec<u8>,
    /// The number of held bytes that form complete characters.
    valid: usize,
    broken: bool,
}

impl ByteRun {
    pub(super) fn push(&mut self, token: String, output: &mut Vec<String>) {
        let Some(byte) = byte_token(&token) else {
            self.end(output);
            output.push(token);
            return;
        };
        if self.broken {
            output.push(REPLACEMENT.to_string());
            return;
        }
        self.held.push(byte);
        match std::str::from_utf8(&self.held[self.valid..]) {
            Ok(_) => self.valid = self.held.len(),
            Err(error) if error.error_len().is_none() => {}
            Err(_) => {
                output.extend(self.held.drain(..).map(|_| REPLACEMENT.to_string()));
                self.broken = true;
            }
        }
    }

    pub(super) fn drop_incomplete(&mut self) {
        self.held.truncate(self.valid);
    }

    pub(super) fn end(&mut self, output: &mut Vec<String>) {
        let run = std::mem::take(self);
        if run.held.is_empty() {
            return;
        }
        match String::from_utf8(run.held) {
            Ok(text) => output.push(text),
            Err(error) => output.extend(error.as_bytes().iter().map(|_| REPLACEMENT.to_string())),
        }
    }
}

/// Returns the byte of a token like `<0x0A>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
