//! Where log lines go. A line may quote what a model or a client says, and it may be read on a terminal.

use std::io::{Result, Write, stderr};

use mlx_options::printable_json;

/// Standard error, for one JSON object a line.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        stderr().write_all(printable_json(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> Result<()> {
        stderr().flush()
    }
}
