//! The target of a compiled constraint: a model, and the end of a prompt.

use chat_format::{Preamble, Scope, Thoughts};

use crate::folder::ModelFolder;

/// The number of tokens at the end of a prompt that are searched for an open thought.
const PROMPT_END: usize = 64;

/// A model, and the text that it may write before or around the constrained text.
pub(in crate::engine) struct Target<'a> {
    pub(super) folder: &'a ModelFolder,
    /// The length of a row of logits.
    pub(super) width: usize,
    pub(super) preamble: Option<Preamble>,
    pub(super) thoughts: Option<Thoughts>,
    scope: &'a Scope,
}

impl<'a> Target<'a> {
    /// Creates the target for a constraint of this scope on a model with `width` logits per row.
    pub(in crate::engine) fn new(scope: &'a Scope, folder: &'a ModelFolder, width: usize) -> Self {
        Self { folder, width, preamble: None, thoughts: None, scope }
    }

    /// Adds the preamble or thoughts that may follow this prompt. Only messages have thoughts.
    pub(in crate::engine) fn answering(self, prompt: &[u32], is_message: bool) -> Self {
        if !is_message {
            return self;
        }
        let format = &self.folder.format;
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let end = self.folder.tokenizer.decode(end, false);
        match self.scope {
            Scope::Answer => Self { preamble: format.preamble(&end, true), ..self },
            Scope::AfterThoughts => Self { preamble: format.preamble(&end, false), ..self },
            Scope::Triggered(_) => Self { thoughts: format.thoughts(&end), ..self },
        }
    }
}
