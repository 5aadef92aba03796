//! The API objects of models.

use std::time::{Duration, Instant};

use mlx_core::sampling::SamplingOptions;

use super::Served;
use super::entry::{Entry, ModelState};
use crate::protocol::openai::models::{ModelMeta, ModelObject, chat_sampling};
use crate::time::rfc3339;

impl Served {
    /// Returns the API object of a model or a profile. `idle` is the server's time without a request.
    pub(crate) fn object(&self, idle: Option<Duration>) -> ModelObject {
        let object = self.entry.object(idle);
        let Some(profile) = &self.profile else { return object };
        ModelObject {
            id: profile.name.clone(),
            display_name: profile.name.clone(),
            parent: Some(self.entry.base_name().to_owned()),
            profile: true,
            aliases: Vec::new(),
            // The model's own object has it.
            memory_bytes: None,
            chat_sampling: chat_sampling(&profile.sampling, &self.entry.sampling),
            ..object
        }
    }
}

impl Entry {
    /// Returns the model's API object. `idle` is the server's time without a request.
    fn object(&self, idle: Option<Duration>) -> ModelObject {
        let state = self.state();
        let expires_in =
            self.end(idle).map(|end| end.saturating_duration_since(Instant::now()).as_secs_f64());
        ModelObject {
            id: self.name.clone(),
            object: "model",
            created: self.created,
            owned_by: "local",
            loaded: matches!(state, ModelState::Loaded { .. }),
            state: match state {
                ModelState::Unloaded => "unloaded",
                ModelState::Loading => "loading",
                ModelState::Loaded { .. } => "loaded",
            },
            in_use: matches!(state, ModelState::Loaded { is_used: true, .. }),
            pinned: self.is_pinned(),
            memory_bytes: match state {
                ModelState::Loaded { .. } => Some(self.weight_bytes()),
                _ => None,
            },
            expires_in,
            aliases: self.aliases.clone(),
            parent: self.adapter.as_ref().map(|(_, name)| name.clone()),
            kind: "model",
            display_name: self.name.clone(),
            created_at: rfc3339(self.created),
            max_model_len: self.context(),
            max_input_tokens: self.context(),
            max_tokens: self.context(),
            capabilities: self.tasks(),
            profile: false,
            chat_sampling: chat_sampling(&SamplingOptions::default(), &self.sampling),
            meta: self.spec.as_ref().map(|spec| ModelMeta {
                n_ctx_train: spec.context_length,
                n_vocab: spec.vocab_size,
                n_params: spec.parameters,
                size: spec.file_bytes,
            }),
        }
    }

    fn context(&self) -> Option<usize> {
        self.spec.as_ref().map(|spec| spec.context_length)
    }
}
