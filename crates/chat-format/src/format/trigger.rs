//! Grammars of optional calls, which begin after the marker of a call.

use super::calls::CallFormat;
use super::family::Part;
use super::grammar::{Printer, object_schema};
use super::pattern::Piece;
use crate::text::Tokenizer;
use crate::tool::Tool;

/// A marker, and the grammar of the text after it.
pub(crate) type Triggered = (Vec<Piece>, String);

impl CallFormat {
    /// Returns the marker of calls and the grammar of the text after it. `None` if calls have no marker of
    /// their own.
    pub(crate) fn triggered(
        &self,
        tools: &[&Tool],
        is_single: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Triggered>, String> {
        if let Some(body) = self.body() {
            return body.triggered(tools, is_single, tokenizer);
        }
        if self.is_on_channels() {
            return Ok(Some(self.addressed(tools, tokenizer)));
        }
        let family = self.syntax().family;
        let open = match (family.section, family.call.first()) {
            _ if family.only_first => return Ok(None),
            (Some(section), _) => section.open,
            (None, Some(Part::Text(text))) => text,
            _ => return Ok(None),
        };
        let is_single = is_single || family.section.is_none_or(|section| !section.is_shared);
        let whole = self.grammar(tools, is_single, tokenizer)?;
        let mut printer = Printer::new(self, tokenizer);
        let word = open.trim_start().split_ascii_whitespace().next().unwrap_or_default();
        let word = word.trim_end_matches('[');
        let mut trigger = printer.compiler.pieces(word);
        let mut rest = printer.literal(&open[word.len()..]);
        // A special token that only text follows is a sufficient trigger.
        if let [Piece::Special(_), Piece::Text(text)] = trigger.as_slice() {
            rest = printer.literal(&[text, &open[word.len()..]].concat());
            trigger.truncate(1);
        }
        // Remove the trigger from the literal at the beginning of the grammar.
        let literal = printer.literal(open);
        Ok(whole.contains(&literal).then(|| (trigger, whole.replace(&literal, &rest))))
    }

    /// Returns the trigger and grammar for calls on channels. Such a call is a message to a function, whose
    /// name may come before or after the channel.
    fn addressed(&self, tools: &[&Tool], tokenizer: &Tokenizer) -> Triggered {
        let mut printer = Printer::new(self, tokenizer);
        let [channel, constrain, message, end] =
            ["<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"].map(|marker| printer.literal(marker));
        let header = printer.rule(
            "header",
            &format!(
                "({channel} (\"commentary\" | \"analysis\"))? (\" \"? {constrain} \"json\" | \" json\")? {message}"
            ),
        );
        let mut calls = Vec::new();
        for tool in tools {
            let (name, arguments) = (printer.literal(&tool.name), printer.json(&object_schema(tool)));
            calls.push(printer.rule("call", &format!("{name} {header} {arguments} {end}")));
        }
        let trigger = printer.compiler.pieces("to=functions.");
        (trigger, format!("start: {}\n{}", calls.join(" | "), printer.rules))
    }
}
