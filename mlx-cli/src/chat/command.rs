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
    /// Say the last message in other words; `None` asks for them.
    Edit(Option<String>),
    /// Take back the last message and its answer.
    Undo,
    /// Go on with another model; `None` asks which it is.
    Model(Option<String>),
    /// Change parameters of answers; `None` asks what they are.
    Params(Option<String>),
    /// Set the seed of answers; `None` asks what it was.
    Seed(Option<String>),
    /// Show the probabilities of the last answer's tokens.
    Tokens,
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
/help                 this list
/reset                forget the conversation, keep the system prompt
/system [TEXT]        set the system prompt, or show it
/retry                answer the last message again
/edit [TEXT]          say the last message in other words
/undo                 take back the last message and its answer
/context              show how full the model's context is
/tokens               show how likely each token of the last answer was
/params [NAME=VALUE]  change parameters of answers, or show them
/seed [N]             set the seed of answers, or show it
/model [MODEL]        go on with another model, or show which it is
/save FILE            write the conversation to a file
/load FILE            go on with a saved conversation
/quit                 leave (so does Ctrl-D)

Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of several
lines. @FILE in a message brings the file along. To send a line that begins with /, put a space before it.";

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
    let given = || Some(rest.clone()).filter(|rest| !rest.is_empty());
    let file = |wrap: fn(String) -> Line| {
        if rest.is_empty() {
            Line::Mistake(format!("{name} needs the name of a file"))
        } else {
            wrap(rest.clone())
        }
    };
    match name {
        "/help" | "/?" => Line::Help,
        "/reset" | "/clear" => Line::Clear,
        "/system" => Line::System(given()),
        "/edit" => Line::Edit(given()),
        "/undo" => Line::Undo,
        "/model" => Line::Model(given()),
        "/params" => Line::Params(given()),
        "/seed" => Line::Seed(given()),
        "/tokens" => Line::Tokens,
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
        assert_eq!(parse("/params top_k=4"), Line::Params(Some("top_k=4".into())));
        assert_eq!(parse("/seed"), Line::Seed(None));
        assert_eq!(parse("/save a b.json"), Line::Save("a b.json".into()));
        assert!(matches!(parse("/save"), Line::Mistake(_)));
        assert!(matches!(parse("/frobnicate"), Line::Mistake(_)));
    }
}
