//! The clipboard of the user's machine: by a program of the system, or by the terminal (OSC 52), which also works over SSH.

use std::env::var_os;
use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::exit_code::Failure;
use crate::terminal;

/// Copies a text. Returns false if there is no clipboard.
pub(crate) fn copy(text: &str) -> Result<bool, Failure> {
    // Over SSH, the programs would change the clipboard of the other machine.
    let is_remote = var_os("SSH_CONNECTION").is_some();
    if !is_remote && programs().iter().any(|program| run(program, text)) {
        return Ok(true);
    }
    if !terminal::is_output_terminal() {
        return Ok(false);
    }
    terminal::show_styled(&format!("\x1b]52;c;{}\x07", STANDARD.encode(text)))?;
    Ok(true)
}

/// Returns the commands that read a text for the clipboard here.
fn programs() -> Vec<&'static [&'static str]> {
    let mut programs: Vec<&[&str]> = Vec::new();
    if cfg!(target_os = "macos") {
        programs.push(&["pbcopy"]);
    }
    if var_os("WAYLAND_DISPLAY").is_some() {
        programs.push(&["wl-copy"]);
    }
    if var_os("DISPLAY").is_some() {
        programs.push(&["xclip", "-selection", "clipboard"]);
        programs.push(&["xsel", "--clipboard", "--input"]);
    }
    programs
}

fn run(program: &[&str], text: &str) -> bool {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    let written = child.stdin.take().is_some_and(|mut input| input.write_all(text.as_bytes()).is_ok());
    written && child.wait().is_ok_and(|status| status.success())
}
