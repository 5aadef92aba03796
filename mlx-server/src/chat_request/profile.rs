//! The settings of a profile in a request. Invariant: a value that the request gives wins.

use chat_format::Message;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::SamplingOptions;
use mlx_options::Profile;

use super::{ChatRequest, Conversation, GenerationSpec, GivenOptions, ThinkingRequest};

/// The name of a profile's reasoning in errors.
pub(super) const PROFILE_THINK: &str = "think of the profile";

impl ChatRequest {
    /// Adds the settings of a profile that the request does not give.
    pub(crate) fn add_profile(&mut self, profile: &Profile) {
        self.spec.add_profile(profile);
        self.conversation.add_profile(profile);
        if let Some(policy) = profile.context_policy.filter(|_| !self.gives_policy) {
            self.policy = policy;
        }
    }
}

impl GenerationSpec {
    /// Adds the options of a profile that the request does not give.
    pub(crate) fn add_profile(&mut self, profile: &Profile) {
        let (own, GivenOptions { max_tokens, stop, seed }) = (self.options.clone(), self.given);
        let options = profile.over(self.options.clone());
        let sampling = &options.sampling;
        let seed = if seed { own.sampling.seed } else { sampling.seed };
        self.options = RequestOptions {
            sampling: SamplingOptions { seed, ..sampling.clone() },
            max_tokens: if max_tokens { own.max_tokens } else { options.max_tokens },
            stop: if stop { own.stop } else { options.stop },
            // That of a conversation is in its thinking, and other texts have no thoughts.
            think_budget: own.think_budget,
            ..options
        };
    }
}

impl Conversation {
    /// Adds the system prompt and the reasoning of a profile. A system message at the start replaces the prompt, as in Ollama.
    pub(crate) fn add_profile(&mut self, profile: &Profile) {
        let has_system = self.messages.first().is_some_and(|message| message.role.is_instruction());
        if let Some(system) = profile.system.as_ref().filter(|_| !has_system) {
            self.messages.insert(0, Message::system(system.clone()));
        }
        let budget = if self.thinking.gives_budget { self.thinking.budget } else { profile.think_budget };
        self.thinking.budget = budget;
        if let Some(thinking) = profile.think.filter(|_| !self.thinking.is_given) {
            let field = Some(PROFILE_THINK);
            self.thinking = ThinkingRequest { thinking, field, budget, ..ThinkingRequest::default() };
        }
    }
}
