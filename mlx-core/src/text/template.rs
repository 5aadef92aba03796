//! Chat templates: messages to the text of a prompt, as transformers renders them.

mod budget;
mod clock;
mod edit;
mod environment;
mod filters;
mod json;
mod messages;
mod methods;
mod numbers;
mod operators;
mod python;
mod source;
mod token;

use std::path::Path;

use jiff::civil::DateTime;
use minijinja::Environment;
use serde_json::{Map, Value};

use super::config::{TokenizerConfig, read_optional};
use super::guarded::guarded;
use crate::chat::Message;
use crate::config::Fields;
use crate::error::{Error, Result};
use messages::MessageForm;

/// The template that is used unless another one fits better.
const DEFAULT: &str = "default";
/// The template for requests with tools, in folders that have one.
const TOOL_USE: &str = "tool_use";

/// The chat template of a model: a Jinja program that turns messages into the text of a prompt.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and so on, which templates see as variables.
    special_tokens: Map<String, Value>,
    /// How it looks at messages.
    form: MessageForm,
}

/// What a chat template is rendered from.
#[derive(Debug, Clone, Default)]
pub struct TemplateInput {
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools that the model may call, in the form of `OpenAI`'s API.
    pub tools: Option<Vec<Value>>,
    /// Documents for models that quote them.
    pub documents: Option<Vec<Value>>,
    /// Whether to end with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The template's own switches, such as `enable_thinking`. They win over special tokens of the same name.
    pub extra: Map<String, Value>,
    /// The time that `strftime_now` gives; the system's clock if there is none.
    pub now: Option<DateTime>,
}

impl ChatTemplate {
    /// Loads the chat template of a model folder; `None` if it has none.
    ///
    /// As in transformers, `chat_template.jinja` and `additional_chat_templates/*.jinja` win over
    /// `chat_template` in `tokenizer_config.json`, which is a string or a list of names and templates.
    /// `chat_template.json`, which transformers reads for multimodal models, comes last.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let config = TokenizerConfig::load(folder)?;
        let mut sources = template_files(folder)?;
        if sources.is_empty() {
            let path = folder.join("tokenizer_config.json");
            sources = config.chat_template.as_ref().map_or(Ok(Vec::new()), |value| listed(value, &path))?;
        }
        if sources.is_empty() {
            let path = folder.join("chat_template.json");
            let fields = Fields::read_optional(&path)?;
            let template = fields.as_ref().and_then(|fields| fields.get("chat_template"));
            sources = template.map_or(Ok(Vec::new()), |value| listed(value, &path))?;
        }
        if sources.is_empty() { Ok(None) } else { Self::new(sources, config.special_tokens).map(Some) }
    }

    /// Compiles one template. `special_tokens` are variables by name, such as `bos_token`.
    pub fn from_source(source: &str, special_tokens: Map<String, Value>) -> Result<Self> {
        Self::new(vec![(DEFAULT.to_string(), source.to_string())], special_tokens)
    }

    fn new(sources: Vec<(String, String)>, special_tokens: Map<String, Value>) -> Result<Self> {
        let sources: Vec<(String, String)> = sources
            .into_iter()
            .map(|(name, text)| Ok((name, source::prepare(&text)?)))
            .collect::<Result<_>>()?;
        let compile = || {
            let mut environment = environment::new();
            for (name, text) in sources {
                environment.add_template_owned(name, text).map_err(|error| environment::explain(&error))?;
            }
            Ok(environment)
        };
        // The parser recurses as deeply as a template says, which the caller's stack may not hold.
        let failed = || Err(Error::Template("it cannot be compiled".into()));
        let environment = guarded(compile).unwrap_or_else(failed)?;
        let form = MessageForm::of(|text| is_mentioned(&environment, text));
        Ok(Self { environment, special_tokens, form })
    }

    /// Whether a template of the model holds this text, such as a tag that marks thoughts.
    pub fn mentions(&self, text: &str) -> bool {
        is_mentioned(&self.environment, text)
    }

    /// Renders the prompt. A template's `raise_exception` is an [`Error::Template`] with its message.
    pub fn render(&self, input: &TemplateInput) -> Result<String> {
        let rendered = self.render_form(input, self.form);
        if rendered.is_ok() || !input.messages.iter().any(|message| !message.tool_calls.is_empty()) {
            return rendered;
        }
        let mut others = self.form.others().into_iter();
        others.find_map(|form| self.render_form(input, form).ok()).map_or(rendered, Ok)
    }

    fn render_form(&self, input: &TemplateInput, form: MessageForm) -> Result<String> {
        let list = |values: &Option<Vec<Value>>| values.clone().map_or(Value::Null, Value::Array);
        let mut variables = self.special_tokens.clone();
        variables.extend(input.extra.clone());
        variables
            .insert("messages".into(), input.messages.iter().map(|message| form.write(message)).collect());
        variables.insert("tools".into(), list(&input.tools));
        variables.insert("documents".into(), list(&input.documents));
        variables.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        let name = if input.tools.is_some() { TOOL_USE } else { DEFAULT };
        self.render_variables(name, &variables, input.now)
    }

    /// Renders the template of that name, or the default one, from exactly these variables.
    fn render_variables(
        &self,
        name: &str,
        variables: &Map<String, Value>,
        now: Option<DateTime>,
    ) -> Result<String> {
        let template =
            self.environment.get_template(name).or_else(|_| self.environment.get_template(DEFAULT));
        let template = template.map_err(|_| {
            Error::Template(format!("the model has several chat templates, but none is called \"{DEFAULT}\""))
        })?;
        environment::render(&template, variables, now).map_err(|error| environment::explain(&error))
    }
}

fn is_mentioned(environment: &Environment<'_>, text: &str) -> bool {
    environment.templates().any(|(_, template)| template.source().contains(text))
}

/// `chat_template.jinja` and the templates beside it, with their names.
fn template_files(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut sources: Vec<_> = read_optional(&folder.join("chat_template.jinja"))?
        .map(|text| (DEFAULT.to_string(), text))
        .into_iter()
        .collect();
    let folder = folder.join("additional_chat_templates");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(sources),
        Err(error) => return Err(Error::io(folder, error)),
    };
    for entry in entries {
        let path = entry.map_err(|error| Error::io(&folder, error))?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|extension| extension == "jinja") {
            sources.extend(read_optional(&path)?.map(|text| (name.to_string(), text)));
        }
    }
    Ok(sources)
}

/// The templates of a `chat_template` key: one string, a list of `{name, template}`, or an object of them.
fn listed(value: &Value, path: &Path) -> Result<Vec<(String, String)>> {
    let wrong = || Error::file(path, "chat_template is neither a string nor a list of {name, template}");
    let text = |value: &Value| value.as_str().map(str::to_string).ok_or_else(wrong);
    match value {
        Value::String(text) => Ok(vec![(DEFAULT.to_string(), text.clone())]),
        Value::Array(entries) => {
            entries.iter().map(|entry| Ok((text(&entry["name"])?, text(&entry["template"])?))).collect()
        }
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| Ok((name.clone(), text(value)?))).collect()
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, variables: &Value) -> Result<String> {
        let variables = variables.as_object().cloned().unwrap_or_default();
        let now = jiff::civil::date(2024, 7, 26).at(0, 0, 0, 0);
        ChatTemplate::from_source(source, Map::new())?.render_variables(DEFAULT, &variables, Some(now))
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
            ("{{ dict([('a', 1)], b=+2) }}{{ nothing }}{{ 'a' ~ none }}", "{'a': 1, 'b': 2}aNone"),
        ] {
            assert_eq!(render(source, &variables).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        for (source, expected) in [
            ("\n{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
            ("\n{% for x in none %}{% endfor %}", "line 2: invalid operation: none is not iterable"),
            ("\n{{ a.b }}", "line 2: undefined value: `a` is undefined"),
            ("{{ 'a' + [] }}", "line 1: invalid operation: tried to use + operator"),
            ("{{ [].append(1) }}", "append is not allowed"),
            ("{% if %}", "line 1: syntax error"),
            ("{{ nothing|tojson }}", "cannot be written as JSON"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit"),
        ] {
            let message = render(source, &Value::Null).expect_err(source).to_string();
            assert!(message.contains(expected), "{source}: {message}");
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
        input.tools = Some(vec![json!({})]);
        input.extra = json!({"bos_token": "!"}).as_object().cloned().unwrap_or_default();
        assert_eq!(load().expect("is there").render(&input).expect("renders"), "!1user");
        write("chat_template.jinja", "file{{ bos_token }}\n");
        assert_eq!(load().expect("is there").render(&input).expect("renders"), "file!");
        write("tokenizer_config.json", "[]");
        let message = ChatTemplate::load(folder.path()).expect_err("is not an object").to_string();
        assert!(message.ends_with("tokenizer_config.json: is not a JSON object"));
    }
}
