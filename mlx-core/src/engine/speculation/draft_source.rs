//! Chooses the model that drafts: the draft model of the options, or a head of the checkpoint.

use std::path::Path;

use chat_format::text::Tokenizer;

use crate::engine::drafters::{ModelDrafter, Speculate};
use crate::engine::options::EngineOptions;
use crate::engine::run::memory_budget;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::{self, Loaded, Model, ModelSpec};

/// The models of an engine.
pub(in crate::engine) struct EngineModels {
    pub(in crate::engine) models: Vec<Box<dyn Model>>,
    /// The model that drafts, if any.
    pub(in crate::engine) draft: Option<(Box<dyn Model>, ModelDrafter)>,
}

/// Returns true if the model's head is to be loaded.
pub(in crate::engine) fn wants_head(options: &EngineOptions) -> bool {
    let is_meant = matches!(options.speculate, Speculate::Auto | Speculate::Mtp);
    is_meant && options.draft_model.is_none() && options.drafter.is_none()
}

/// Returns the spec of the draft model or draft head for the model in `folder`, if there is one. Reads only headers.
pub(crate) fn survey(folder: &Path, options: &EngineOptions) -> Result<Option<ModelSpec>> {
    match &options.draft_model {
        Some(name) => {
            model::inspect(&mlx_hub::resolve(name)?, options.weights()?).map(|(spec, _)| Some(spec))
        }
        None if wants_head(options) => model::inspect_mtp(folder, options.weights()?),
        None => Ok(None),
    }
}

/// Chooses the model that drafts.
///
/// # Errors
/// If the options name a model that cannot draft, or require a head that the checkpoint lacks. An optional head that cannot be loaded or
/// does not fit into memory is skipped.
pub(in crate::engine) fn choose(
    loaded: Loaded,
    options: &EngineOptions,
    folder: &ModelFolder,
) -> Result<EngineModels> {
    let Loaded { models, mtp, .. } = loaded;
    let draft = match (&options.draft_model, options.speculate) {
        (Some(_), Speculate::Mtp) => {
            return Err(Error::option(
                "draft_model",
                "names a model, but speculate is mtp (the head of the checkpoint drafts); use one of them",
            ));
        }
        (Some(_), _) => load(options, folder)?.map(|model| (model, ModelDrafter::Draft)),
        (None, Speculate::Draft) => {
            return Err(Error::option(
                "speculate",
                "is draft, but no draft model is given; give one, or use auto",
            ));
        }
        (None, Speculate::Mtp) => {
            let missing = "is mtp, but the checkpoint has no head for multi-token prediction (mtp.fc, or eh_proj after the last layer)";
            let head = mtp.unwrap_or_else(|| Err(Error::option("speculate", missing)))?;
            Some((head, ModelDrafter::Mtp))
        }
        (None, _) => head_if_it_fits(mtp, &models, options).map(|head| (head, ModelDrafter::Mtp)),
    };
    Ok(EngineModels { models, draft })
}

fn head_if_it_fits(
    mtp: Option<Result<Box<dyn Model>>>,
    models: &[Box<dyn Model>],
    options: &EngineOptions,
) -> Option<Box<dyn Model>> {
    let fits = |head: Box<dyn Model>| {
        memory_budget::of_models(models, Some(head.spec()), options)?;
        Ok(head)
    };
    match mtp?.and_then(fits) {
        Ok(head) => Some(head),
        Err(error) => {
            tracing::info!(%error, "the checkpoint's head for drafts is not used");
            None
        }
    }
}

/// Loads the draft model for the model in `folder`, if the options name one.
///
/// # Errors
/// If loading fails or the vocabularies differ.
fn load(options: &EngineOptions, folder: &ModelFolder) -> Result<Option<Box<dyn Model>>> {
    let Some(given) = &options.draft_model else { return Ok(None) };
    let path = mlx_hub::resolve(given)?;
    if let Some((id, theirs, ours)) = difference(&Tokenizer::load(&path)?, &folder.tokenizer) {
        let message = format!(
            "{} has other tokens than {}: {id} is {theirs:?} there and {ours:?} here; use a smaller model of the same family",
            given.display(),
            folder.name()
        );
        return Err(Error::option("draft_model", message));
    }
    model::load(&path, options.weights()?, &mut |_, _| {}).map(Some)
}

/// Returns the first token that differs between two vocabularies: its id and both names. Special tokens may differ, and one vocabulary may
/// be longer.
fn difference(one: &Tokenizer, other: &Tokenizer) -> Option<(u32, String, String)> {
    let ids = 0..one.vocab_size().min(other.vocab_size()) as u32;
    let plain = ids.filter(|&id| !one.is_special(id) && !other.is_special(id));
    let mut pairs = plain.filter_map(|id| Some((id, one.token(id)?, other.token(id)?)));
    pairs.find(|(_, one, other)| one != other)
}
