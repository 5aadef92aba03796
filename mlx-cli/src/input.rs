//! Text that a command works on: given as a flag, or piped in.

use std::io::{IsTerminal, Read, stdin};

use mlx_core::{Error, Result};

/// The text given with `flag`; without it, or with `-`, all of standard input.
pub(crate) fn read_text(given: Option<&str>, flag: &'static str) -> Result<String> {
    match given {
        Some(text) if text != "-" => Ok(text.to_owned()),
        None if stdin().is_terminal() => Err(Error::request(flag, "is missing; give a text, or pipe one in")),
        _ => {
            let mut text = String::new();
            stdin().read_to_string(&mut text).map_err(|source| Error::io("standard input", source))?;
            Ok(text)
        }
    }
}
