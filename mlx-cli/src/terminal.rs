//! Terminal output. Invariant: the only file of the program that prints.

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdin, stdout};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use mlx_core::{Error, size};
use mlx_options::printable;

use crate::exit_code::Failure;

/// Writes to standard output and flushes it, so that streamed tokens appear immediately. On a terminal the text is made
/// [`printable`]: it may come from a model or a file.
pub(crate) fn show(text: &str) -> Result<(), Failure> {
    if stdout().is_terminal() { show_styled(&printable(text)) } else { show_styled(text) }
}

/// Writes text with control sequences of this program to standard output. What comes from elsewhere must be [`printable`].
pub(crate) fn show_styled(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Error(Error::io("standard output", error)),
    })
}

/// Writes a line to standard error: an error, a note or a timing. On a terminal it is made [`printable`].
pub(crate) fn note(line: &str) {
    if stderr().is_terminal() { note_styled(&printable(line)) } else { note_styled(line) }
}

/// Writes a line with control sequences of this program. What comes from elsewhere must be [`printable`].
pub(crate) fn note_styled(line: &str) {
    // A closed standard error cannot be reported.
    writeln!(stderr(), "{line}").ok();
}

/// Whether both standard input and standard output are terminals.
pub(crate) fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Whether to use colors on standard output (no-color.org).
pub(crate) fn has_colors() -> bool {
    let disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    stdout().is_terminal() && !disabled && !dumb
}

/// The columns of the terminal that standard output goes to; `None` if it goes elsewhere.
pub(crate) fn columns() -> Option<usize> {
    let columns = || console::Term::stdout().size_checked().map_or(80, |(_, columns)| usize::from(columns));
    stdout().is_terminal().then(columns)
}

/// A progress bar for loading a model; shown on terminals only.
pub(crate) fn load_bar() -> impl FnMut(u64, u64) + Send + 'static {
    bytes_bar("loading")
}

/// A progress bar with a label, in bytes.
pub(crate) fn bytes_bar(label: &'static str) -> impl FnMut(u64, u64) + Send + 'static {
    let bar = ProgressBar::with_draw_target(None, target());
    bar.set_style(style("{msg} {bar:30} {bytes} of {total_bytes}"));
    bar.set_message(label);
    move |read, total| {
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

/// Progress bars of several files. Without a terminal, one line per completed file.
pub(crate) struct Bars(MultiProgress);

impl Bars {
    pub(crate) fn new() -> Self {
        Self(MultiProgress::with_draw_target(target()))
    }

    /// Adds a bar for a file of this size.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> Bar {
        let bar = self.0.add(ProgressBar::new(bytes).with_message(printable(name).into_owned()));
        bar.set_style(style("{msg:40!} {bar:20} {bytes} of {total_bytes} {bytes_per_sec} {prefix}"));
        Bar { bars: self.0.clone(), bar }
    }
}

/// The bar of a file.
pub(crate) struct Bar {
    bars: MultiProgress,
    bar: ProgressBar,
}

impl Bar {
    /// Sets the position and the current activity.
    pub(crate) fn show(&self, activity: &'static str, bytes: u64) {
        if self.bar.prefix() != activity {
            self.bar.set_prefix(activity);
        }
        self.bar.set_position(bytes);
    }

    /// Sets the starting position of a resumed file.
    pub(crate) fn resume(&self, bytes: u64) {
        self.bar.set_prefix("");
        self.bar.set_position(bytes);
        self.bar.reset_eta();
    }

    /// Prints a line about the file.
    pub(crate) fn note(&self, line: &str) {
        self.bars.suspend(|| note(&format!("{}: {line}", self.bar.message())));
    }

    /// Marks the file as complete.
    pub(crate) fn done(&self) {
        self.bar.finish();
        if self.bar.is_hidden() {
            note(&format!("{}  {}", self.bar.message(), size(self.bar.length().unwrap_or_default())));
        }
    }
}

/// A human-readable number of parameters.
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
