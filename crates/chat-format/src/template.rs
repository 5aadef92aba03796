//! The chat template of a model: renders messages to the text of a prompt, like transformers.

mod messages;
mod sources;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use chat_template::{RenderLimits, Template};

use crate::error::{Error, Result};
use jiff::civil::DateTime;
use serde_json::{Map, Value};

use crate::message::Message;
use crate::text::config::TokenizerConfig;
use crate::text::{NO_PAUSE, Pause};
use messages::MessageForm;
use sources::{DEFAULT, Source};

/// The name of the template for requests with tools, if a model has several templates.
const TOOL_USE: &str = "tool_use";

/// The chat template of a model: a Jinja program that renders messages to the text of a prompt.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// The templates by name.
    templates: Arc<BTreeMap<String, Template>>,
    /// Special tokens such as `bos_token`, which are variables in templates.
    special_tokens: Map<String, Value>,
    /// The message format that the template expects.
    form: MessageForm,
}

/// The input of a chat template.
#[derive(Debug, Clone, Default)]
pub struct TemplateInput {
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools that the model may call, in the format of `OpenAI`'s API.
    pub tools: Option<Vec<mlx_json::Value>>,
    /// Documents for models that cite them.
    pub documents: Option<Vec<mlx_json::Value>>,
    /// True if the prompt ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// True if a model without a chat template continues the conversation as plain text. Otherwise that is an error.
    pub continue_text: bool,
    /// True if the answer continues the last message. The prompt then ends inside that message.
    pub continue_final_message: bool,
    /// Additional variables, such as `enable_thinking`. They override special tokens of the same name.
    pub extra: mlx_json::Map,
    /// The time for `strftime_now`. `None` uses the system clock.
    pub now: Option<DateTime>,
}

/// The template for base models: the texts of the messages. Each user message begins a line.
const PLAIN: &str = "{% for message in messages %}{% if message.role == 'user' and not loop.first %}{{ '\\n' }}{% endif %}\
                     {{ message.content }}{% endfor %}";

impl ChatTemplate {
    /// Returns the template for models without one. It renders the conversation as plain text.
    pub fn plain() -> Result<&'static Self> {
        static PARSED: OnceLock<ChatTemplate> = OnceLock::new();
        if let Some(parsed) = PARSED.get() {
            return Ok(parsed);
        }
        let parsed = Self::from_source(PLAIN, Map::new())?;
        Ok(PARSED.get_or_init(|| parsed))
    }

    /// Loads the chat template of a model folder. Returns `None` if it has none.
    ///
    /// As in transformers, `chat_template.jinja` and `additional_chat_templates/*.jinja` take precedence over
    /// `chat_template` in `tokenizer_config.json`, which is a string or a list of names and templates.
    /// `chat_template.json`, which transformers reads for multimodal models, comes last.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let config = TokenizerConfig::load(folder)?;
        let sources = sources::of_folder(folder, config.chat_template.as_ref())?;
        if sources.is_empty() { Ok(None) } else { Self::new(sources, config.special_tokens).map(Some) }
    }

    /// Compiles a template. `special_tokens` are variables by name, such as `bos_token`.
    pub fn from_source(source: &str, special_tokens: Map<String, Value>) -> Result<Self> {
        let source = Source { name: DEFAULT.to_owned(), file: String::new(), text: source.to_owned() };
        Self::new(vec![source], special_tokens)
    }

    fn new(sources: Vec<Source>, special_tokens: Map<String, Value>) -> Result<Self> {
        let mut templates = BTreeMap::new();
        for Source { name, file, text } in sources {
            templates.insert(name, Template::parse(&file, &text)?);
        }
        let templates = Arc::new(templates);
        let form = MessageForm::of(|text| is_mentioned(&templates, text));
        Ok(Self { templates, special_tokens, form })
    }

    /// Returns true if a template of the model contains this text, such as a thought tag.
    pub fn mentions(&self, text: &str) -> bool {
        is_mentioned(&self.templates, text)
    }

    /// Renders the prompt. A template's `raise_exception` becomes an [`Error::Template`] with its message.
    pub fn render(&self, input: &TemplateInput) -> Result<String> {
        self.render_within(input, &RenderLimits::default(), NO_PAUSE)
    }

    /// Renders the prompt within limits, which earlier renderings may have used in part. A template that exceeds them
    /// gives an [`Error::Template`]. An error of `pause` stops the rendering within milliseconds.
    pub fn render_within(
        &self,
        input: &TemplateInput,
        limits: &RenderLimits,
        pause: Pause,
    ) -> Result<String> {
        self.try_render(input, limits, pause)?
    }

    /// Like [`Self::render_within`], but separates two kinds of errors. The inner error is the template's own: the
    /// template may still render other messages. The outer error ends all work on the prompt.
    pub fn try_render(
        &self,
        input: &TemplateInput,
        limits: &RenderLimits,
        pause: Pause,
    ) -> Result<Result<String>> {
        let name =
            if input.tools.is_some() && self.templates.contains_key(TOOL_USE) { TOOL_USE } else { DEFAULT };
        let template = self.templates.get(name).ok_or_else(|| {
            Error::Template(format!("the model has several chat templates, but none is named \"{DEFAULT}\""))
        })?;
        let render = |form| {
            let variables = self.variables(input, form);
            template.render(&variables, input.now, limits, pause)
        };
        match self.in_any_form(input, render)? {
            Ok(text) => Ok(Ok(text)),
            Err(error) if error.depends_on_input() => Ok(Err(error.into())),
            Err(error) => Err(error.into()),
        }
    }

    /// Renders in the message format that the template seems to expect. If that fails and there are tool calls, other
    /// formats are tried.
    fn in_any_form(
        &self,
        input: &TemplateInput,
        render: impl Fn(MessageForm) -> Result<Rendered>,
    ) -> Result<Rendered> {
        let rendered = render(self.form)?;
        let Err(error) = rendered else { return Ok(rendered) };
        let has_calls = input.messages.iter().any(|message| !message.tool_calls.is_empty());
        if !has_calls || !error.depends_on_input() {
            return Ok(Err(error));
        }
        for form in self.form.others() {
            match render(form)? {
                Err(other) if other.depends_on_input() => {}
                ended => return Ok(ended),
            }
        }
        Ok(Err(error))
    }

    /// Returns the variables of a chat, with its messages in this format.
    fn variables(&self, input: &TemplateInput, form: MessageForm) -> mlx_json::Map {
        let list = |values: &Option<Vec<mlx_json::Value>>| {
            values.clone().map_or(mlx_json::Value::Null, mlx_json::Value::Array)
        };
        let mut variables: mlx_json::Map =
            self.special_tokens.iter().map(|(name, it)| (name.clone(), it.clone().into())).collect();
        variables.extend(input.extra.clone());
        variables
            .insert("messages".into(), input.messages.iter().map(|message| form.write(message)).collect());
        variables.insert("tools".into(), list(&input.tools));
        variables.insert("documents".into(), list(&input.documents));
        variables.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        variables
    }
}

/// A rendered prompt, or the template's own error.
type Rendered = Result<String, chat_template::Error>;

fn is_mentioned(templates: &BTreeMap<String, Template>, text: &str) -> bool {
    templates.values().any(|template| template.source().contains(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
