//! `mlx parse`: parses a model's raw output.

use std::path::{Path, PathBuf};

use chat_format::{
    CallFormat, ChatEvent, ChatTemplate, OutputFormat, OutputParser, Tool, Tools, calls_of_template,
};
use clap::Args;
use mlx_core::{Error, ModelFolder};
use serde_json::{Map, Value, json};

use crate::exit_code::Failure;
use crate::input::{read_file, read_text};
use crate::terminal;

/// Examples shown after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx parse -m MODEL --tools tools.json < output.txt
  mlx parse --template chat_template.jinja --prompt-end '<think>' < output.txt
  mlx parse --format hermes < output.txt

The input is model output with special tokens spelled out. The command prints one JSON message with content, reasoning_content and
tool_calls. A final token that ends a turn, such as <|im_end|>, is dropped.";

#[derive(Debug, Args)]
pub(crate) struct ParseArgs {
    /// The model that produced the output: a name that `mlx list` shows, or a folder
    #[arg(short, long, value_name = "MODEL", required_unless_present_any = ["template", "format"])]
    model: Option<PathBuf>,

    /// The chat template file of the model that produced the output
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    template: Option<PathBuf>,

    /// The tool-call format, instead of the detected one; an unknown name lists all formats
    #[arg(long, value_name = "NAME")]
    format: Option<String>,

    /// The request's tools, as a JSON list in the format of OpenAI's API; their schemas determine which arguments are strings
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,

    /// The end of the prompt, in case it opens a reasoning block or a tool call
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    prompt_end: String,
}

/// Runs the command.
pub(crate) fn run(args: &ParseArgs) -> Result<(), Failure> {
    let tools = match &args.tools {
        Some(path) => read_tools(path)?,
        None => Tools::default(),
    };
    let (output, calls) = formats(args)?;
    let mut parser = OutputParser::new(&output, &args.prompt_end);
    if let Some(calls) = calls {
        parser = parser.with_calls(&calls, tools, &args.prompt_end);
    }
    let written = read_text(None, None, "standard input")?;
    let message = message(parser.read(&written));
    terminal::show(&format!("{message}\n"))
}

/// Returns the formats of reasoning and of tool calls.
fn formats(args: &ParseArgs) -> Result<(OutputFormat, Option<CallFormat>), Failure> {
    let template =
        |path: &Path| Ok::<_, Error>(ChatTemplate::from_source(&read_file(path)?, special_tokens())?);
    let (output, found) = match (&args.model, &args.template) {
        (Some(model), _) => {
            let folder = ModelFolder::open(&mlx_hub::resolve(model)?)?;
            let calls = folder.tools.map(|support| support.calls().spelled_out());
            // A template that does not render tools may still define a format of calls.
            let of_template = || folder.template.as_ref().and_then(calls_of_template);
            (folder.format.spelled_out(), calls.or_else(|reason| of_template().ok_or(reason)))
        }
        (None, Some(path)) => {
            let template = template(path)?;
            let calls = calls_of_template(&template)
                .ok_or("the chat template has no known tool-call format".to_owned());
            (OutputFormat::spelled(&template), calls)
        }
        (None, None) => (OutputFormat::plain(), Err("no model is named".to_owned())),
    };
    let Some(name) = &args.format else {
        if let Err(reason) = &found {
            terminal::note(&format!("tool calls are passed through as text: {reason}"));
        }
        return Ok((output, found.ok()));
    };
    let calls = CallFormat::named(name).ok_or_else(|| {
        let names: Vec<&str> = CallFormat::names().collect();
        Failure::usage("--format", format!("{name:?} is unknown; the formats are {}", names.join(", ")))
    })?;
    let is_unnamed = args.model.is_none() && args.template.is_none();
    Ok((if is_unnamed { OutputFormat::of_calls(&calls) } else { output }, Some(calls)))
}

/// Returns special tokens that templates expect from other model files.
fn special_tokens() -> Map<String, Value> {
    [("bos_token", "<s>"), ("eos_token", "</s>")]
        .map(|(name, token)| (name.to_owned(), token.into()))
        .into_iter()
        .collect()
}

/// Reads tools from a file: a list, or a single tool.
fn read_tools(path: &Path) -> Result<Tools, Failure> {
    let wrong = |reason: String| Error::file(path, reason);
    let value = mlx_json::parse(read_file(path)?.as_bytes());
    let list = match value.map_err(|error| wrong(format!("is not JSON: {error}")))? {
        mlx_json::Value::Array(list) => list,
        mlx_json::Value::Object(mut object) if object.contains_key("tools") => {
            match object.shift_remove("tools") {
                Some(mlx_json::Value::Array(list)) => list,
                _ => return Err(wrong("has a field tools that is not a list".into()).into()),
            }
        }
        one => vec![one],
    };
    let tools = list.into_iter().map(Tool::read).collect::<Result<Vec<_>, _>>().and_then(Tools::new);
    Ok(tools.map_err(|error| wrong(error.to_string()))?)
}

/// Assembles the events into a message.
fn message(events: Vec<ChatEvent>) -> Value {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for event in events {
        match event {
            ChatEvent::Text(more) => content.push_str(&more),
            ChatEvent::Reasoning(more) => reasoning.push_str(&more),
            ChatEvent::CallStart { id, name } => calls.push((id, name, String::new())),
            ChatEvent::Args(more) => {
                if let Some((_, _, arguments)) = calls.last_mut() {
                    arguments.push_str(&more);
                }
            }
            ChatEvent::CallEnd => {}
        }
    }
    let is_null = content.is_empty() && !calls.is_empty();
    let mut message =
        json!({"role": "assistant", "content": if is_null { Value::Null } else { content.into() }});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    let call = |(index, (id, name, arguments)): (usize, (Option<String>, String, String))| {
        let id = id.unwrap_or_else(|| format!("call_{index}"));
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    };
    if !calls.is_empty() {
        message["tool_calls"] = calls.into_iter().enumerate().map(call).collect();
    }
    message
}
