//! Commands with placeholders for arguments. Invariant: an argument is always a whole word of a command, a part of one, or the
//! value of an environment variable, and never text that a shell parses.

use std::process::Command;

use mlx_json::{Map, Value};

use crate::shell_word;

/// The prefix of argument names in the environment, so that no argument can overwrite another variable.
const PREFIX: &str = "ARG_";
/// Ends the options of a command.
const END_OF_OPTIONS: &str = "--";

/// A command with unfilled placeholders.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Template {
    /// A program and its words, run without a shell.
    Words(Vec<Vec<Segment>>),
    /// A shell line, and the names of the arguments that it gets as variables.
    Line(String, Vec<String>),
}

/// A segment of a word.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Text(String),
    Argument(String),
}

impl Template {
    /// Parses a program and its words, where `{name}` is an argument.
    pub(super) fn words(words: &[String], names: &[&str]) -> Result<Self, String> {
        let words = words.iter().map(|word| segments(word, names)).collect::<Result<Vec<_>, _>>()?;
        match words.first().map(Vec::as_slice) {
            None | Some([]) => Err("command is empty".to_owned()),
            Some([Segment::Text(_)]) => Ok(Self::Words(words)),
            Some(_) => Err("command begins with an argument; name the program itself".to_owned()),
        }
    }

    /// Parses a line for `sh -c`.
    pub(super) fn line(line: String, names: &[&str]) -> Result<Self, String> {
        if line.trim().is_empty() {
            return Err("command is empty".to_owned());
        }
        for name in names {
            let is_part = |ch: char| ch.is_ascii_alphanumeric() || ch == '_';
            if !name.chars().all(is_part) {
                let reason = "names in a shell line may contain only letters, digits and _";
                return Err(format!("parameters.{name} cannot be a variable: {reason}"));
            }
            if line.contains(&format!("{{{name}}}")) {
                let instead = format!("write \"${PREFIX}{name}\" with its quotes, or make it a list");
                return Err(format!("{{{name}}} is unsafe in a shell line; {instead}"));
            }
        }
        Ok(Self::Line(line, names.iter().map(|name| (*name).to_owned()).collect()))
    }

    /// Returns the command with these arguments and its text to show, or an error message for the model.
    pub(super) fn fill(&self, arguments: &Map) -> Result<(Command, String), String> {
        if let Some((name, _)) = arguments.iter().find(|(_, value)| argument_text(value).contains('\0')) {
            return Err(format!("{name:?} contains a zero byte, which no command can take"));
        }
        match self {
            Self::Words(words) => {
                let words = fill_words(words, arguments)?;
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                Ok((command, shell_word::line(&words)))
            }
            Self::Line(line, names) => {
                let mut command = Command::new("sh");
                command.args(["-c", line]);
                for name in names {
                    let variable = format!("{PREFIX}{name}");
                    match arguments.get(name).filter(|value| !value.is_null()) {
                        Some(value) => command.env(variable, argument_text(value)),
                        // The inherited environment may define this name.
                        None => command.env_remove(variable),
                    };
                }
                Ok((command, line.clone()))
            }
        }
    }
}

/// Splits a word into segments. Braces around anything that cannot be a name are text.
fn segments(word: &str, names: &[&str]) -> Result<Vec<Segment>, String> {
    let (mut segments, mut text, mut rest) = (Vec::new(), String::new(), word);
    while let Some((before, after)) = rest.split_once('{') {
        let is_part = |ch: char| ch.is_alphanumeric() || "_-".contains(ch);
        let name = after.split_once('}').filter(|(name, _)| !name.is_empty() && name.chars().all(is_part));
        text.push_str(before);
        let Some((name, after_name)) = name else {
            text.push('{');
            rest = after;
            continue;
        };
        if !names.contains(&name) {
            return Err(format!("{{{name}}} in the command names no parameter"));
        }
        if !text.is_empty() {
            segments.push(Segment::Text(std::mem::take(&mut text)));
        }
        segments.push(Segment::Argument(name.to_owned()));
        rest = after_name;
    }
    text.push_str(rest);
    if !text.is_empty() {
        segments.push(Segment::Text(text));
    }
    Ok(segments)
}

/// Returns the words with their arguments; a word with a missing argument is dropped.
fn fill_words(words: &[Vec<Segment>], arguments: &Map) -> Result<Vec<String>, String> {
    let mut filled: Vec<String> = Vec::with_capacity(words.len());
    for segments in words {
        let text = |segment: &Segment| match segment {
            Segment::Text(text) => Some(text.clone()),
            Segment::Argument(name) => {
                arguments.get(name).filter(|value| !value.is_null()).map(argument_text)
            }
        };
        let Some(texts) = segments.iter().map(text).collect::<Option<Vec<_>>>() else { continue };
        let word = texts.concat();
        let may_be_option = word.starts_with('-') && !filled.iter().any(|word| word == END_OF_OPTIONS);
        if let Some(Segment::Argument(name)) = segments.first().filter(|_| may_be_option)
            && arguments.get(name).and_then(Value::as_number).is_none()
        {
            return Err(format!("{name:?} begins with -, so the command would take it for an option"));
        }
        filled.push(word);
    }
    Ok(filled)
}

/// Returns an argument as text: strings unchanged, other values as JSON.
fn argument_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn words(words: &[&str], names: &[&str]) -> Template {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Template::words(&words, names).expect("valid")
    }

    fn arguments(value: &serde_json::Value) -> Map {
        Value::from(value.clone()).into_object().expect("an object")
    }

    fn output(template: &Template, given: &serde_json::Value) -> String {
        let (mut command, _) = template.fill(&arguments(given)).expect("it can be filled");
        let output = command.output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    }

    #[test]
    fn places_are_filled_and_words_without_their_argument_are_left_out() {
        let template = words(&["printf", "%s|", "n={n}", "{text}", "{a}{}"], &["n", "text", "a"]);
        assert_eq!(output(&template, &json!({"n": 3, "text": "x y", "a": [1, "b"]})), "n=3|x y|[1,\"b\"]{}|");
        assert_eq!(output(&template, &json!({"text": "x", "n": null})), "x|");
    }

    #[test]
    fn an_argument_is_no_option_unless_the_file_allows_it() {
        let open = words(&["ls", "{path}"], &["path"]);
        let reason = open.fill(&arguments(&json!({"path": "-la"}))).expect_err("an option");
        assert!(reason.contains("\"path\"") && reason.contains("option"), "{reason}");
        assert!(open.fill(&arguments(&json!({"path": -5}))).is_ok());
        let closed = words(&["printf", "--", "%s", "{path}"], &["path"]);
        assert_eq!(output(&closed, &json!({"path": "-la"})), "-la");
        let part = words(&["printf", "%s", "{a}{b}"], &["a", "b"]);
        assert!(part.fill(&arguments(&json!({"a": "", "b": "-x"}))).is_err());
    }

    #[test]
    fn an_argument_cannot_be_the_program_or_a_part_of_a_line() {
        let names = &["a"];
        assert!(Template::words(&["{a}".to_owned()], names).is_err());
        let reason = Template::line("echo {a}".to_owned(), names).expect_err("unsafe");
        assert!(reason.contains("\"$ARG_a\""), "{reason}");
        assert!(Template::line("echo {b} ${#x}".to_owned(), names).is_ok());
        assert!(Template::line("true".to_owned(), &["a-b"]).is_err());
        let line = Template::line("true".to_owned(), names).expect("valid");
        assert!(line.fill(&arguments(&json!({"a": "x\0y"}))).is_err());
    }

    #[test]
    fn what_is_shown_is_what_a_shell_would_need() {
        let template = words(&["printf", "%s", "{a}"], &["a"]);
        let (_, shown) = template.fill(&arguments(&json!({"a": "it's $HOME"}))).expect("valid");
        assert_eq!(shown, "printf %s 'it'\\''s $HOME'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn no_argument_breaks_out(text in r#"[ -~\n\t]{0,24}|.{0,12}|['"`$(){};|&\\ #-]{1,12}"#) {
            prop_assume!(!text.contains('\0'));
            let given = json!({"text": text});
            let line = Template::line("printf %s \"$ARG_text\"; printf .".to_owned(), &["text"]).expect("valid");
            prop_assert_eq!(output(&line, &given), format!("{text}."));
            let words = words(&["printf", "%s|", "--", "{text}", "end"], &["text"]);
            let expected = format!("--|{text}|end|");
            prop_assert_eq!(output(&words, &given), expected);
        }
    }
}
