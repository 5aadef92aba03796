//! A conversation: messages become requests, and answers become messages. Invariant: it keeps text, never tensors.

use std::ops::Range;
use std::path::Path;

use super::format::Thinking;
use super::message::{Message, Role};
use super::parser::{ChatEvent, OutputParser};
use super::prompt::{ChatPrompt, ContextPolicy, chat_prompt, chat_prompt_within};
use super::stream::{ChatStream, StreamEvent};
use crate::atomic_write::write_atomically;
use crate::engine::{Canceller, Engine, Event, FinishReason, RequestOptions};
use crate::error::{Error, Result};
use crate::text::{ChatTemplate, NO_PAUSE, TemplateInput};

/// A conversation with a model.
pub struct ChatSession {
    engine: Engine,
    messages: Vec<Message>,
    options: RequestOptions,
    policy: ContextPolicy,
    thinking: Thinking,
    /// The messages that the model did not see in the latest request.
    dropped: Range<usize>,
    /// The seed of the latest answer.
    seed: Option<u64>,
    /// Whether the latest answer was broken off before its first word.
    is_unanswered: bool,
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
    pub fn new(engine: Engine, options: RequestOptions) -> Result<Self> {
        template(&engine)?;
        Ok(Self {
            engine,
            messages: Vec::new(),
            options,
            policy: ContextPolicy::default(),
            thinking: Thinking::default(),
            dropped: 0..0,
            seed: None,
            is_unanswered: false,
        })
    }

    /// Continues with another model, which must have a chat template. If that cannot turn thinking on and off as it was, it thinks
    /// by its own default.
    pub fn change_model(&mut self, engine: Engine) -> Result<()> {
        if self.thinking.variables(template(&engine)?).is_err() {
            self.thinking = Thinking::Auto;
        }
        self.engine = engine;
        Ok(())
    }

    /// The model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How answers are drawn and where they end.
    pub fn options(&self) -> &RequestOptions {
        &self.options
    }

    /// Sets the options, if the model accepts them.
    pub fn set_options(&mut self, options: RequestOptions) -> Result<()> {
        self.engine.request(vec![0], &options)?;
        self.options = options;
        Ok(())
    }

    /// Whether the model is asked to think.
    pub fn thinking(&self) -> Thinking {
        self.thinking
    }

    /// Asks the model to think or not to, if its template knows the difference.
    pub fn set_thinking(&mut self, thinking: Thinking) -> Result<()> {
        thinking.variables(template(&self.engine)?)?;
        self.thinking = thinking;
        Ok(())
    }

    /// The seed of the latest answer: with it and the same messages the answer is the same again.
    pub fn last_seed(&self) -> Option<u64> {
        self.seed
    }

    /// The same conversation under another policy.
    #[must_use]
    pub fn with_policy(self, policy: ContextPolicy) -> Self {
        Self { policy, ..self }
    }

    /// The messages that did not fit into the latest request, by index: the model did not see them.
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

    /// Adds a message of the person and starts the answer. If that fails, nothing was added.
    pub fn ask(&mut self, text: &str) -> Result<Answer<'_>> {
        // A message whose answer was broken off before its first word is replaced, not repeated.
        let unanswered = self.messages.pop_if(|last| self.is_unanswered && last.role == Role::User);
        self.messages.push(Message::user(text));
        match self.start() {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.pop();
                self.messages.extend(unanswered);
                Err(error)
            }
        }
    }

    /// Starts another answer to the last message of the person; the old answer is dropped when the new one starts.
    pub fn retry(&mut self) -> Result<Answer<'_>> {
        let Some(last) = self.last_question_index() else {
            return Err(Error::request("retry", "there is no message to answer again"));
        };
        let dropped = self.messages.split_off(last + 1);
        match self.start() {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.extend(dropped);
                Err(error)
            }
        }
    }

    /// Removes the last message of the person and its answer; gives the message.
    pub fn undo(&mut self) -> Result<String> {
        let Some(last) = self.last_question_index() else {
            return Err(Error::request("undo", "there is no message to remove"));
        };
        let removed = self.messages.split_off(last).swap_remove(0);
        self.is_unanswered = false;
        Ok(removed.text())
    }

    /// The last message of the person.
    pub fn last_question(&self) -> Option<String> {
        self.last_question_index().map(|last| self.messages[last].text())
    }

    /// Replaces the last message of the person and starts the answer. If that fails, nothing has changed.
    pub fn edit(&mut self, text: &str) -> Result<Answer<'_>> {
        let before = (self.messages.clone(), self.is_unanswered);
        self.undo()?;
        self.messages.push(Message::user(text));
        match self.start() {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                (self.messages, self.is_unanswered) = before;
                Err(error)
            }
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
        self.is_unanswered = false;
        Ok(())
    }

    fn last_question_index(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == Role::User)
    }

    fn start(&mut self) -> Result<ChatStream> {
        let ChatPrompt { text, tokens, dropped, slide } = self.prompt(true)?;
        let options = RequestOptions { slide, is_message: true, ..self.options.clone() };
        let request = self.engine.request(tokens, &options)?;
        let seed = request.seed();
        let generation = self.engine.submit(request)?;
        (self.dropped, self.seed, self.is_unanswered) = (dropped, Some(seed), false);
        Ok(ChatStream::new(generation, OutputParser::new(&self.engine.folder().format, &text)))
    }

    fn prompt(&self, answer: bool) -> Result<ChatPrompt> {
        if self.messages.is_empty() {
            return Ok(ChatPrompt { text: String::new(), tokens: Vec::new(), dropped: 0..0, slide: None });
        }
        let input = TemplateInput {
            messages: self.messages.clone(),
            add_generation_prompt: answer,
            extra: self.thinking.variables(template(&self.engine)?)?,
            ..TemplateInput::default()
        };
        // A conversation that is only counted may be too long.
        if !answer && self.policy == ContextPolicy::Stop {
            return chat_prompt(&self.engine, &input, NO_PAUSE);
        }
        chat_prompt_within(&self.engine, &input, self.options.max_tokens, self.policy, NO_PAUSE)
    }

    /// Adds an answer. An empty one counts, too, if the model ended it: the model had nothing to say, and the question stays. If it was
    /// broken off before its first word, the next message replaces the question.
    fn record(&mut self, answer: Message, is_whole: bool) {
        if is_whole || !answer.text().is_empty() {
            self.messages.push(answer);
        } else {
            self.is_unanswered = true;
        }
    }
}

/// An answer that is being written. When it ends or is dropped, what was read of it becomes a message of the session.
pub struct Answer<'a> {
    session: &'a mut ChatSession,
    stream: ChatStream,
    text: String,
    reasoning: String,
    is_whole: bool,
}

impl<'a> Answer<'a> {
    fn new(session: &'a mut ChatSession, stream: ChatStream) -> Self {
        Self { session, stream, text: String::new(), reasoning: String::new(), is_whole: false }
    }

    /// A way to end the answer from elsewhere.
    pub fn canceller(&self) -> Canceller {
        self.stream.canceller()
    }

    /// The messages that the model does not see, by index.
    pub fn dropped(&self) -> Range<usize> {
        self.session.dropped()
    }

    /// The text so far, without thoughts.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Iterator for Answer<'_> {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        let event = self.stream.next()?;
        match &event {
            StreamEvent::Chat(ChatEvent::Text(text)) => self.text.push_str(text),
            StreamEvent::Chat(ChatEvent::Reasoning(text)) => self.reasoning.push_str(text),
            StreamEvent::Engine(Event::Done(finished)) => {
                self.is_whole = !matches!(finished.reason, FinishReason::Cancelled | FinishReason::Error(_));
            }
            StreamEvent::Chat(_) | StreamEvent::Engine(_) => {}
        }
        Some(event)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let (text, reasoning) = (std::mem::take(&mut self.text), std::mem::take(&mut self.reasoning));
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        let message = Message { reasoning, ..Message::assistant(text) };
        self.session.record(message, self.is_whole);
    }
}

fn template(engine: &Engine) -> Result<&ChatTemplate> {
    let folder = engine.folder();
    folder.template.as_ref().ok_or_else(|| Error::NoChatTemplate { folder: folder.path.clone() })
}
