//! The file of `--tools`: the schema of each command for the model, and how to run it. Errors name the tool.

use std::path::Path;
use std::time::Duration;

use chat_format::Tool;
use mlx_core::{Error, Result};
use mlx_options::{ByteSize, Seconds};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::command::Template;
use super::run::Limits;
use crate::input::read_file;

/// The default time limit, and the default number of output bytes kept.
const DEFAULT_TIMEOUT: Seconds = Seconds(60.0);
const DEFAULT_OUTPUT: ByteSize = ByteSize(16 << 10);
/// The largest values that a file may set.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);
const MAX_OUTPUT: ByteSize = ByteSize(1 << 20);

/// A command that the model may call.
#[derive(Debug)]
pub(super) struct FileTool {
    /// The definition that the model gets.
    pub(super) tool: Tool,
    /// A description in plain words.
    pub(super) description: String,
    /// The command to run.
    pub(super) command: Template,
    pub(super) limits: Limits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tool: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    description: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    command: CommandEntry,
    #[serde(default)]
    strict: bool,
    timeout: Option<Seconds>,
    output: Option<ByteSize>,
}

/// A command as written in the file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "command must be a list of words or a shell line")]
enum CommandEntry {
    Line(String),
    Words(Vec<String>),
}

/// Reads a file of tools.
pub(super) fn read(path: &Path) -> Result<Vec<FileTool>> {
    parse(&read_file(path)?).map_err(|reason| Error::file(path, reason))
}

fn parse(text: &str) -> Result<Vec<FileTool>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    if file.tool.is_empty() {
        return Err("has no tools; each one begins with the line [[tool]]".to_owned());
    }
    let named = |entry: Entry| {
        let name = entry.name.clone();
        tool(entry).map_err(|reason| format!("tool {name:?}: {reason}"))
    };
    file.tool.into_iter().map(named).collect()
}

fn tool(entry: Entry) -> Result<FileTool, String> {
    let is_part = |ch: char| ch.is_ascii_alphanumeric() || "_-".contains(ch);
    if entry.name.is_empty() || !entry.name.chars().all(is_part) {
        return Err("name must be letters, digits, _ and -".to_owned());
    }
    let schema = schema(entry.parameters)?;
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let names: Vec<&str> = properties.keys().map(String::as_str).collect();
    let command = match entry.command {
        CommandEntry::Line(line) => Template::line(line, &names)?,
        CommandEntry::Words(words) => Template::words(&words, &names)?,
    };
    let time = entry.timeout.unwrap_or(DEFAULT_TIMEOUT).duration();
    if time.is_zero() || time > MAX_TIMEOUT {
        return Err(format!("timeout must be more than 0 and at most {} seconds", MAX_TIMEOUT.as_secs()));
    }
    let output = entry.output.unwrap_or(DEFAULT_OUTPUT);
    if output > MAX_OUTPUT {
        return Err(format!("output is {output}; the limit is {MAX_OUTPUT}"));
    }
    let mut function = json!({"name": entry.name, "description": entry.description, "parameters": schema});
    if entry.strict {
        function["strict"] = true.into();
    }
    let tool = Tool::read(json!({"type": "function", "function": function}));
    let tool = tool.map_err(|error| error.to_string())?;
    let limits = Limits { time, bytes: output.0 as usize };
    Ok(FileTool { tool, description: entry.description, command, limits })
}

/// Returns the JSON schema of the parameters. A table of names and descriptions becomes a schema of required strings.
fn schema(given: Map<String, Value>) -> Result<Value, String> {
    let is_schema = given.get("type").is_some_and(|kind| kind == "object");
    if is_schema {
        if given.get("properties").is_some_and(|properties| !properties.is_object()) {
            return Err("parameters.properties must be a table".to_owned());
        }
        return Ok(Value::Object(given));
    }
    let mut properties = Map::new();
    for (name, description) in given {
        let Value::String(description) = description else {
            return Err(format!(
                "parameters.{name} must be a string; a JSON schema begins with type = \"object\""
            ));
        };
        properties.insert(name, json!({"type": "string", "description": description}));
    }
    let required: Vec<String> = properties.keys().cloned().collect();
    Ok(
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[tool]]
name = "search"
description = "Searches."
command = ["grep", "-rn", "--", "{text}", "{folder}"]
timeout = 5
output = "4KiB"
parameters = { text = "What to look for.", folder = "Where." }

[[tool]]
name = "tide"
description = "Looks up a tide."
strict = true
command = 'echo "$ARG_days"'
[tool.parameters]
type = "object"
required = ["days"]
[tool.parameters.properties.days]
type = "integer"
minimum = 1
"#;

    #[test]
    fn both_forms_of_parameters_are_read_in_their_order() {
        let tools = parse(GOOD).expect("valid");
        let schema = &tools[0].tool.parameters;
        assert_eq!(schema["required"], json!(["text", "folder"]));
        assert_eq!(
            schema["properties"]["text"],
            json!({"type": "string", "description": "What to look for."})
        );
        assert_eq!(tools[0].limits, Limits { time: Duration::from_secs(5), bytes: 4096 });
        assert_eq!(tools[1].limits, Limits { time: Duration::from_mins(1), bytes: 16 << 10 });
        assert_eq!(tools[1].tool.parameters["properties"]["days"]["minimum"], 1);
        assert!(tools[1].tool.is_strict && !tools[0].tool.is_strict);
    }

    #[test]
    fn the_example_of_the_documentation_works() {
        let page = include_str!("../../../../docs/chat-tools.md");
        let (_, rest) = page.split_once("```toml\n").expect("an example");
        let (example, _) = rest.split_once("```").expect("it ends");
        let tools = parse(example).expect("valid");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("it's here.txt");
        std::fs::write(&file, "one\ntwo\nthree\n").expect("it can be written");
        let run = |tool: &FileTool, arguments: Value| {
            let arguments = mlx_json::Value::from(arguments).into_object().expect("an object");
            let (mut command, _) = tool.command.fill(&arguments).expect("valid");
            String::from_utf8(command.output().expect("it runs").stdout).expect("text")
        };
        let found = run(&tools[0], json!({"text": "thr", "folder": folder.path()}));
        assert_eq!(found, format!("{}:3:three\n", file.display()));
        assert_eq!(run(&tools[1], json!({"file": file, "first": 1, "last": 2})), "one\ntwo\n");
    }

    #[test]
    fn mistakes_are_named() {
        let with = |lines: &str| {
            format!("[[tool]]\nname = \"a\"\ndescription = \"b\"\ncommand = [\"true\"]\n{lines}")
        };
        for (text, words) in [
            (String::new(), &["no tools", "[[tool]]"][..]),
            ("[[tools]]".to_owned(), &["tools"]),
            ("[[tool]]\nname = \"a\"".to_owned(), &["description"]),
            (with("colour = 1"), &["colour"]),
            (with("timeout = 0"), &["\"a\"", "timeout"]),
            (with("timeout = 7200"), &["timeout", "3600"]),
            (with("output = \"2MiB\""), &["output", "1MiB"]),
            (with("parameters = { x = 1 }"), &["parameters.x", "type = \"object\""]),
            (with("parameters = { type = \"object\", properties = 1 }"), &["properties"]),
            (with("").replace("[\"true\"]", "1"), &["list of words"]),
            (with("").replace("[\"true\"]", "[]"), &["command", "empty"]),
            (with("").replace("[\"true\"]", "\" \""), &["command", "empty"]),
            (with("").replace("[\"true\"]", "[\"ls\", \"{path}\"]"), &["{path}", "parameter"]),
            (with("").replace("\"a\"", "\"a b\""), &["\"a b\"", "name"]),
        ] {
            let reason = parse(&text).expect_err(&text);
            assert!(words.iter().all(|word| reason.contains(word)), "{text}: {reason}");
        }
    }
}
