//! The tasks that a model is made for, read from its folder without its weights.

use std::path::Path;

use serde_json::Value;

use crate::config::Fields;
use crate::error::Result;
use crate::model::Architecture;
use crate::sentence_transformers::is_sentence_transformer;

/// The tasks that a model is made for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// It generates text.
    pub chats: bool,
    /// It computes embeddings. A model that chats can do so too, with less meaning.
    pub embeds: bool,
    /// It scores pairs of a query and a document. A model that chats may also rank by its answers.
    pub reranks: bool,
}

impl Abilities {
    /// Reads the config of the model in `folder`.
    pub fn of(folder: &Path) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let (_, architecture) = Architecture::read(&fields)?;
        let embeds = is_sentence_transformer(folder);
        Ok(match architecture {
            Architecture::Decoder(_) if ranks_by_answers(folder) => Self { reranks: true, ..Self::default() },
            Architecture::Decoder(_) => Self { chats: !embeds, embeds, reranks: false },
            Architecture::Encoder(config) => {
                // A head with several labels classifies texts, which no endpoint does.
                let reranks = config.head.as_ref().is_some_and(|head| head.labels == 1);
                Self { chats: false, embeds: config.head.is_none(), reranks }
            }
        })
    }
}

/// Returns true if modules.json names the module that scores a pair by the logits of two answers.
fn ranks_by_answers(folder: &Path) -> bool {
    let modules = std::fs::read(folder.join("modules.json")).unwrap_or_default();
    let modules: Vec<Value> = serde_json::from_slice(&modules).unwrap_or_default();
    modules.iter().any(|module| module["type"].as_str().is_some_and(|kind| kind.ends_with(".LogitScore")))
}
