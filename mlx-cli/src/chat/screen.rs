//! Formats an answer for the screen: reasoning dimmed and folded to one line, text in color. Invariant: returns text and prints
//! nothing.

use std::borrow::Cow;
use std::time::Instant;

use chat_format::ChatEvent;
use mlx_options::Printer;

use super::markdown::Markdown;
use super::style::{DIM, styled};
use super::wrap::Wrap;

/// Returns the cursor to the line start and clears the line.
const CLEAR_LINE: &str = "\r\x1b[2K";
const THINKING: &str = "Thinking… ";

/// The part of the reasoning to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThoughtView {
    Hidden,
    /// The latest words on one line, and afterwards the duration.
    Folded,
    /// All of it.
    Full,
}

/// The text to color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colors {
    None,
    /// Only the reasoning; the text stays unchanged.
    Thoughts,
    All,
}

/// The printer of one answer.
pub(crate) struct Screen {
    markdown: Option<Markdown>,
    /// Wraps unformatted text on terminals that support control sequences.
    wrap: Option<Wrap>,
    /// Reasoning and text have separate printers: a joiner at the end of the reasoning must not appear in the text.
    thoughts: Printer,
    text: Printer,
    has_colors: bool,
    view: ThoughtView,
    /// The width of the terminal; `None` if the output is redirected and stays unchanged.
    columns: Option<usize>,
    /// The start time of the reasoning being shown.
    thinking_since: Option<Instant>,
    /// The latest words of the reasoning.
    tail: String,
}

impl Screen {
    /// Creates a printer for a terminal of this width; `None` leaves the text unchanged.
    pub(crate) fn new(colors: Colors, view: ThoughtView, columns: Option<usize>) -> Self {
        let has_colors = colors != Colors::None;
        // Without control sequences a line cannot be replaced.
        let view = if view == ThoughtView::Folded && !has_colors { ThoughtView::Hidden } else { view };
        let markdown = columns.filter(|_| colors == Colors::All);
        let markdown = markdown.map(|columns| Markdown::new(columns, has_links()));
        let wrap = columns.filter(|_| colors == Colors::Thoughts).map(Wrap::new);
        Self {
            markdown,
            wrap,
            thoughts: Printer::default(),
            text: Printer::default(),
            has_colors,
            view,
            columns,
            thinking_since: None,
            tail: String::new(),
        }
    }

    /// Sets a new terminal width.
    pub(crate) fn resize(&mut self, columns: Option<usize>) {
        let Some(columns) = columns.filter(|_| columns != self.columns && self.columns.is_some()) else {
            return;
        };
        self.columns = Some(columns);
        if let Some(markdown) = &mut self.markdown {
            markdown.resize(columns);
        }
        if let Some(wrap) = &mut self.wrap {
            wrap.resize(columns);
        }
    }

    /// Returns the output for an event.
    pub(crate) fn add(&mut self, event: &ChatEvent) -> String {
        match event {
            ChatEvent::Reasoning(text) => {
                let text = printable_text(&mut self.thoughts, self.columns, text);
                self.think(&text)
            }
            ChatEvent::Text(text) => {
                let text = printable_text(&mut self.text, self.columns, text);
                self.end_thought() + &self.layout(&text)
            }
            // Calls are shown when complete.
            _ => String::new(),
        }
    }

    /// Returns the output at the end of the answer.
    pub(crate) fn end(&mut self) -> String {
        let pending = self.text.finish();
        let last = self.layout(&pending);
        let rest = last + &self.markdown.as_mut().map(Markdown::finish).unwrap_or_default();
        self.end_thought() + &rest
    }

    fn layout(&mut self, text: &str) -> String {
        match (&mut self.markdown, &mut self.wrap) {
            (Some(markdown), _) => markdown.add(text),
            (None, Some(wrap)) => wrap.wrap(text),
            (None, None) => text.to_owned(),
        }
    }

    fn think(&mut self, text: &str) -> String {
        let is_first = self.thinking_since.is_none();
        match self.view {
            ThoughtView::Hidden => String::new(),
            ThoughtView::Full => {
                self.thinking_since.get_or_insert_with(Instant::now);
                let heading =
                    if is_first { format!("{}\n", self.dimmed(THINKING.trim_end())) } else { String::new() };
                heading + &self.dimmed(text)
            }
            ThoughtView::Folded => {
                self.thinking_since.get_or_insert_with(Instant::now);
                self.tail.extend(text.chars().map(|it| if it.is_control() { ' ' } else { it }));
                let columns = self.columns.unwrap_or(80);
                self.tail = fitting_suffix(&self.tail, columns.saturating_sub(THINKING.chars().count() + 1));
                format!("{CLEAR_LINE}{}", self.dimmed(&format!("{THINKING}{}", self.tail)))
            }
        }
    }

    fn end_thought(&mut self) -> String {
        let Some(thinking_since) = self.thinking_since.take() else { return String::new() };
        self.tail.clear();
        let took = format!("Thought for {:.1} s", thinking_since.elapsed().as_secs_f64());
        match self.view {
            ThoughtView::Folded => format!("{CLEAR_LINE}{}\n", self.dimmed(&took)),
            _ => format!("\n{}\n\n", self.dimmed(&took)),
        }
    }

    fn dimmed(&self, text: &str) -> String {
        if self.has_colors { styled(DIM, text) } else { text.to_owned() }
    }
}

/// Returns a model's text without commands for a terminal. Elsewhere the text stays unchanged.
fn printable_text<'a>(printer: &mut Printer, columns: Option<usize>, text: &'a str) -> Cow<'a, str> {
    if columns.is_some() { printer.add(text) } else { Cow::Borrowed(text) }
}

/// Returns true for terminals known to support hyperlinks. Terminals cannot be queried for it.
fn has_links() -> bool {
    let is = |name: &str, known: &[&str]| {
        std::env::var(name).is_ok_and(|value| known.iter().any(|known| value.contains(known)))
    };
    is("TERM_PROGRAM", &["iTerm", "WezTerm", "ghostty", "vscode", "Hyper", "Tabby", "rio"])
        || is("TERM", &["kitty", "alacritty", "foot", "ghostty", "wezterm"])
        || std::env::var_os("VTE_VERSION").is_some()
        || std::env::var_os("WT_SESSION").is_some()
}

/// Returns the end of a text that fits into this many columns.
fn fitting_suffix(text: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |ch: &char| {
        // East Asian characters and emoji take two columns; counting a few narrow ones as wide does no harm.
        used += if u32::from(*ch) < 0x1100 { 1 } else { 2 };
        used <= columns
    };
    let chars: Vec<char> = text.chars().rev().take_while(fits).collect();
    chars.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(mut screen: Screen, events: &[ChatEvent]) -> String {
        let mut out: String = events.iter().map(|event| screen.add(event)).collect();
        out.push_str(&screen.end());
        out
    }

    fn events() -> [ChatEvent; 3] {
        [
            ChatEvent::Reasoning("First\nthis".into()),
            ChatEvent::Reasoning(", then that".into()),
            ChatEvent::Text("Yes.".into()),
        ]
    }

    #[test]
    fn a_pipe_gets_the_answer_alone() {
        assert_eq!(printed(Screen::new(Colors::None, ThoughtView::Hidden, None), &events()), "Yes.");
        assert_eq!(printed(Screen::new(Colors::None, ThoughtView::Folded, Some(80)), &events()), "Yes.");
    }

    #[test]
    fn a_thought_is_folded_to_the_line_that_it_was_shown_on() {
        let out = printed(Screen::new(Colors::All, ThoughtView::Folded, Some(24)), &events());
        let (thought, answer) = out.rsplit_once('\n').expect("the thought ends its line");
        assert!(!thought.contains('\n') && answer.starts_with("Yes."), "{out:?}");
        assert!(thought.contains("Thinking… is, then that"), "{out:?}");
        assert!(
            thought.rsplit(CLEAR_LINE).next().is_some_and(|last| last.contains("Thought for")),
            "{out:?}"
        );
    }

    #[test]
    fn a_thought_can_be_shown_whole() {
        let out = printed(Screen::new(Colors::None, ThoughtView::Full, Some(80)), &events());
        assert!(out.starts_with("Thinking…\nFirst\nthis, then that\nThought for"), "{out:?}");
        assert!(out.ends_with(" s\n\nYes."), "{out:?}");
    }

    #[test]
    fn a_thought_without_an_answer_ends_its_line_too() {
        let out = printed(Screen::new(Colors::All, ThoughtView::Folded, Some(80)), &events()[..2]);
        assert!(out.ends_with('\n') && out.contains("Thought for"), "{out:?}");
    }

    #[test]
    fn a_terminal_gets_no_commands_of_a_model_and_a_pipe_gets_its_bytes() {
        let events =
            [ChatEvent::Reasoning("a\x1b[2Jb".into()), ChatEvent::Text("c\x1b]0;d\x07\u{9b}e\r\n".into())];
        for colors in [Colors::None, Colors::Thoughts, Colors::All] {
            let out = printed(Screen::new(colors, ThoughtView::Full, Some(80)), &events);
            assert!(out.contains("a[2Jb") && out.ends_with("c]0;de\n"), "{out:?}");
        }
        let piped = printed(Screen::new(Colors::None, ThoughtView::Hidden, None), &events);
        assert_eq!(piped, "c\x1b]0;d\x07\u{9b}e\r\n");
    }

    #[test]
    fn hidden_characters_of_a_model_are_seen_and_emoji_stay_whole() {
        let pieces = ["a\u{202e}b 👩", "\u{200d}", "💻 c\u{200d}"].map(|text| ChatEvent::Text(text.into()));
        let out = printed(Screen::new(Colors::All, ThoughtView::Folded, Some(80)), &pieces);
        assert_eq!(out, "a\\u{202e}b 👩\u{200d}💻 c\\u{200d}");
    }

    #[test]
    fn wide_letters_take_two_columns() {
        assert_eq!(fitting_suffix("ab漢字", 4), "漢字");
        assert_eq!(fitting_suffix("ab漢字", 5), "b漢字");
        assert_eq!(fitting_suffix("", 5), "");
    }
}
