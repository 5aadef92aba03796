//! Runs other programs quietly, and shows their output if they fail.

use std::{
    ffi::OsStr,
    io::ErrorKind,
    process::{Command, Output},
};

use anyhow::{Result, anyhow, bail};

const SHOWN_LINES: usize = 25;

/// Runs `command` and returns its output. `hint` tells how to install a missing program.
pub(crate) fn output(command: &mut Command, hint: &str) -> Result<String> {
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("{} was not found: {hint}", command.get_program().display()),
        _ => anyhow!("{} did not start: {error}", command.get_program().display()),
    })?;
    if !output.status.success() {
        bail!("this command failed ({}):\n  {}\n{}", output.status, shown(command), last_lines(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if `command` starts and succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Returns the command as typed in a shell, for messages.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Returns the last output lines of a failed program, which usually contain the reason.
fn last_lines(output: &Output) -> String {
    let text = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_shows_its_last_lines() {
        let error = output(Command::new("sh").args(["-c", "seq 1 99 >&2; exit 3"]), "")
            .expect_err("it fails")
            .to_string();
        assert!(error.contains("sh -c seq"), "{error}");
        assert!(error.ends_with("98\n99") && !error.contains("\n10\n"), "{error}");
    }

    #[test]
    fn a_missing_program_comes_with_a_hint() {
        let error =
            output(&mut Command::new("no-such-program"), "install it").expect_err("it fails").to_string();
        assert_eq!(error, "no-such-program was not found: install it");
    }
}
