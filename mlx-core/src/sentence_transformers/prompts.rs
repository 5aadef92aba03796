//! `config_sentence_transformers.json`: the prompts that precede texts.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Fields;
use crate::error::{Error, Result};

const FILE: &str = "config_sentence_transformers.json";

/// The names of the prompt for queries, in order of preference.
const FOR_QUERIES: [&str; 3] = ["query", "search_query", "retrieval.query"];

/// The names of the prompt for documents, in order of preference.
const FOR_DOCUMENTS: [&str; 5] = ["document", "passage", "corpus", "search_document", "retrieval.passage"];

/// The prompt that a request selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PromptChoice {
    /// The model's default, if it has one.
    #[default]
    Default,
    /// The prompt with this name, which must exist.
    Named(String),
    /// This text.
    Text(String),
    /// The prompt for queries, or the default.
    Query,
    /// The prompt for documents, or the default.
    Document,
}

/// The prompts of a model, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    texts: BTreeMap<String, String>,
    /// The name of the default prompt.
    default: Option<String>,
}

impl Prompts {
    /// Reads the file of a model of this type in `folder`, if it has one.
    pub(super) fn read(folder: &Path, expected: &str) -> Result<Self> {
        let Some(fields) = Fields::read_optional(&folder.join(FILE))? else { return Ok(Self::default()) };
        if let Some(other) = fields.optional_text("model_type")?.filter(|kind| *kind != expected) {
            let message = format!("is {other:?}; supported is {expected}");
            return Err(fields.error("model_type", message));
        }
        let mut texts = BTreeMap::new();
        if let Some(section) = fields.section("prompts")? {
            for name in section.keys() {
                let text = section.optional_text(name)?.unwrap_or_default();
                texts.insert(name.to_owned(), text.to_owned());
            }
        }
        let default = fields.optional_text("default_prompt_name")?.map(str::to_owned);
        if let Some(name) = default.as_ref().filter(|name| !texts.contains_key(*name)) {
            return Err(fields.error("default_prompt_name", format!("is {name:?}, which is not in prompts")));
        }
        Ok(Self { texts, default })
    }

    /// Returns the text of the selected prompt; empty if there is none.
    pub fn text<'a>(&'a self, choice: &'a PromptChoice) -> Result<&'a str> {
        let prompt = |name: &str| self.texts.get(name).map(String::as_str);
        let default = || self.default.as_deref().and_then(prompt).unwrap_or_default();
        Ok(match choice {
            PromptChoice::Default => default(),
            PromptChoice::Text(text) => text,
            PromptChoice::Query => FOR_QUERIES.into_iter().find_map(prompt).unwrap_or_else(default),
            PromptChoice::Document => FOR_DOCUMENTS.into_iter().find_map(prompt).unwrap_or_else(default),
            PromptChoice::Named(name) => prompt(name).ok_or_else(|| {
                let known: Vec<&str> = self.texts.keys().map(String::as_str).collect();
                let has = if known.is_empty() { "no prompts".to_owned() } else { known.join(", ") };
                Error::request("prompt_name", format!("is {name:?}; the model has {has}"))
            })?,
        })
    }
}
