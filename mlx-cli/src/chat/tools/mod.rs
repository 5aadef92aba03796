//! The tools of a chat: commands and tools of MCP servers that the model calls. The user allows each call, or a tool for the whole session.

mod command;
mod file;
mod run;
mod servers;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chat_format::{Part, Tool, ToolCall, Tools};
use mlx_options::visible;
use serde_json::Value;

use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use file::FileTool;
use run::End;
use servers::Servers;
pub(super) use servers::StartingServers;

/// The commands of a tools file and the tools of MCP servers.
#[derive(Default)]
pub(super) struct Toolbox {
    tools: Vec<FileTool>,
    servers: Servers,
    /// The names of tools that run without confirmation.
    allowed: HashSet<String>,
}

/// A valid call.
pub(super) struct Request {
    action: Action,
    /// The command, or the tool of a server with all arguments.
    description: String,
}

impl Request {
    /// Returns what the user approves: the tool of a server with all arguments, or the call of the model and the command that it runs.
    pub(super) fn question(&self, call: &str) -> String {
        let description = visible(&self.description);
        match self.action {
            Action::Run(..) => format!("{call}\nruns: {description}"),
            Action::Call(..) => format!("call {description}"),
        }
    }
}

/// The work of a call.
enum Action {
    /// Run this command, of the tool with this index.
    Run(usize, std::process::Command),
    /// Call the tool of this index of a server with these arguments.
    Call(usize, serde_json::Map<String, Value>),
}

/// The result of a call.
pub(super) struct ToolResult {
    /// The result for the model.
    pub(super) parts: Vec<Part>,
    /// True if the user stopped it.
    pub(super) is_stopped: bool,
}

impl ToolResult {
    /// Returns a result with only text.
    pub(super) fn text_only(text: String, is_stopped: bool) -> Self {
        Self { parts: vec![Part::Text(text)], is_stopped }
    }

    /// Returns the text to show.
    pub(super) fn text(&self) -> String {
        let line = |part: &Part| part.text().map_or_else(|| "[a picture]".to_owned(), str::to_owned);
        self.parts.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Toolbox {
    /// Reads a tools file.
    pub(super) fn open(file: &Path) -> Result<Self, Failure> {
        Ok(Self { tools: file::read(file)?, ..Self::default() })
    }

    /// Returns the names of the commands.
    pub(super) fn command_names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.tool.name.clone()).collect()
    }

    /// Adds the tools of servers. Returns one line for each server that has failed.
    pub(super) fn add_servers(&mut self, starting: StartingServers) -> Vec<String> {
        self.servers = starting.started();
        self.servers.failures().map(str::to_owned).collect()
    }

    /// Lets the tools with these names run without confirmation. Returns one line for each name that has no effect, because the server with its tool
    /// may have failed.
    pub(super) fn allow_all(&mut self, allowed: &[String]) -> Result<Vec<String>, Failure> {
        let has_failed = self.servers.failures().next().is_some();
        let mut notes = Vec::new();
        for name in allowed {
            let is_command = self.tools.iter().any(|tool| tool.tool.name == *name);
            let tool = if is_command { Some(name.clone()) } else { self.servers.approved(name) };
            match tool {
                Some(tool) => self.allow(&tool),
                None if has_failed => notes.push(format!(
                    "--allow-tool {name} has no effect, because an MCP server failed; SERVER__TOOL allows a tool of a server that runs"
                )),
                None => {
                    let names: Vec<String> = self.names().collect();
                    let message = format!("{name:?} is not a tool; the tools are {}", names.join(", "));
                    return Err(Failure::usage("--allow-tool", message));
                }
            }
        }
        Ok(notes)
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.command_names().into_iter().chain(self.servers.tools().iter().map(|tool| tool.name.clone()))
    }

    /// Returns the tool definitions for the model.
    pub(super) fn definitions(&self) -> Result<Tools, Failure> {
        let mut tools: Vec<Tool> = self.tools.iter().map(|tool| tool.tool.clone()).collect();
        for tool in self.servers.tools() {
            tools.push(Tool::read(tool.definition())?);
        }
        Ok(Tools::new(tools)?)
    }

    /// Lists the tools, one per line.
    pub(super) fn list(&self) -> String {
        let commands = self
            .tools
            .iter()
            .map(|tool| (&tool.tool.name, format!("{}: {}", tool.tool.name, tool.description)));
        let served = self.servers.tools().iter().map(|tool| (&tool.name, servers::line(tool)));
        let allowed = |name| if self.is_allowed(name) { " (runs without confirmation)" } else { "" };
        let lines: Vec<String> =
            commands.chain(served).map(|(name, line)| format!("{line}{}", allowed(name))).collect();
        if lines.is_empty() {
            return "there are no tools; start with --tools FILE or --mcp FILE".to_owned();
        }
        lines.join("\n")
    }

    /// Lists the MCP servers and their tools.
    pub(super) fn list_servers(&self) -> String {
        self.servers.list()
    }

    /// Returns true if a tool runs without confirmation.
    pub(super) fn is_allowed(&self, name: &str) -> bool {
        self.allowed.contains(name)
    }

    /// Lets a tool run without confirmation from now on.
    pub(super) fn allow(&mut self, name: &str) {
        self.allowed.insert(name.to_owned());
    }

    /// Returns the work of a call, or an error text for the model instead of a result.
    pub(super) fn request(&self, call: &ToolCall) -> Result<Request, String> {
        let rejected = |reason: String| format!("The call was not carried out: {reason}.");
        if let Some(index) = self.servers.tools().iter().position(|tool| tool.name == call.name) {
            return self.server_request(index, call).map_err(rejected);
        }
        let index = self.tools.iter().position(|tool| tool.tool.name == call.name);
        let index = index.ok_or_else(|| rejected(format!("there is no tool {:?}", call.name)))?;
        let tool = &self.tools[index];
        let arguments = arguments(&call.arguments, &tool.tool.parameters).map_err(rejected)?;
        let (command, description) = tool.command.fill(&arguments).map_err(rejected)?;
        Ok(Request { action: Action::Run(index, command), description })
    }

    /// Returns a call of a server's tool. The server checks the arguments.
    fn server_request(&self, index: usize, call: &ToolCall) -> Result<Request, String> {
        let tool = &self.servers.tools()[index];
        let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        let arguments: serde_json::Map<String, Value> =
            serde_json::from_str(text).map_err(|_| "its arguments are not a JSON object".to_owned())?;
        let json = Value::Object(arguments.clone());
        let description = format!("{} of the MCP server {} {json}", tool.tool.name, tool.server.label());
        Ok(Request { action: Action::Call(index, arguments), description })
    }

    /// Runs a call. Ctrl-C ends a command and every process that it started, or cancels the call of a server.
    pub(super) fn run(&self, request: Request, interrupt: &Interrupt) -> ToolResult {
        match request.action {
            Action::Run(index, command) => self.run_command(index, command, interrupt),
            Action::Call(index, arguments) => {
                let (parts, is_stopped) =
                    self.servers.call(&self.servers.tools()[index], arguments, interrupt);
                ToolResult { parts, is_stopped }
            }
        }
    }

    fn run_command(&self, index: usize, command: std::process::Command, interrupt: &Interrupt) -> ToolResult {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        interrupt.watch(move || flag.store(true, Ordering::Relaxed));
        let outcome = run::run(command, self.tools[index].limits, &stop);
        interrupt.release();
        match outcome {
            Ok(outcome) => ToolResult::text_only(outcome.text(), outcome.end == End::Stopped),
            Err(error) => ToolResult::text_only(format!("The command did not start: {error}."), false),
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
        let mut toolbox = Toolbox::open(file.path())?;
        toolbox.allow_all(&allowed)?;
        Ok(toolbox)
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
        assert_eq!(request.description, "printf %s 'a b'");
        assert_eq!(toolbox.run(request, &Interrupt::default()).text(), "a b");
        let long = "123456789012345678901234567890";
        let numbers = toolbox.request(&call("say", &format!("{{\"text\": [{long}, 1.50]}}"))).expect("valid");
        assert_eq!(toolbox.run(numbers, &Interrupt::default()).text(), format!("[{long},1.50]"));
        let missing = toolbox.request(&call("no", "")).expect("it has no arguments");
        assert!(toolbox.run(missing, &Interrupt::default()).text().contains("did not start"));
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
