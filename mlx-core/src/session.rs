//! A conversation: messages become requests. Invariant: it keeps text, never tensors.

mod policy;
mod turns;

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use policy::{ChatPrompt, ContextPolicy, chat_prompt_within, room_for_answer};
pub use turns::{Counted, Fitted, fit, turns};

use crate::atomic_write::write_atomically;
use crate::engine::{EngineHandle, Generation, RequestOptions};
use crate::error::{Error, Result};
use crate::text::TemplateInput;

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What was said.
    pub content: String,
}

/// A conversation with a model.
pub struct ChatSession {
    engine: EngineHandle,
    messages: Vec<Message>,
    options: RequestOptions,
    policy: ContextPolicy,
    /// The messages that the model did not see when it was last asked.
    dropped: Range<usize>,
    /// The seed of the answer that was last begun.
    seed: Option<u64>,
    /// Whether the last answer was broken off before its first word.
    unanswered: bool,
}

/// How full the context is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextFill {
    /// Tokens of what the model would see of the conversation now.
    pub used: usize,
    /// Tokens that the model's context holds.
    pub context: usize,
    /// Messages of the conversation.
    pub messages: usize,
    /// Of these, the ones that the model would not see.
    pub dropped: usize,
}

impl ChatSession {
    /// An empty conversation. The model must have a chat template.
    pub fn new(engine: EngineHandle, options: RequestOptions) -> Result<Self> {
        expect_template(&engine)?;
        let (messages, policy) = (Vec::new(), ContextPolicy::default());
        Ok(Self { engine, messages, options, policy, dropped: 0..0, seed: None, unanswered: false })
    }

    /// Goes on with another model, which must have a chat template.
    pub fn change_model(&mut self, engine: EngineHandle) -> Result<()> {
        expect_template(&engine)?;
        self.engine = engine;
        Ok(())
    }

    /// The model.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// How answers are drawn and where they end.
    pub fn options(&self) -> &RequestOptions {
        &self.options
    }

    /// Sets that, if the model takes it.
    pub fn set_options(&mut self, options: RequestOptions) -> Result<()> {
        self.engine.request(vec![0], &options)?;
        self.options = options;
        Ok(())
    }

    /// The seed of the answer that was last begun: with it and the same messages the answer is the same again.
    pub fn last_seed(&self) -> Option<u64> {
        self.seed
    }

    /// The same conversation under another policy.
    #[must_use]
    pub fn with_policy(self, policy: ContextPolicy) -> Self {
        Self { policy, ..self }
    }

    /// The messages that did not fit when the model was last asked, by their places: it did not see them.
    pub fn dropped(&self) -> Range<usize> {
        self.dropped.clone()
    }

    /// How full the context is.
    pub fn fill(&self) -> Result<ContextFill> {
        let prompt = self.prompt(false)?;
        Ok(ContextFill {
            used: prompt.tokens.len(),
            context: self.engine.spec().context_length,
            messages: self.messages.len(),
            dropped: prompt.dropped.len(),
        })
    }

    /// What has been said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Sets the system prompt, or takes it away when empty. What has been said stays.
    pub fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| message.role != Role::System);
        if !text.is_empty() {
            self.messages.insert(0, Message { role: Role::System, content: text.to_owned() });
        }
    }

    /// Forgets everything but the system prompt.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.unanswered = false;
    }

    /// Adds a message of the person and starts the answer. If that fails, nothing was added.
    pub fn ask(&mut self, text: &str) -> Result<Generation> {
        // A message whose answer was broken off before its first word is said anew, not twice.
        let unanswered = self.messages.pop_if(|last| self.unanswered && last.role == Role::User);
        self.messages.push(Message { role: Role::User, content: text.to_owned() });
        self.start().inspect_err(|_| {
            self.messages.pop();
            self.messages.extend(unanswered);
        })
    }

    /// Starts another answer to the last message of the person; the old answer is dropped once it has started.
    pub fn retry(&mut self) -> Result<Generation> {
        let Some(last) = self.messages.iter().rposition(|message| message.role == Role::User) else {
            return Err(Error::request("retry", "there is no message to answer again"));
        };
        let dropped = self.messages.split_off(last + 1);
        self.start().inspect_err(|_| self.messages.extend(dropped))
    }

    /// Takes back the last message of the person and its answer; gives the message.
    pub fn undo(&mut self) -> Result<String> {
        let Some(last) = self.messages.iter().rposition(|message| message.role == Role::User) else {
            return Err(Error::request("undo", "there is no message to take back"));
        };
        let taken = self.messages.split_off(last).swap_remove(0);
        self.unanswered = false;
        Ok(taken.content)
    }

    /// The last message of the person.
    pub fn last_question(&self) -> Option<&str> {
        let last = self.messages.iter().rfind(|message| message.role == Role::User)?;
        Some(&last.content)
    }

    /// Says the last message of the person in other words and starts the answer. If that fails, nothing has changed.
    pub fn edit(&mut self, text: &str) -> Result<Generation> {
        let before = (self.messages.clone(), self.unanswered);
        self.undo()?;
        self.messages.push(Message { role: Role::User, content: text.to_owned() });
        let started = self.start();
        if started.is_err() {
            (self.messages, self.unanswered) = before;
        }
        started
    }

    /// Adds the answer that a [`Generation`] gave. An empty one counts, too: the model had nothing to say, and the question stays.
    pub fn answered(&mut self, text: String) {
        self.messages.push(Message { role: Role::Assistant, content: text });
    }

    /// Adds what came of an answer that was broken off. If nothing came, the next message takes the place of the last one.
    pub fn broken_off(&mut self, text: String) {
        if text.is_empty() {
            self.unanswered = true;
        } else {
            self.answered(text);
        }
    }

    /// Writes the conversation to a file, as JSON; what was there before stays until all of it is written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.messages)
            .map_err(|error| Error::file(path, error.to_string()))?;
        write_atomically(path, (text + "\n").as_bytes())
    }

    /// Replaces the conversation by one that [`ChatSession::save`] wrote. If that fails, nothing has changed.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::io(path, source))?;
        self.messages = serde_json::from_str(&text)
            .map_err(|error| Error::file(path, format!("is not a saved conversation: {error}")))?;
        self.unanswered = false;
        Ok(())
    }

    fn start(&mut self) -> Result<Generation> {
        let ChatPrompt { tokens, dropped, slide } = self.prompt(true)?;
        let options = RequestOptions { slide, ..self.options.clone() };
        let request = self.engine.request(tokens, &options)?;
        let seed = request.seed();
        let generation = self.engine.submit(request)?;
        (self.dropped, self.seed, self.unanswered) = (dropped, Some(seed), false);
        Ok(generation)
    }

    fn prompt(&self, answer: bool) -> Result<ChatPrompt> {
        if self.messages.is_empty() {
            return Ok(ChatPrompt { tokens: Vec::new(), dropped: 0..0, slide: None });
        }
        let input = TemplateInput { add_generation_prompt: answer, ..input(&self.messages)? };
        chat_prompt_within(&self.engine, &input, self.options.max_tokens, self.policy)
    }
}

fn expect_template(engine: &EngineHandle) -> Result<()> {
    if engine.folder().template.is_some() {
        return Ok(());
    }
    Err(Error::NoChatTemplate { folder: engine.folder().path.clone() })
}

/// The tokens of a conversation that waits for an answer, whether they fit or not.
pub fn chat_prompt(engine: &EngineHandle, messages: &[Message]) -> Result<Vec<u32>> {
    policy::render(engine, &input(messages)?)
}

fn input(messages: &[Message]) -> Result<TemplateInput> {
    let messages = messages.iter().map(serde_json::to_value).collect::<Result<_, _>>();
    Ok(TemplateInput {
        messages: messages.map_err(|error| Error::Template(error.to_string()))?,
        add_generation_prompt: true,
        ..TemplateInput::default()
    })
}
