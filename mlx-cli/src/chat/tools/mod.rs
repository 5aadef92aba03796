//! The tools of a chat: commands that the model calls. The user allows each call, or a tool for the whole session.

mod clipped;
mod command;
mod file;
mod run;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chat_format::{ToolCall, Tools};
use serde_json::Value;

use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use file::FileTool;
use run::End;

/// The commands of a tools file.
#[derive(Default)]
pub(super) struct Toolbox {
    tools: Vec<FileTool>,
    /// The names of tools that run without confirmation.
    allowed: HashSet<String>,
}

/// A valid call.
pub(super) struct Request {
    /// The index of the tool.
    index: usize,
    command: std::process::Command,
    /// The command as shown to the user.
    pub(super) command_line: String,
}

/// The result of a command.
pub(super) struct ToolResult {
    /// The result text for the model.
    pub(super) text: String,
    /// True if the user stopped it.
    pub(super) is_stopped: bool,
}

impl Toolbox {
    /// Reads a tools file. The tools named in `allowed` run without confirmation.
    pub(super) fn open(file: &Path, allowed: &[String]) -> Result<Self, Failure> {
        let tools = file::read(file)?;
        let names: Vec<&str> = tools.iter().map(|tool| tool.tool.name.as_str()).collect();
        if let Some(unknown) = allowed.iter().find(|name| !names.contains(&name.as_str())) {
            let message = format!(
                "{unknown:?} is not a tool of {}; its tools are {}",
                file.display(),
                names.join(", ")
            );
            return Err(Failure::usage("--allow-tool", message));
        }
        Ok(Self { tools, allowed: allowed.iter().cloned().collect() })
    }

    /// Returns the tool definitions for the model.
    pub(super) fn definitions(&self) -> Result<Tools, Failure> {
        Ok(Tools::new(self.tools.iter().map(|tool| tool.tool.clone()).collect())?)
    }

    /// Lists the tools, one per line.
    pub(super) fn list(&self) -> String {
        if self.tools.is_empty() {
            return "there are no tools; start with --tools FILE".to_owned();
        }
        let line = |tool: &FileTool| {
            let name = &tool.tool.name;
            let allowed = if self.is_allowed(name) { " (runs without confirmation)" } else { "" };
            format!("{name}: {}{allowed}", tool.description)
        };
        self.tools.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Returns true if a tool runs without confirmation.
    pub(super) fn is_allowed(&self, name: &str) -> bool {
        self.allowed.contains(name)
    }

    /// Lets a tool run without confirmation from now on.
    pub(super) fn allow(&mut self, name: &str) {
        self.allowed.insert(name.to_owned());
    }

    /// Returns the command of a call, or an error text for the model instead of a result.
    pub(super) fn request(&self, call: &ToolCall) -> Result<Request, String> {
        let rejected = |reason: String| format!("The call was not carried out: {reason}.");
        let index = self.tools.iter().position(|tool| tool.tool.name == call.name);
        let index = index.ok_or_else(|| rejected(format!("there is no tool {:?}", call.name)))?;
        let tool = &self.tools[index];
        let arguments = arguments(&call.arguments, &tool.tool.parameters).map_err(rejected)?;
        let (command, command_line) = tool.command.fill(&arguments).map_err(rejected)?;
        Ok(Request { index, command, command_line })
    }

    /// Runs a command. Ctrl-C ends it and every process that it started.
    pub(super) fn run(&self, request: Request, interrupt: &Interrupt) -> ToolResult {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        interrupt.watch(move || flag.store(true, Ordering::Relaxed));
        let outcome = run::run(request.command, self.tools[request.index].limits, &stop);
        interrupt.release();
        match outcome {
            Ok(outcome) => ToolResult { text: outcome.text(), is_stopped: outcome.end == End::Stopped },
            Err(error) => {
                ToolResult { text: format!("The command did not start: {error}."), is_stopped: false }
            }
        }
    }
}

/// Parses the arguments of a call and checks their names.
fn arguments(text: &str, schema: &Value) -> Result<mlx_json::Map, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let arguments = mlx_json::parse(text.as_bytes()).ok().and_then(mlx_json::Value::into_object);
    let arguments = arguments.ok_or("its arguments are not a JSON object")?;
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = required.into_iter().find(|name| !arguments.contains_key(*name)) {
        return Err(format!("its argument {name:?} is missing"));
    }
    let is_known = |name: &&String| schema["properties"].get(name.as_str()).is_some();
    match arguments.keys().find(|name| !is_known(name)) {
        Some(name) => Err(format!("it has no parameter {name:?}")),
        None => Ok(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolbox(allowed: &[&str]) -> Result<Toolbox, Failure> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let text = "[[tool]]\nname = \"say\"\ndescription = \"Says it.\"\ncommand = [\"printf\", \"%s\", \"{text}\"]\n\
                    parameters = { text = \"What.\" }\n[[tool]]\nname = \"no\"\ndescription = \"Fails.\"\ncommand = [\"/no/such\"]\n";
        std::fs::write(file.path(), text).expect("it can be written");
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        Toolbox::open(file.path(), &allowed)
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: None, name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn calls_become_commands_or_reasons() {
        let toolbox = toolbox(&["say"]).expect("valid");
        assert!(toolbox.is_allowed("say") && !toolbox.is_allowed("no"));
        assert_eq!(toolbox.list(), "say: Says it. (runs without confirmation)\nno: Fails.");
        let request = toolbox.request(&call("say", "{\"text\": \"a b\"}")).expect("valid");
        assert_eq!(request.command_line, "printf %s 'a b'");
        assert_eq!(toolbox.run(request, &Interrupt::default()).text, "a b");
        let long = "123456789012345678901234567890";
        let numbers = toolbox.request(&call("say", &format!("{{\"text\": [{long}, 1.50]}}"))).expect("valid");
        assert_eq!(toolbox.run(numbers, &Interrupt::default()).text, format!("[{long},1.50]"));
        let missing = toolbox.request(&call("no", "")).expect("it has no arguments");
        assert!(toolbox.run(missing, &Interrupt::default()).text.contains("did not start"));
        for (name, arguments, word) in [
            ("other", "{}", "\"other\""),
            ("say", "{\"text\": ", "JSON"),
            ("say", "{}", "\"text\" is missing"),
            ("say", "{\"text\": \"a\", \"more\": 1}", "\"more\""),
        ] {
            let reason = toolbox.request(&call(name, arguments)).err().expect("refused");
            assert!(reason.contains(word) && reason.starts_with("The call was not"), "{reason}");
        }
    }

    #[test]
    fn only_tools_of_the_file_can_be_allowed() {
        let Err(Failure::Usage(message)) = toolbox(&["shout"]) else { panic!("an unknown name") };
        assert!(message.contains("shout") && message.contains("say, no"), "{message}");
    }
}
