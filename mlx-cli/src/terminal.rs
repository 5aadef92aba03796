//! Terminal output. Invariant: only this file prints.

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdin, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mlx_core::Error;
use mlx_options::{allows_colors, printable};

use crate::exit_code::Failure;
use crate::note_lines::wrap_note;

/// Work shorter than this gets no progress bar.
const BAR_DELAY: Duration = Duration::from_millis(300);

/// Writes to standard output and flushes it, so that streamed tokens appear immediately. On a terminal the text is made
/// [`printable`]: it may come from a model or a file.
pub(crate) fn show(text: &str) -> Result<(), Failure> {
    if stdout().is_terminal() { show_styled(&printable(text)) } else { show_styled(text) }
}

/// Writes text with this program's control sequences to standard output. Text from other sources must be [`printable`].
pub(crate) fn show_styled(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Error(Error::io("standard output", error)),
    })
}

/// Writes a line to standard error: an error, a note or a timing. On a terminal it is made [`printable`].
pub(crate) fn note(line: &str) {
    if stderr().is_terminal() {
        let columns = console::Term::stderr().size_checked().map_or(80, |(_, columns)| usize::from(columns));
        write_note(&wrap_note(&printable(line), columns.saturating_sub(1).max(20)));
    } else {
        write_note(line);
    }
}

/// Writes a line with this program's control sequences. They are removed unless standard error is a terminal. Text from other sources must
/// be [`printable`].
pub(crate) fn note_styled(line: &str) {
    if stderr().is_terminal() { write_note(line) } else { write_note(&console::strip_ansi_codes(line)) }
}

fn write_note(line: &str) {
    // A closed standard error cannot be reported.
    writeln!(stderr(), "{line}").ok();
}

/// Replaces the current line on a terminal that supports it; `""` clears the line.
pub(crate) fn status(text: &str) {
    if can_show_status() {
        write!(stderr(), "\r\x1b[2K{text}").and_then(|()| stderr().flush()).ok();
    }
}

/// Returns true if standard error supports a status line.
pub(crate) fn can_show_status() -> bool {
    stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|value| value != "dumb")
}

/// Returns true if both standard input and standard output are terminals.
pub(crate) fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Writes a line to standard error if it is a terminal: a hint that no script needs.
pub(crate) fn note_if_terminal(line: &str) {
    if stderr().is_terminal() {
        note(line);
    }
}

/// Returns true if standard output is a terminal.
pub(crate) fn is_output_terminal() -> bool {
    stdout().is_terminal()
}

/// Returns true if the user can be asked: standard input and standard error are terminals.
pub(crate) fn can_ask() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Asks on standard error and reads a line; `None` at the end of the input.
pub(crate) fn ask(question: &str) -> Result<Option<String>, Failure> {
    let mut line = String::new();
    write!(stderr(), "{}", printable(question)).and_then(|()| stderr().flush()).ok();
    let count = stdin().read_line(&mut line).map_err(|error| Error::io("standard input", error))?;
    Ok((count > 0).then_some(line))
}

/// Returns true if standard output shows colors.
pub(crate) fn has_colors() -> bool {
    stdout().is_terminal() && allows_colors()
}

/// Returns true if standard error shows colors.
pub(crate) fn notes_have_colors() -> bool {
    stderr().is_terminal() && allows_colors()
}

/// Returns the width of the terminal; `None` if standard output is not a terminal.
pub(crate) fn columns() -> Option<usize> {
    let columns = || console::Term::stdout().size_checked().map_or(80, |(_, columns)| usize::from(columns));
    stdout().is_terminal().then(columns)
}

/// Creates a progress bar for loading a model; shown on terminals only.
pub(crate) fn load_bar() -> impl FnMut(u64, u64) + Send + 'static {
    bytes_bar("loading")
}

/// Creates a progress bar for seconds of audio, with a label. It is shown on terminals only.
pub(crate) fn seconds_bar(label: &str, total: f64) -> impl FnMut(f64) + use<> {
    let bar = ProgressBar::with_draw_target(Some(total.ceil() as u64), target());
    bar.set_style(style("{msg} {bar:30} {pos} of {len} s, {elapsed} elapsed, {eta} left"));
    bar.set_message(printable(label).into_owned());
    move |done| {
        bar.set_position(done as u64);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

/// Creates a progress bar for bytes, with a label. It stays hidden for short work.
pub(crate) fn bytes_bar(label: &'static str) -> impl FnMut(u64, u64) + Send + 'static {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    bar.set_style(style("{msg} {bar:30} {bytes} of {total_bytes}"));
    bar.set_message(label);
    let start = Instant::now();
    move |read, total| {
        if bar.is_hidden() && start.elapsed() >= BAR_DELAY && read < total {
            bar.set_draw_target(target());
        }
        bar.set_length(total);
        bar.set_position(read);
        if read == total {
            bar.finish_and_clear();
        }
    }
}

fn target() -> ProgressDrawTarget {
    if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Formats a number with a unit, for humans.
pub(crate) fn count(number: u64) -> String {
    let units = ["", " K", " M", " B", " T"];
    let (mut number, mut unit) = (number as f64, 0);
    while number >= 1000.0 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 2 };
    format!("{number:.digits$}{}", units[unit])
}
