//! The terminal. Invariant: the only file of the program that prints.

use std::io::{IsTerminal, Write, stderr, stdin, stdout};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Writes to standard output at once, so that a stream of tokens is seen as it comes.
pub(crate) fn show(text: &str) -> std::io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A line beside the output: an error, a note, a timing.
pub(crate) fn note(line: &str) {
    // With standard error closed there is nobody to tell.
    writeln!(stderr(), "{line}").ok();
}

/// Whether a person sits at both ends.
pub(crate) fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Whether whoever reads standard output sees colours and wants them (no-color.org).
pub(crate) fn has_colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    stdout().is_terminal() && !unwanted && !dumb
}

/// A bar for the bytes of a model that is loaded; shown to people only.
pub(crate) fn load_bar() -> impl FnMut(u64, u64) + Send + 'static {
    bytes_bar("loading")
}

/// A bar for bytes that something is done to.
pub(crate) fn bytes_bar(doing: &'static str) -> impl FnMut(u64, u64) + Send + 'static {
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target);
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(doing);
    move |read, total| {
        bar.set_length(total);
        bar.set_position(read);
        if read == total {
            bar.finish_and_clear();
        }
    }
}
