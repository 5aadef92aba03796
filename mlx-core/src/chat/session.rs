//! A conversation: user messages become requests, and answers become messages. Invariant: it stores text, never tensors.

mod answer;
mod branch;
mod calls;

use std::ops::Range;
use std::path::Path;

use chat_format::text::NO_PAUSE;
use chat_format::{
    ChatTemplate, Message, Part, Role, TemplateInput, Thinking, ToolCall, ToolChoice, Tools, check_calls,
};
use mlx_files::write_privately;

use super::prompt::{ChatPrompt, ContextPolicy, chat_prompt, chat_prompt_within};
use super::start::{AnswerRequest, AnswerStart, AnswerTools};
use super::stream::ChatStream;
use super::turns::turns;
use crate::engine::{Engine, RequestOptions, TokenOutput};
use crate::error::{Error, Result};
pub use answer::Answer;

/// A conversation with a model.
pub struct ChatSession {
    engine: Engine,
    messages: Vec<Message>,
    options: RequestOptions,
    policy: ContextPolicy,
    thinking: Thinking,
    /// The tools that the model may call.
    tools: Tools,
    /// The indices of the messages dropped from the latest request.
    dropped: Range<usize>,
    /// The seed of the latest answer.
    seed: Option<u64>,
    /// True if the latest answer was interrupted before its first word.
    is_unanswered: bool,
}

/// The usage of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextFill {
    /// Tokens of the prompt of the next request.
    pub used: usize,
    /// The context length of the model.
    pub context: usize,
    /// Messages of the conversation.
    pub messages: usize,
    /// The number of messages that the next request would drop.
    pub dropped: usize,
}

impl ChatSession {
    /// Creates an empty conversation. A model without a chat template continues its text.
    pub fn new(engine: Engine, options: RequestOptions) -> Self {
        Self {
            engine,
            messages: Vec::new(),
            options,
            policy: ContextPolicy::default(),
            thinking: Thinking::default(),
            tools: Tools::default(),
            dropped: 0..0,
            seed: None,
            is_unanswered: false,
        }
    }

    /// Continues with another model, which must support the tools, if there are any. If it does not support the thinking mode, the mode
    /// becomes [`Thinking::Auto`].
    pub fn change_model(&mut self, engine: Engine) -> Result<()> {
        calls::check(&engine, &self.tools, &self.options)?;
        if self.thinking.variables(template(&engine)?, &engine.folder().format).is_err() {
            self.thinking = Thinking::Auto;
        }
        self.engine = engine;
        Ok(())
    }

    /// The engine of the model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The options of requests.
    pub fn options(&self) -> &RequestOptions {
        &self.options
    }

    /// Sets the options if the model supports them.
    pub fn set_options(&mut self, options: RequestOptions) -> Result<()> {
        self.engine.request(vec![0], &RequestOptions { is_message: true, ..options.clone() })?;
        calls::check(&self.engine, &self.tools, &options)?;
        self.options = options;
        Ok(())
    }

    /// The thinking mode.
    pub fn thinking(&self) -> Thinking {
        self.thinking
    }

    /// Sets the thinking mode if the template supports it.
    pub fn set_thinking(&mut self, thinking: Thinking) -> Result<()> {
        thinking.variables(template(&self.engine)?, &self.engine.folder().format)?;
        self.thinking = thinking;
        Ok(())
    }

    /// The tools that the model may call.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Sets the tools that the model may call. Fails with the reason if the template does not support tools, or a strict tool cannot be
    /// enforced.
    pub fn set_tools(&mut self, tools: Tools) -> Result<()> {
        calls::check(&self.engine, &tools, &self.options)?;
        self.tools = tools;
        Ok(())
    }

    /// The calls of the latest answer that have no result yet, in the order of the answer.
    pub fn open_calls(&self) -> Vec<ToolCall> {
        calls::open(&self.messages)
    }

    /// Adds the result of an open call. If the prompt cannot contain its pictures, because the model or its template reads only text in results or a
    /// picture is damaged, a line of text replaces them. Returns true if all of them are kept.
    pub fn add_result(&mut self, call: &ToolCall, parts: Vec<Part>) -> Result<bool> {
        if !self.open_calls().contains(call) {
            return Err(Error::request(
                "tool_call_id",
                format!("is {:?}, which is not the id of an open call", call.id),
            ));
        }
        let has_pictures = parts.iter().any(|part| part.image().is_some());
        let name = Some(call.name.clone());
        self.messages.push(Message {
            parts,
            tool_call_id: call.id.clone(),
            name,
            ..Message::new(Role::Tool, "")
        });
        let keeps = !has_pictures || self.counted_prompt().is_ok();
        if !keeps && let Some(result) = self.messages.last_mut() {
            calls::without_pictures(result);
        }
        Ok(keeps)
    }

    /// The seed of the latest answer. The same messages with this seed give the same answer.
    pub fn last_seed(&self) -> Option<u64> {
        self.seed
    }

    /// Sets the policy for a conversation that outgrows the context.
    #[must_use]
    pub fn with_policy(self, policy: ContextPolicy) -> Self {
        Self { policy, ..self }
    }

    /// The indices of the messages dropped from the latest request because they did not fit.
    pub fn dropped(&self) -> Range<usize> {
        self.dropped.clone()
    }

    /// Returns the usage of the context.
    pub fn fill(&self) -> Result<ContextFill> {
        let prompt = self.counted_prompt()?;
        Ok(ContextFill {
            used: prompt.tokens.len(),
            context: self.engine.spec().context_length,
            messages: self.messages.len(),
            dropped: prompt.dropped.len(),
        })
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Sets the system prompt, or removes it if `text` is empty. The other messages stay.
    pub fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| !message.role.is_instruction());
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
        }
    }

    /// Removes all messages but the system prompt.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role.is_instruction());
        self.is_unanswered = false;
    }

    /// Adds a user message and starts the answer. If that fails, nothing is added.
    pub fn ask(&mut self, text: &str) -> Result<Answer<'_>> {
        self.ask_about(Vec::<Part>::new(), text)
    }

    /// Like [`ask`](Self::ask), with pictures or audio before the text.
    pub fn ask_about(&mut self, parts: Vec<impl Into<Part>>, text: &str) -> Result<Answer<'_>> {
        let parts = parts.into_iter().map(Into::into).collect();
        // Replaces a message if its answer was interrupted before the first word.
        let unanswered = self.messages.pop_if(|last| self.is_unanswered && last.role == Role::User);
        self.messages.push(Message::user_about(parts, text));
        match self.start(&ToolChoice::Auto) {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.pop();
                self.messages.extend(unanswered);
                Err(error)
            }
        }
    }

    /// Starts another answer to the last user message. The new answer replaces the old one when it starts.
    pub fn retry(&mut self) -> Result<Answer<'_>> {
        let Some(last) = self.last_question_index() else {
            return Err(Error::request("retry", "there is no message to answer again"));
        };
        let dropped = self.messages.split_off(last + 1);
        match self.start(&ToolChoice::Auto) {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.extend(dropped);
                Err(error)
            }
        }
    }

    /// Removes the last user message and its answer; returns the message.
    pub fn undo(&mut self) -> Result<String> {
        let Some(last) = self.last_question_index() else {
            return Err(Error::request("undo", "there is no message to remove"));
        };
        let removed = self.messages.split_off(last).swap_remove(0);
        self.is_unanswered = false;
        Ok(removed.text())
    }

    /// The text of the last user message.
    pub fn last_question(&self) -> Option<String> {
        self.last_question_index().map(|last| self.messages[last].text())
    }

    /// Replaces the text of the last user message and starts the answer. If that fails, nothing changes.
    pub fn edit(&mut self, text: &str) -> Result<Answer<'_>> {
        let last = self.last_question_index().map_or(&[][..], |last| &self.messages[last].parts);
        let parts: Vec<Part> = last.iter().filter(|part| part.text().is_none()).cloned().collect();
        self.edit_about(parts, text)
    }

    /// Like [`edit`](Self::edit), and replaces the pictures and audio.
    pub fn edit_about(&mut self, parts: Vec<impl Into<Part>>, text: &str) -> Result<Answer<'_>> {
        let parts = parts.into_iter().map(Into::into).collect();
        if self.last_question_index().is_none() {
            return Err(Error::request("edit", "there is no message to change"));
        }
        let before = (self.messages.clone(), self.is_unanswered);
        self.undo()?;
        self.messages.push(Message::user_about(parts, text));
        match self.start(&ToolChoice::Auto) {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                (self.messages, self.is_unanswered) = before;
                Err(error)
            }
        }
    }

    /// Saves the conversation as JSON. An existing file is replaced only when the new one is complete. Only this user may read a new file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.messages)
            .map_err(|error| Error::file(path, error.to_string()))?;
        Ok(write_privately(path, (text + "\n").as_bytes())?)
    }

    /// Loads a conversation that [`ChatSession::save`] wrote. If that fails, nothing changes.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::io(path, source))?;
        self.messages = serde_json::from_str(&text)
            .map_err(|error| Error::file(path, format!("is not a saved conversation: {error}")))?;
        self.is_unanswered = false;
        Ok(())
    }

    fn last_question_index(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == Role::User)
    }

    fn start(&mut self, choice: &ToolChoice) -> Result<ChatStream> {
        self.start_after(Vec::new(), choice)
    }

    /// Starts an answer that begins with these tokens, with the seed of the latest answer.
    fn start_after(&mut self, begun: Vec<TokenOutput>, choice: &ToolChoice) -> Result<ChatStream> {
        check_calls(&self.messages).map_err(|mistake| {
            Error::request("messages", format!("[{}].{} {}", mistake.message, mistake.field, mistake.why))
        })?;
        let input = TemplateInput { add_generation_prompt: true, ..self.input(choice)? };
        let tools = AnswerTools { tools: &self.tools, choice, is_single: false };
        let request =
            AnswerRequest { input: &input, tools, policy: self.policy, options: self.options.clone() };
        let AnswerStart { prompt, mut options, parser, .. } = request.start(&self.engine, NO_PAUSE)?;
        options.begun = begun.len();
        if !begun.is_empty() {
            options.max_tokens = options.max_tokens.map(|most| most.saturating_sub(begun.len()));
            options.sampling.seed = options.sampling.seed.or(self.seed);
        }
        let ids = begun.iter().map(|token| token.id);
        let request = self.engine.request(prompt.tokens.into_iter().chain(ids).collect(), &options)?;
        let seed = request.seed();
        let generation = self.engine.submit(request)?;
        (self.dropped, self.seed, self.is_unanswered) = (prompt.dropped, Some(seed), false);
        Ok(ChatStream::new(generation, parser).after(begun))
    }

    /// Returns the prompt of the conversation. A latest turn that does not fit together with an answer does not count, because the next message
    /// drops it. With [`ContextPolicy::Stop`] the prompt is the whole conversation, even if it does not fit.
    fn counted_prompt(&self) -> Result<ChatPrompt> {
        if self.messages.is_empty() {
            return Ok(ChatPrompt::default());
        }
        let input = self.input(&ToolChoice::Auto)?;
        if self.policy != ContextPolicy::Stop {
            let tokens = self.options.max_tokens;
            match chat_prompt_within(&self.engine, &input, tokens, self.policy, NO_PAUSE) {
                Err(Error::Request { .. }) => {}
                Err(Error::ContextLength { .. }) => return self.system_prompt(input),
                other => return other,
            }
        }
        chat_prompt(&self.engine, &input, NO_PAUSE)
    }

    /// Returns the prompt of the messages before the first turn.
    fn system_prompt(&self, input: TemplateInput) -> Result<ChatPrompt> {
        let head = turns(&self.messages).0;
        let dropped = head..self.messages.len();
        if head == 0 {
            return Ok(ChatPrompt { dropped, ..ChatPrompt::default() });
        }
        let messages = self.messages[..head].to_vec();
        let prompt = chat_prompt(&self.engine, &TemplateInput { messages, ..input }, NO_PAUSE)?;
        Ok(ChatPrompt { dropped, ..prompt })
    }

    fn input(&self, choice: &ToolChoice) -> Result<TemplateInput> {
        Ok(TemplateInput {
            messages: self.messages.clone(),
            tools: self.tools.for_template(choice),
            extra: self.thinking.variables_within(
                self.options.think_budget,
                template(&self.engine)?,
                &self.engine.folder().format,
            )?,
            continue_text: true,
            ..TemplateInput::default()
        })
    }
}

fn template(engine: &Engine) -> Result<&ChatTemplate> {
    match &engine.folder().template {
        Some(template) => Ok(template),
        None => Ok(ChatTemplate::plain()?),
    }
}
