//! `mlx parse`: what a model's raw output means.

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

/// The text below the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx parse -m MODEL --tools tools.json < output.txt
  mlx parse --template chat_template.jinja --prompt-end '<think>' < output.txt
  mlx parse --format hermes < output.txt

The output is text in which special tokens are spelled out. One JSON message is printed, with content, reasoning_content and
tool_calls. A token at the end of the output that ends a turn, such as <|im_end|>, is dropped.";

#[derive(Debug, Args)]
pub(crate) struct ParseArgs {
    /// The model that wrote the output: a name that `mlx list` shows, or a folder
    #[arg(short, long, value_name = "MODEL", required_unless_present_any = ["template", "format"])]
    model: Option<PathBuf>,

    /// The file of the chat template of the model that wrote the output
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    template: Option<PathBuf>,

    /// The format of calls, in place of the one that is found; an unknown name lists them all
    #[arg(long, value_name = "NAME")]
    format: Option<String>,

    /// The tools of the request, as a JSON list in the form of OpenAI's API; their schemas say which arguments are texts
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,

    /// The end of the prompt, which may have opened a thought or a call
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

/// How thoughts and calls are marked.
fn formats(args: &ParseArgs) -> Result<(OutputFormat, Option<CallFormat>), Failure> {
    let template =
        |path: &Path| Ok::<_, Error>(ChatTemplate::from_source(&read_file(path)?, special_tokens())?);
    let (output, found) = match (&args.model, &args.template) {
        (Some(model), _) => {
            let folder = ModelFolder::open(&mlx_hub::resolve(model)?)?;
            let calls = folder.tools.map(|support| support.calls().spelled_out());
            // A template without a place for tools may still write calls.
            let of_template = || folder.template.as_ref().and_then(calls_of_template);
            (folder.format.spelled_out(), calls.or_else(|why| of_template().ok_or(why)))
        }
        (None, Some(path)) => {
            let template = template(path)?;
            let calls =
                calls_of_template(&template).ok_or("the template shows no known format of calls".to_owned());
            (OutputFormat::spelled(&template), calls)
        }
        (None, None) => (OutputFormat::plain(), Err("no model is named".to_owned())),
    };
    let Some(name) = &args.format else {
        if let Err(why) = &found {
            terminal::note(&format!("calls of tools are left as text: {why}"));
        }
        return Ok((output, found.ok()));
    };
    let calls = CallFormat::named(name).ok_or_else(|| {
        let names: Vec<&str> = CallFormat::names().collect();
        Failure::usage("--format", format!("{name:?} is unknown; there are {}", names.join(", ")))
    })?;
    let is_unnamed = args.model.is_none() && args.template.is_none();
    Ok((if is_unnamed { OutputFormat::of_calls(&calls) } else { output }, Some(calls)))
}

/// What templates expect of a model's other files.
fn special_tokens() -> Map<String, Value> {
    [("bos_token", "<s>"), ("eos_token", "</s>")]
        .map(|(name, token)| (name.to_owned(), token.into()))
        .into_iter()
        .collect()
}

/// Tools from a file: a list, or one of them.
fn read_tools(path: &Path) -> Result<Tools, Failure> {
    let wrong = |why: String| Error::file(path, why);
    let value = mlx_json::parse(read_file(path)?.as_bytes());
    let list = match value.map_err(|error| wrong(format!("is no JSON: {error}")))? {
        mlx_json::Value::Array(list) => list,
        mlx_json::Value::Object(mut object) if object.contains_key("tools") => {
            match object.shift_remove("tools") {
                Some(mlx_json::Value::Array(list)) => list,
                _ => return Err(wrong("has tools that are no list".into()).into()),
            }
        }
        one => vec![one],
    };
    let tools = list.into_iter().map(Tool::read).collect::<Result<Vec<_>, _>>().and_then(Tools::new);
    Ok(tools.map_err(|error| wrong(error.to_string()))?)
}

/// The message that the events make.
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
