//! What can be typed in a chat besides messages.

/// A line of a chat, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Something to say to the model.
    Message(String),
    /// Nothing.
    Empty,
    Help,
    /// Forget what has been said.
    Clear,
    /// Set the system prompt; `None` asks what it is.
    System(Option<String>),
    /// Say how full the context is.
    Context,
    /// Answer the last message again.
    Retry,
    /// Write the conversation to a file.
    Save(String),
    /// Go on with a conversation from a file.
    Load(String),
    Quit,
    /// A command that does not exist or lacks its argument, and what to say about it.
    Mistake(String),
}

/// The text of `/help`.
pub(super) const HELP: &str = "\
/help            this list
/clear           forget the conversation, keep the system prompt
/system [TEXT]   set the system prompt, or show it
/retry           answer the last message again
/context         show how full the model's context is
/save FILE       write the conversation to a file
/load FILE       go on with a saved conversation
/quit            leave (so does Ctrl-D)

Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of several
lines. To send a line that begins with /, put a space before it.";

/// Understands one input.
pub(super) fn parse(input: &str) -> Line {
    let trimmed = input.trim();
    if trimmed.is_empty() {
        return Line::Empty;
    }
    if !input.starts_with('/') {
        return Line::Message(trimmed.to_owned());
    }
    let (name, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    let rest = rest.trim().to_owned();
    let file = |wrap: fn(String) -> Line| {
        if rest.is_empty() {
            Line::Mistake(format!("{name} needs the name of a file"))
        } else {
            wrap(rest.clone())
        }
    };
    match name {
        "/help" | "/?" => Line::Help,
        "/clear" => Line::Clear,
        "/system" => Line::System((!rest.is_empty()).then_some(rest)),
        "/context" => Line::Context,
        "/retry" => Line::Retry,
        "/save" => file(Line::Save),
        "/load" => file(Line::Load),
        "/quit" | "/exit" | "/bye" => Line::Quit,
        other => Line::Mistake(format!("{other} is not a command; /help lists them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        assert_eq!(parse("  hello there \n"), Line::Message("hello there".into()));
        assert_eq!(parse(" /etc/hosts"), Line::Message("/etc/hosts".into()));
        assert_eq!(parse("   "), Line::Empty);
        assert_eq!(parse("/system Be terse."), Line::System(Some("Be terse.".into())));
        assert_eq!(parse("/system"), Line::System(None));
        assert_eq!(parse("/context"), Line::Context);
        assert_eq!(parse("/save a b.json"), Line::Save("a b.json".into()));
        assert!(matches!(parse("/save"), Line::Mistake(_)));
        assert!(matches!(parse("/frobnicate"), Line::Mistake(_)));
    }
}
