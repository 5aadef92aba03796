//! The start of an answer: its prompt, its constraint and its parser. Every front end starts chats here.

use chat_format::text::Pause;
use chat_format::{ConstraintSpec, Grammar, OutputParser, TemplateInput, ToolChoice, ToolSupport, Tools};

use super::prompt::{ChatPrompt, ContextPolicy, chat_prompt_within};
use crate::engine::{Engine, RequestOptions};
use crate::error::{Error, Result};

/// A request for the answer to a conversation.
#[derive(Debug)]
pub struct AnswerRequest<'a> {
    /// The conversation and the other inputs of the template.
    pub input: &'a TemplateInput,
    /// The tools that the model may call.
    pub tools: AnswerTools<'a>,
    /// The policy for a conversation that does not fit.
    pub policy: ContextPolicy,
    /// The options of the answer. Their constraint applies together with that of tool calls.
    pub options: RequestOptions,
}

/// The tools of an answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerTools<'a> {
    /// All tools.
    pub tools: &'a Tools,
    /// Selects the tools that may or must be called.
    pub choice: &'a ToolChoice,
    /// True to allow at most one call.
    pub is_single: bool,
}

/// An answer that is ready to be submitted to the engine.
#[derive(Debug)]
pub struct AnswerStart {
    /// The prompt.
    pub prompt: ChatPrompt,
    /// The options for [`Engine::request`].
    pub options: RequestOptions,
    /// True if the tools set the constraint of the options.
    pub tools_constrain: bool,
    /// The parser of the answer.
    pub parser: OutputParser,
}

impl AnswerRequest<'_> {
    /// Renders the prompt and creates the constraint and the parser for the model's format. Calls `pause` during the work.
    ///
    /// # Errors
    /// If the conversation does not fit, or the model does not support the tools or their constraint.
    pub fn start(self, engine: &Engine, pause: Pause) -> Result<AnswerStart> {
        let Self { input, tools, policy, mut options } = self;
        let mut prompt = chat_prompt_within(engine, input, options.max_tokens, policy, pause)?;
        let parser = tools.parser(engine, &prompt.text)?;
        let of_tools = tools.constraint(engine, options.constraint.as_ref())?;
        let tools_constrain = of_tools.is_some();
        options.constraint = of_tools.or(options.constraint);
        (options.images, options.audio) =
            (std::mem::take(&mut prompt.images), std::mem::take(&mut prompt.audio));
        options.n_keep = prompt.n_keep;
        (options.is_message, options.is_continued) = (true, input.continue_final_message);
        let parser = if input.continue_final_message { parser.continuing() } else { parser };
        Ok(AnswerStart { prompt, options, tools_constrain, parser })
    }
}

impl AnswerTools<'_> {
    /// Returns the parser of the answer to this prompt.
    pub(super) fn parser(&self, engine: &Engine, prompt: &str) -> Result<OutputParser> {
        let parser = OutputParser::new(&engine.folder().format, prompt);
        if !self.are_shown() {
            return Ok(parser);
        }
        Ok(support(engine)?.reading_calls(parser, self.tools.clone(), self.is_single, prompt))
    }

    /// Returns the constraint for the tools; `given` is the constraint of the answer itself.
    pub(super) fn constraint(
        &self,
        engine: &Engine,
        given: Option<&ConstraintSpec>,
    ) -> Result<Option<ConstraintSpec>> {
        if !self.are_shown() {
            return Ok(None);
        }
        let support = support(engine)?;
        let answer = match given {
            None => None,
            Some(ConstraintSpec { grammar: Grammar::JsonSchema(schema), .. }) => Some(schema),
            Some(_) => {
                let message = "cannot be combined with a constraint of the answer, except a JSON schema";
                return Err(Error::request("tools", message));
            }
        };
        let tokenizer = &engine.folder().tokenizer;
        Ok(support.constraint(self.tools, self.choice, self.is_single, answer, tokenizer)?)
    }

    fn are_shown(&self) -> bool {
        self.tools.are_shown(self.choice)
    }
}

fn support(engine: &Engine) -> Result<&ToolSupport> {
    let support = engine.folder().tools.as_ref();
    support.map_err(|why| Error::request("tools", format!("cannot be used: {why}")))
}
