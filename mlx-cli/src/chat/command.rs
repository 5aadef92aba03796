//! The commands of a chat.

/// A parsed line of chat input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A message for the model.
    Message(String),
    /// A standalone question for the guide.
    Ask(String),
    /// An empty line.
    Empty,
    Help,
    /// Clear the conversation.
    Clear,
    /// Set the system prompt; `None` shows it.
    System(Option<String>),
    /// Show context usage.
    Context,
    /// Answer the last message again.
    Retry,
    /// Continue the last answer.
    Continue,
    /// Copy the last answer, or its last block of code.
    Copy {
        code: bool,
    },
    /// List the models on this machine.
    Models,
    /// Replace the last message; `None` opens it in the editor.
    Edit(Option<String>),
    /// Remove the last message and its answer.
    Undo,
    /// Continue with another model; `None` shows the current one.
    Model(Option<String>),
    /// Change request parameters; `None` shows them.
    Params(Option<String>),
    /// Set the seed of answers; `None` shows it.
    Seed(Option<String>),
    /// Show the probabilities of the last answer's tokens.
    Tokens,
    /// Show one token of the last answer and its alternatives.
    Why(usize),
    /// Answer again from token number N, with its alternative of the second number.
    Branch(usize, usize),
    /// List the tools.
    Tools,
    /// List the MCP servers and their tools.
    Servers,
    /// Turn the model's reasoning on or off, or limit its tokens; `None` toggles between full and folded reasoning.
    Think(Option<String>),
    /// Write the conversation to a file.
    Save {
        file: String,
        /// Overwrite an existing file.
        overwrite: bool,
    },
    /// Continue a conversation from a file.
    Load(String),
    Quit,
    /// An unknown command or a missing argument, with the error message.
    Invalid(String),
}

/// The commands that Tab completes.
pub(super) const COMMANDS: &[&str] = &[
    "/help",
    "/new",
    "/reset",
    "/system",
    "/retry",
    "/continue",
    "/edit",
    "/undo",
    "/copy",
    "/context",
    "/tokens",
    "/why",
    "/branch",
    "/tools",
    "/mcp",
    "/think",
    "/params",
    "/seed",
    "/model",
    "/models",
    "/save",
    "/save!",
    "/load",
    "/quit",
];

/// The text of `/help`.
pub(super) const HELP: &str = "\
/help                 this list
/new                  begin a new conversation, keep the system prompt; also /reset
/system [TEXT]        set the system prompt, or show it
/retry                answer the last message again
/continue             continue an answer that was stopped or cut
/edit [TEXT]          change the last message and answer it again
/undo                 remove the last message and its answer
/copy [code]          copy the last answer, or its last block of code
/context              show how full the model's context is
/tokens               show the last answer with its unlikely tokens marked
/why N                show the alternatives of token N
/branch N [K]         answer again from token N on, with its K-th alternative
/tools                list the tools of --tools and --mcp
/mcp                  list the MCP servers and their tools
/think [on|off|auto]  turn thinking on or off; without a word, show or fold thoughts
/think N              end thoughts after N tokens
/params [NAME=VALUE]  change request parameters, or show them
/seed [N]             set the seed of answers, or show it
/model [MODEL]        switch to another model, or show the current one
/models               list the models on this machine
/save FILE            write the conversation to a new file; /save! overwrites
/load FILE            continue a saved conversation
?QUESTION             ask the guide how mlx works
/quit                 leave (or Ctrl-D)

Tab completes commands, models and paths. Ctrl-C stops an answer or a command.
Alt-Enter begins a new line, and so does \\ at the end of one.
\"\"\" begins and ends a text of several lines.
@FILE in a message attaches the file: a text, or a picture for a model that sees.
A picture that is dropped on the terminal is attached, too.
A space before / or ? sends the line unchanged.";

/// Parses one input.
pub(super) fn parse(input: &str) -> Line {
    let trimmed = input.trim();
    if trimmed.is_empty() {
        return Line::Empty;
    }
    // Users type these to leave other programs.
    if matches!(input, "quit" | "exit") {
        return Line::Quit;
    }
    if let Some(question) = input.strip_prefix('?').map(str::trim) {
        return if question.is_empty() { Line::Help } else { Line::Ask(question.to_owned()) };
    }
    if !input.starts_with('/') {
        return Line::Message(trimmed.to_owned());
    }
    let (name, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    let rest = rest.trim().to_owned();
    let given = || Some(rest.clone()).filter(|rest| !rest.is_empty());
    let file = |wrap: fn(String) -> Line| {
        if rest.is_empty() {
            Line::Invalid(format!("{name} needs the name of a file"))
        } else {
            wrap(rest.clone())
        }
    };
    match name.to_lowercase().as_str() {
        "/help" | "/?" => Line::Help,
        "/new" | "/reset" | "/clear" => Line::Clear,
        "/continue" => Line::Continue,
        "/copy" => match rest.as_str() {
            "" => Line::Copy { code: false },
            "code" => Line::Copy { code: true },
            _ => mistake("/copy takes no argument but code"),
        },
        "/models" => Line::Models,
        "/set" => setting(&rest),
        "/show" => match rest.as_str() {
            "" | "parameters" => Line::Params(None),
            "system" => Line::System(None),
            "info" => Line::Model(None),
            _ => mistake("/show takes info, parameters or system"),
        },
        "/system" => Line::System(given()),
        "/edit" => Line::Edit(given()),
        "/undo" => Line::Undo,
        "/model" => Line::Model(given()),
        "/params" => Line::Params(given()),
        "/think" => Line::Think(given()),
        "/seed" => Line::Seed(given()),
        "/tokens" => Line::Tokens,
        "/why" => numbers(&rest, 1)
            .map_or(mistake("/why needs the number of a token, as in /why 3"), |it| Line::Why(it[0])),
        "/branch" => numbers(&rest, 2)
            .map_or(mistake("/branch needs the number of a token, as in /branch 3"), |it| {
                Line::Branch(it[0], it.get(1).copied().unwrap_or(1))
            }),
        "/context" => Line::Context,
        "/tools" => Line::Tools,
        "/mcp" => Line::Servers,
        "/retry" | "/regenerate" => Line::Retry,
        "/save" => file(|file| Line::Save { file, overwrite: false }),
        "/save!" => file(|file| Line::Save { file, overwrite: true }),
        "/load" => file(Line::Load),
        "/quit" | "/exit" | "/bye" => Line::Quit,
        _ => Line::Invalid(format!("{name} is not a command; /help lists them")),
    }
}

/// Parses `/set`, in the forms of this program and of Ollama.
fn setting(rest: &str) -> Line {
    let (word, value) =
        rest.split_once(char::is_whitespace).map_or((rest, ""), |(word, value)| (word, value.trim()));
    match (word, value) {
        ("", _) => Line::Params(None),
        ("think", "") => Line::Think(Some("on".to_owned())),
        ("nothink", "") => Line::Think(Some("off".to_owned())),
        ("system", value) => {
            Line::System(Some(value.trim_matches('"').to_owned()).filter(|text| !text.is_empty()))
        }
        ("parameter", value) => match value.split_once(char::is_whitespace) {
            Some((name, value)) => Line::Params(Some(format!("{name}={}", value.trim()))),
            None => mistake("/set parameter needs a name and a value"),
        },
        (name, value) if !rest.contains('=') && !value.is_empty() => {
            Line::Params(Some(format!("{name}={value}")))
        }
        _ => Line::Params(Some(rest.to_owned())),
    }
}

fn mistake(message: &str) -> Line {
    Line::Invalid(message.to_owned())
}

/// Parses up to `max_count` positive integers.
fn numbers(text: &str, max_count: usize) -> Option<Vec<usize>> {
    let all: Option<Vec<usize>> =
        text.split_whitespace().map(|word| word.parse().ok().filter(|number| *number > 0)).collect();
    all.filter(|all| (1..=max_count).contains(&all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        assert_eq!(parse("  hello there \n"), Line::Message("hello there".into()));
        assert_eq!(parse(" /etc/hosts"), Line::Message("/etc/hosts".into()));
        assert_eq!(parse(" ?what"), Line::Message("?what".into()));
        assert_eq!(parse("? how do I leave "), Line::Ask("how do I leave".into()));
        assert_eq!(parse("?"), Line::Help);
        assert_eq!(parse("/Help"), Line::Help);
        assert_eq!(parse("quit"), Line::Quit);
        assert_eq!(parse("quit smoking, how?"), Line::Message("quit smoking, how?".into()));
        assert_eq!(parse("   "), Line::Empty);
        assert_eq!(parse("/system Be terse."), Line::System(Some("Be terse.".into())));
        assert_eq!(parse("/system"), Line::System(None));
        assert_eq!(parse("/context"), Line::Context);
        assert_eq!(parse("/tools"), Line::Tools);
        assert_eq!(parse("/params top_k=4"), Line::Params(Some("top_k=4".into())));
        assert_eq!(parse("/seed"), Line::Seed(None));
        for (alias, line) in
            [("/new", Line::Clear), ("/regenerate", Line::Retry), ("/show", Line::Params(None))]
        {
            assert_eq!(parse(alias), line);
        }
        assert_eq!(parse("/set top_k=4"), Line::Params(Some("top_k=4".into())));
        assert_eq!(parse("/set parameter top_k  4"), Line::Params(Some("top_k=4".into())));
        assert_eq!(parse("/set top_k  4"), Line::Params(Some("top_k=4".into())));
        assert_eq!(parse("/set system \"Be terse.\""), Line::System(Some("Be terse.".into())));
        assert_eq!(parse("/set nothink"), Line::Think(Some("off".into())));
        assert_eq!((parse("/show system"), parse("/show info")), (Line::System(None), Line::Model(None)));
        assert_eq!(
            (parse("/copy"), parse("/copy code")),
            (Line::Copy { code: false }, Line::Copy { code: true })
        );
        assert!(
            matches!(parse("/copy all"), Line::Invalid(_)) && matches!(parse("/show x"), Line::Invalid(_))
        );
        assert_eq!(parse("/think"), Line::Think(None));
        assert_eq!(parse("/why 3"), Line::Why(3));
        assert_eq!(parse("/branch 3"), Line::Branch(3, 1));
        assert_eq!(parse("/branch 3 2"), Line::Branch(3, 2));
        assert!(matches!(parse("/branch"), Line::Invalid(_)) && matches!(parse("/why 0"), Line::Invalid(_)));
        assert_eq!(parse("/think off"), Line::Think(Some("off".into())));
        assert_eq!(parse("/save a b.json"), Line::Save { file: "a b.json".into(), overwrite: false });
        assert_eq!(parse("/save! a"), Line::Save { file: "a".into(), overwrite: true });
        assert!(matches!(parse("/save"), Line::Invalid(_)));
        assert!(matches!(parse("/frobnicate"), Line::Invalid(_)));
    }

    #[test]
    fn the_help_lists_all_commands_and_each_is_one() {
        for name in COMMANDS {
            assert!(HELP.contains(name), "{name}");
            let fits = |word: &str| !matches!(parse(&format!("{name} {word}")), Line::Invalid(_));
            assert!(fits("on") || fits("3") || fits("code"), "{name}");
        }
    }
}
