//! Detects how a model calls tools. When a model is loaded, its template renders a tool call, and the format that
//! parses this call is selected. The parser therefore reads the format that the model was trained to write.

use mlx_json::{Map, Value};
use serde_json::json;

use super::format::{CallFormat, OutputFormat, Part, WrittenCall};
use super::message::{Message, ToolCall};
use super::parser::{ChatEvent, OutputParser};
use super::tool::{Tool, Tools};
use crate::{ChatTemplate, TemplateInput, text::Tokenizer};

/// The tool in the rendered test call.
const TOOL: &str = "look_up_tide";
const QUESTION: &str = "When is high tide in Brest?";
/// Ids that every template accepts.
const IDS: [&str; 2] = ["a1B2c3D4e", "f5G6h7I8j"];

/// The tool support of a model.
#[derive(Debug, Clone)]
pub struct ToolSupport {
    calls: CallFormat,
    writes_calls: bool,
    is_parallel: bool,
}

impl ToolSupport {
    /// Detects the tool support of the model with this template and vocabulary. The error is the reason why it cannot
    /// call tools. `named` is the name of a format to use instead of detecting one.
    pub fn detect(
        template: Option<&ChatTemplate>,
        tokenizer: &Tokenizer,
        named: Option<&str>,
    ) -> Result<Self, String> {
        let formats = match named {
            None => CallFormat::all().collect(),
            Some(name) => vec![CallFormat::named(name).ok_or_else(|| unknown(name))?],
        };
        let template = template.ok_or("the model has no chat template")?;
        let probe = Probe::new(template)?;
        if !probe.prompt.contains(TOOL) {
            return Err("the model's chat template does not support tools".to_owned());
        }
        if let Some(found) = probe.written_by_template(&formats) {
            return Ok(Self { calls: found.calls.for_vocabulary(tokenizer), ..found });
        }
        let is_known =
            |text: &str| named.is_some() || template.mentions(text) || tokenizer.id(text).is_some();
        let calls = formats.iter().find(|format| knows(format, is_known) && probe.keeps_in_content(format));
        let calls = calls.ok_or("the model's chat template writes tool calls in an unknown format")?;
        Ok(Self { calls: calls.for_vocabulary(tokenizer), writes_calls: false, is_parallel: true })
    }

    /// Returns the call format.
    pub fn calls(&self) -> &CallFormat {
        &self.calls
    }

    /// Returns true if the template renders the calls of earlier answers. Otherwise they are part of the content.
    pub(super) fn writes_calls(&self) -> bool {
        self.writes_calls
    }

    /// Returns true if an answer may contain several calls.
    pub fn is_parallel(&self) -> bool {
        self.is_parallel
    }

    /// Makes a parser also read calls of these tools, for an answer to this prompt. `is_single` limits it to one call.
    pub fn reading_calls(
        &self,
        parser: OutputParser,
        tools: Tools,
        is_single: bool,
        prompt: &str,
    ) -> OutputParser {
        let is_strict = tools.list().iter().any(|tool| tool.is_strict);
        let parser = parser.with_calls(&self.calls, tools, prompt);
        let parser = if is_strict { parser.requiring_section_markers() } else { parser };
        if is_single || !self.is_parallel { parser.with_single_call() } else { parser }
    }
}

/// Returns the call format of models with this template, for text in which special tokens are spelled out. A template
/// that does not render calls may still mention their markers.
pub fn calls_of_template(template: &ChatTemplate) -> Option<CallFormat> {
    let formats: Vec<CallFormat> = CallFormat::all().collect();
    let written = Probe::new(template).ok().and_then(|probe| probe.written_by_template(&formats));
    let is_known = |text: &str| template.mentions(text);
    written.map(|found| found.calls).or_else(|| formats.into_iter().find(|format| knows(format, is_known)))
}

/// Returns true if the markers of a format, or the signs of its family, are known.
fn knows(format: &CallFormat, is_known: impl Fn(&str) -> bool) -> bool {
    let family = format.syntax().family;
    let section = family.section.map_or(Vec::new(), |section| vec![section.open, section.close]);
    let literal = |part: &Part| if let Part::Text(text) = part { Some(*text) } else { None };
    let call: Vec<&str> =
        if section.is_empty() { family.call.iter().filter_map(literal).collect() } else { Vec::new() };
    let words = || section.iter().chain(&call).flat_map(|text| text.split_ascii_whitespace());
    let words = || words().map(|word| word.trim_matches(['[', ']'])).filter(|word| !word.is_empty());
    let has_markers = !family.only_first && words().next().is_some() && words().all(&is_known);
    has_markers || family.signs.iter().any(|sign| is_known(sign))
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = CallFormat::names().collect();
    format!("{name:?} is not a tool call format; use one of {}", names.join(", "))
}

/// A template and the inputs of its test renderings.
struct Probe<'a> {
    template: &'a ChatTemplate,
    format: OutputFormat,
    tools: Tools,
    /// The rendered prompt before an answer.
    prompt: String,
}

impl<'a> Probe<'a> {
    fn new(template: &'a ChatTemplate) -> Result<Self, String> {
        let spelled = OutputFormat::spelled(template);
        let format = spelled.calls_on_channels().map_or_else(OutputFormat::plain, |_| spelled.clone());
        let tools = Tools::new(vec![tool()]).map_err(|error| error.to_string())?;
        let mut probe = Self { template, format, tools, prompt: String::new() };
        let prompt = probe.render(Vec::new(), true);
        probe.prompt = prompt.map_err(|error| format!("the model's template fails with tools: {error}"))?;
        Ok(probe)
    }

    /// Returns the tool support that rendered calls show, with several calls or else one.
    fn written_by_template(&self, formats: &[CallFormat]) -> Option<ToolSupport> {
        [true, false].into_iter().find_map(|is_parallel| {
            let calls = self.format_of_template(formats, is_parallel)?;
            Some(ToolSupport { calls, writes_calls: true, is_parallel })
        })
    }

    fn render(&self, answer: Vec<Message>, is_open: bool) -> crate::error::Result<String> {
        let messages = [vec![Message::user(QUESTION)], answer].concat();
        self.template.render(&TemplateInput {
            messages,
            tools: self.tools.shown(),
            add_generation_prompt: is_open,
            ..TemplateInput::default()
        })
    }

    /// Returns the format that parses the calls that the template renders. A format that would write identical text is
    /// preferred.
    fn format_of_template(&self, formats: &[CallFormat], is_parallel: bool) -> Option<CallFormat> {
        let answer = answer_with_calls(is_parallel);
        let written = self.answer(vec![answer.clone()]).or_else(|| {
            // Some templates write calls only with their results.
            let results = answer.tool_calls.iter().map(|call| Message {
                tool_call_id: call.id.clone(),
                name: Some(call.name.clone()),
                ..Message::new(super::message::Role::Tool, "12:40")
            });
            self.answer(std::iter::once(answer.clone()).chain(results).collect())
        })?;
        let reads = |format: &&CallFormat| {
            let is_of_channels = match self.format.calls_on_channels() {
                Some(name) => format.name() == name,
                None => !format.is_on_channels(),
            };
            is_of_channels && self.reads(format, &written, answer.tool_calls.len())
        };
        let reading: Vec<&CallFormat> = formats.iter().filter(reads).collect();
        let count = answer.tool_calls.len();
        let is_equal = |format: &&&CallFormat| {
            written.contains(&write(format, count)) || written.contains(&write(format, 1))
        };
        reading.iter().find(is_equal).or_else(|| reading.first()).map(|format| (*format).clone())
    }

    /// Returns the text that the template writes after the prompt.
    fn answer(&self, answer: Vec<Message>) -> Option<String> {
        let whole = self.render(answer, false).ok()?;
        if let Some(answer) = whole.strip_prefix(&self.prompt) {
            return Some(answer.to_owned());
        }
        whole.rsplit_once(QUESTION).map(|(_, after)| after.to_owned())
    }

    fn reads(&self, format: &CallFormat, written: &str, count: usize) -> bool {
        let parser = OutputParser::new(&self.format, &self.prompt);
        let parser = parser.with_calls(format, self.tools.clone(), &self.prompt);
        let mut read: Vec<(String, String)> = Vec::new();
        for event in parser.read(written) {
            match (event, read.last_mut()) {
                (ChatEvent::CallStart { name, .. }, _) => read.push((name, String::new())),
                (ChatEvent::Args(more), Some((_, args))) => args.push_str(&more),
                _ => {}
            }
        }
        let is_call = |(index, (name, args)): (usize, &(String, String))| {
            name == TOOL
                && mlx_json::parse(args.as_bytes()).is_ok_and(|args| args == Value::Object(arguments(index)))
        };
        read.len() == count && read.iter().enumerate().all(is_call)
    }

    /// Returns true if the template leaves calls in the content unchanged.
    fn keeps_in_content(&self, format: &CallFormat) -> bool {
        let text = write(format, 1);
        self.answer(vec![Message::assistant(text.clone())]).is_some_and(|answer| answer.contains(text.trim()))
    }
}

/// Returns an answer with two calls, or with one.
fn answer_with_calls(is_parallel: bool) -> Message {
    let call = |index: usize| ToolCall {
        id: Some(IDS[index].to_owned()),
        name: TOOL.to_owned(),
        arguments: Value::Object(arguments(index)).to_string(),
    };
    let tool_calls = (0..if is_parallel { 2 } else { 1 }).map(call).collect();
    Message { parts: Vec::new(), tool_calls, ..Message::assistant("") }
}

fn write(format: &CallFormat, count: usize) -> String {
    let arguments: Vec<_> = (0..count).map(arguments).collect();
    let call = |(index, arguments)| WrittenCall { id: IDS[index], name: TOOL, arguments };
    let calls: Vec<WrittenCall> = arguments.iter().enumerate().map(call).collect();
    format.write(&calls)
}

fn tool() -> Tool {
    let properties = json!({
        "days": {"type": "integer", "description": "How many days."},
        "place": {"type": "string", "description": "The name of the harbour."},
    });
    let parameters = json!({"type": "object", "properties": properties, "required": ["place", "days"]});
    let description = "Looks up the times of high tide.";
    let function = json!({"name": TOOL, "description": description, "parameters": parameters});
    let json = json!({"type": "function", "function": function}).into();
    Tool { name: TOOL.to_owned(), parameters, is_strict: false, is_deferred: false, json }
}

fn arguments(index: usize) -> Map {
    let place = ["Brest", "Saint-Malo"][index];
    Map::from_iter([("days".to_owned(), (3 + index as i64).into()), ("place".to_owned(), place.into())])
}

#[cfg(test)]
mod tests;
