//! Chat templates: messages to the text of a prompt, as transformers renders them.

mod access;
mod arguments;
mod checks;
mod clock;
mod fault;
mod filters;
mod format;
mod input;
mod interpreter;
mod json;
mod markup;
mod messages;
mod meter;
mod method_names;
mod methods;
mod numbers;
mod operators;
mod python;
mod scope;
mod sources;
mod syntax;
mod thread;
mod value;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use jiff::civil::DateTime;
use serde_json::{Map, Value};

use super::config::TokenizerConfig;
use super::guarded::guarded;
use super::pause::{NO_PAUSE, Pause};
use crate::chat::Message;
use crate::error::{Error, Result};
use fault::{Fault, Outcome, Reason};
use messages::MessageForm;
use meter::Meter;
pub use meter::RenderLimits;
use sources::{DEFAULT, Source};
use syntax::ast::Body;
use thread::{Control, on_thread};

/// The template for requests with tools, in folders that have one.
const TOOL_USE: &str = "tool_use";

/// The maximum bytes of a template. Real templates stay far below.
const MAX_BYTES: usize = 512 << 10;

/// The chat template of a model: a Jinja program that turns messages into the text of a prompt.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// By name.
    templates: Arc<BTreeMap<String, Compiled>>,
    /// `bos_token` and so on, which templates see as variables.
    special_tokens: Map<String, Value>,
    /// How it looks at messages.
    form: MessageForm,
}

/// A template and its tree.
#[derive(Debug)]
struct Compiled {
    file: String,
    source: String,
    body: Body,
}

/// What a chat template is rendered from.
#[derive(Debug, Clone, Default)]
pub struct TemplateInput {
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools that the model may call, in the form of `OpenAI`'s API.
    pub tools: Option<Vec<crate::json::Value>>,
    /// Documents for models that quote them.
    pub documents: Option<Vec<crate::json::Value>>,
    /// Whether to end with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether a model without a chat template continues the conversation's own text; otherwise that is an error.
    pub continue_text: bool,
    /// Whether the answer continues the last message; [`crate::chat::chat_prompt`] then ends the prompt within it.
    pub continue_final_message: bool,
    /// The template's own switches, such as `enable_thinking`. They win over special tokens of the same name.
    pub extra: crate::json::Map,
    /// The time that `strftime_now` gives; the system's clock if there is none.
    pub now: Option<DateTime>,
}

/// What a base model continues: the texts of the messages, where each of the user's begins a line.
const PLAIN: &str = "{% for message in messages %}{% if message.role == 'user' and not loop.first %}{{ '\\n' }}{% endif %}\
                     {{ message.content }}{% endfor %}";

impl ChatTemplate {
    /// For models that have none: the conversation as one text.
    pub(crate) fn plain() -> Result<&'static Self> {
        static PARSED: OnceLock<ChatTemplate> = OnceLock::new();
        if let Some(parsed) = PARSED.get() {
            return Ok(parsed);
        }
        let parsed = Self::from_source(PLAIN, Map::new())?;
        Ok(PARSED.get_or_init(|| parsed))
    }

    /// Loads the chat template of a model folder; `None` if it has none.
    ///
    /// As in transformers, `chat_template.jinja` and `additional_chat_templates/*.jinja` win over
    /// `chat_template` in `tokenizer_config.json`, which is a string or a list of names and templates.
    /// `chat_template.json`, which transformers reads for multimodal models, comes last.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let config = TokenizerConfig::load(folder)?;
        let sources = sources::of_folder(folder, config.chat_template.as_ref())?;
        if sources.is_empty() { Ok(None) } else { Self::new(sources, config.special_tokens).map(Some) }
    }

    /// Compiles one template. `special_tokens` are variables by name, such as `bos_token`.
    pub fn from_source(source: &str, special_tokens: Map<String, Value>) -> Result<Self> {
        let source = Source { name: DEFAULT.to_owned(), file: String::new(), text: source.to_owned() };
        Self::new(vec![source], special_tokens)
    }

    fn new(sources: Vec<Source>, special_tokens: Map<String, Value>) -> Result<Self> {
        let compile = || -> Result<BTreeMap<String, Compiled>> {
            sources.into_iter().map(|source| Ok((source.name.clone(), Compiled::new(source)?))).collect()
        };
        // The parser recurses, within limits, more deeply than the caller's stack may hold.
        let failed = || Err(Error::Template("it cannot be compiled".into()));
        let templates = Arc::new(guarded(compile).unwrap_or_else(failed)?);
        let form = MessageForm::of(|text| is_mentioned(&templates, text));
        Ok(Self { templates, special_tokens, form })
    }

    /// Whether a template of the model holds this text, such as a tag that marks thoughts.
    pub fn mentions(&self, text: &str) -> bool {
        is_mentioned(&self.templates, text)
    }

    /// Renders the prompt. A template's `raise_exception` is an [`Error::Template`] with its message.
    pub fn render(&self, input: &TemplateInput) -> Result<String> {
        self.render_within(input, &RenderLimits::default(), NO_PAUSE)
    }

    /// Renders the prompt within limits, which earlier renderings may have used in part. A template that exceeds them is an
    /// [`Error::Template`]; an error of `pause` ends the rendering within milliseconds.
    pub fn render_within(
        &self,
        input: &TemplateInput,
        limits: &RenderLimits,
        pause: Pause,
    ) -> Result<String> {
        self.try_render(input, limits, pause)?
    }

    /// The same. The inner error is the template's own, which raises or takes the messages for something else: it may render
    /// other messages. The outer one ends all work on the prompt.
    pub(crate) fn try_render(
        &self,
        input: &TemplateInput,
        limits: &RenderLimits,
        pause: Pause,
    ) -> Result<Result<String>> {
        let name =
            if input.tools.is_some() && self.templates.contains_key(TOOL_USE) { TOOL_USE } else { DEFAULT };
        let template = self.templates.get(name).ok_or_else(|| {
            Error::Template(format!("the model has several chat templates, but none is called \"{DEFAULT}\""))
        })?;
        on_thread(pause, |control| {
            let render = |form| {
                let variables = input::variables(&self.special_tokens, input, form);
                template.render(&variables, input.now, limits, control)
            };
            match self.in_any_form(input, render) {
                Ok(text) => Ok(Ok(text)),
                Err(fault) if fault.depends_on_input() => Ok(Err(template.explain(fault))),
                Err(fault) => Err(template.explain(fault)),
            }
        })
    }

    /// Renders in the form that the template seems to expect. If that fails and there are calls, the other forms are tried.
    fn in_any_form(
        &self,
        input: &TemplateInput,
        render: impl Fn(MessageForm) -> Outcome<String>,
    ) -> Outcome<String> {
        let rendered = render(self.form);
        let Err(fault) = rendered else { return rendered };
        let has_calls = input.messages.iter().any(|message| !message.tool_calls.is_empty());
        if !has_calls || !fault.depends_on_input() {
            return Err(fault);
        }
        for form in self.form.others() {
            match render(form) {
                Err(other) if other.depends_on_input() => {}
                ended => return ended,
            }
        }
        Err(fault)
    }
}

impl Compiled {
    fn new(source: Source) -> Result<Self> {
        let mut compiled = Self { file: source.file, source: source.text, body: Body::new() };
        let length = compiled.source.len();
        if length > MAX_BYTES {
            return Err(Error::Template(format!(
                "the template has {length} bytes; the limit is {MAX_BYTES}"
            )));
        }
        compiled.body = syntax::parse(&compiled.source).map_err(|fault| compiled.explain(fault))?;
        Ok(compiled)
    }

    /// Renders it from exactly these variables.
    fn render(
        &self,
        variables: &crate::json::Map,
        now: Option<DateTime>,
        limits: &RenderLimits,
        control: &Arc<Control>,
    ) -> Outcome<String> {
        let meter = Meter::new(limits, control);
        let values = input::values(variables, &meter);
        let rendered = values.and_then(|values| interpreter::render(&self.body, values, now, &meter));
        meter.end(limits);
        rendered
    }

    /// The bare message of a template's `raise_exception`; any other fault with the file and the line.
    fn explain(&self, fault: Fault) -> Error {
        let message = match fault.reason {
            Reason::Raised(message) => return Error::Template(message),
            Reason::Stopped => "was stopped".to_owned(),
            Reason::Invalid(message) | Reason::Limit(message) => message,
        };
        let line = fault.line.map(|line| format!("line {line}"));
        let place: Vec<&str> = [self.file.as_str(), line.as_deref().unwrap_or_default()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        Error::Template(if place.is_empty() { message } else { format!("{}: {message}", place.join(", ")) })
    }
}

fn is_mentioned(templates: &BTreeMap<String, Compiled>, text: &str) -> bool {
    templates.values().any(|template| template.source.contains(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, variables: &Value) -> Result<String> {
        let variables = crate::json::Value::from(variables.clone()).as_object().cloned().unwrap_or_default();
        let now = jiff::civil::date(2024, 7, 26).at(0, 0, 0, 0);
        let template = ChatTemplate::from_source(source, Map::new())?;
        let template = &template.templates[DEFAULT];
        let render = |control: &Arc<Control>| {
            let rendered = template.render(&variables, Some(now), &RenderLimits::default(), control);
            rendered.map_err(|fault| template.explain(fault))
        };
        on_thread(NO_PAUSE, render)
    }

    #[test]
    fn renders_as_transformers_does() {
        let variables =
            json!({"d": {"b": 1, "a": [true, null, 1e16, "it's \u{e9}"]}, "l": [3, 1, 2], "t": " x, y\n"});
        for (source, expected) in [
            ("  {% if true %}\n  {{ 1 }}\n  {% endif %}\n\n", "  1\n"),
            ("{{ d }}", "{'b': 1, 'a': [True, None, 1e+16, \"it's \u{e9}\"]}"),
            ("{{ d|tojson }}", "{\"b\": 1, \"a\": [true, null, 1e+16, \"it's \u{e9}\"]}"),
            ("{{ l|tojson(indent=1) }}{{ t|tojson(ensure_ascii=true) }}", "[\n 3,\n 1,\n 2\n]\" x, y\\n\""),
            ("{{ {'b': 1, 'a': {}}|tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":{},\"b\":1}"),
            ("{{ l[::-1] }}{{ l[-2:] }}{{ [][::-1] }}{{ t[1:-1] }}", "[2, 1, 3][1, 2][]x, y"),
            ("{{ t.strip().split(', ') }}{{ t.split() }}{{ 'abc'.find('c') }}", "['x', 'y']['x,', 'y']2"),
            ("{{ l|sort(true) }}{{ l|join('-') }}{{ nothing|length }}", "[3, 2, 1]3-1-20"),
            ("{{ 'a\nb\n'|indent(2) }}|{{ none is iterable }}|{{ '0x1f'|int(0, 16) }}", "a\n  b\n|False|31"),
            ("{% for k, v in d.items() %}{% if loop.last %}{% break %}{% endif %}{{ k }}{% endfor %}", "b"),
            ("{% set n = namespace(x=0) %}{% for i in l %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "6"),
            ("{%- generation %}{% set x = 1 %}{{ x }}{% endgeneration -%} {{ x is defined }}", "1False"),
            ("{{ strftime_now('%d %B %Y') }}", "26 July 2024"),
            ("{{ ('<a>'|safe) + '<' }}{{ ('<'|safe) ~ '&' }}{{ ['<', '&'|safe]|join }}", "<a>&lt;<&<&"),
            ("{{ dict([('a', 1)], b=+2) }}{{ nothing }}{{ 'a' ~ none }}", "{'a': 1, 'b': 2}aNone"),
        ] {
            assert_eq!(render(source, &variables).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        for (source, expected) in [
            ("\n{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
            ("\n{% for x in none %}{% endfor %}", "line 2: NoneType is not iterable"),
            ("\n{{ a.b }}", "line 2: `a` is undefined"),
            ("{{ 'a' + [] }}", "line 1: tried to use + operator"),
            ("{{ [].append(1) }}", "append is not allowed"),
            ("{% if %}", "line 1: syntax error"),
            ("{{ nothing|tojson }}", "`nothing` is undefined and cannot be written as JSON"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurses too deeply"),
        ] {
            let message = render(source, &Value::Null).expect_err(source).to_string();
            assert!(message.contains(expected), "{source}: {message}");
        }
    }

    #[test]
    fn the_memory_of_a_rendering_is_bounded() {
        const MEMORY: usize = 16 << 20;
        for step in [
            "n.x ~ n.x",
            "n.x.replace('', n.x)",
            "(n.x|string * 99)|list",
            "[n.x, n.x]|tojson(indent=9)",
            "(n.x|string * 9).split('a')",
            "dict([(n.x, 1), (i, n.x)])",
            "[n.x] * 99999",
            "range(99999)|map('string')|sort|unique|batch(2)|list + [n.x]",
            "'%s%s' % (n.x, n.x)",
        ] {
            let step = format!("{{% set n.x = {step} %}}{{% set n.y = [n.y, n.x] %}}");
            let source = format!(
                "{{% set n = namespace(x='aab', y=0) %}}{{% for i in range(99) %}}{step}{{{{ n.x }}}}{{% endfor %}}"
            );
            let template = ChatTemplate::from_source(&source, Map::new()).expect("it compiles");
            let limits = RenderLimits::new(std::time::Duration::from_millis(500), MEMORY);
            let measured = on_thread(NO_PAUSE, |control| {
                let render = || {
                    drop(template.templates[DEFAULT].render(
                        &crate::json::Map::new(),
                        None,
                        &limits,
                        control,
                    ));
                };
                Ok(allocation_counter::measure(render))
            });
            let measured = measured.expect("it ends");
            // Texts grow by doubling, and a step holds what it reads beside what it makes.
            assert!(measured.bytes_max < 3 * MEMORY as u64, "{source}: {}", measured.bytes_max);
            assert_eq!(measured.bytes_current, 0, "{source}: something is left");
        }
    }

    #[test]
    fn a_template_file_wins_and_tools_have_their_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("writes");
        let load = || ChatTemplate::load(folder.path()).expect("loads");
        let mut input = TemplateInput { messages: vec![Message::user("")], ..TemplateInput::default() };
        assert!(load().is_none());
        write("chat_template.json", "{\"chat_template\": \"multimodal\"}");
        assert_eq!(load().expect("is there").render(&input).expect("renders"), "multimodal");
        let listed = json!({"bos_token": {"content": "<s>"}, "chat_template": [
            {"name": "default", "template": "{{ bos_token }}{{ tools is none }}{{ add_generation_prompt }}"},
            {"name": "tool_use", "template": "{{ bos_token }}{{ tools|length }}{{ messages[0].role }}"},
        ]});
        write("tokenizer_config.json", &listed.to_string());
        assert_eq!(load().expect("is there").render(&input).expect("renders"), "<s>TrueFalse");
        input.tools = Some(vec![json!({}).into()]);
        input.extra.insert("bos_token".into(), "!".into());
        assert_eq!(load().expect("is there").render(&input).expect("renders"), "!1user");
        write("chat_template.jinja", "file{{ bos_token }}\n");
        assert_eq!(load().expect("is there").render(&input).expect("renders"), "file!");
        write("tokenizer_config.json", "[]");
        let message = ChatTemplate::load(folder.path()).expect_err("is not an object").to_string();
        assert!(message.ends_with("tokenizer_config.json: is not a JSON object"));
    }
}
