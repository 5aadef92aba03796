//! Writes log lines. A line may quote a model or a client and may be read on a terminal, so control characters are escaped.

use std::io::{Result, Write, stderr};

use mlx_options::printable_json;

/// Writes JSON lines to stderr.
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
