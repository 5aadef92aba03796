//! Reads the sentence-transformers module that computes a score from the logits of two tokens.

use std::fmt::Display;
use std::path::Path;

use serde::Deserialize;

use crate::error::ApiError;

/// The sentence-transformers module that computes a score from the logits of two tokens.
#[derive(Debug, Deserialize)]
pub(super) struct LogitScore {
    pub(super) true_token_id: u32,
    pub(super) false_token_id: Option<u32>,
}

impl LogitScore {
    /// Reads the module that a folder's `modules.json` names. `None` if it names no such module.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, ApiError> {
        #[derive(Deserialize)]
        struct Module {
            path: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let failed = |file: &str, reason: &dyn Display| {
            ApiError::unsupported("model", format!("has a {file} that cannot be used: {reason}"))
        };
        let Ok(modules) = std::fs::read(folder.join("modules.json")) else { return Ok(None) };
        let modules: Vec<Module> =
            serde_json::from_slice(&modules).map_err(|error| failed("modules.json", &error))?;
        let Some(head) = modules.iter().find(|module| module.kind.ends_with(".LogitScore")) else {
            return Ok(None);
        };
        // The file may be untrusted: the module's folder must be inside the model's folder.
        if Path::new(&head.path).file_name() != Some(head.path.as_ref()) {
            return Err(failed("modules.json", &"the path of LogitScore must be a folder in the model's"));
        }
        let file = format!("{}/config.json", head.path);
        let bytes = std::fs::read(folder.join(&file)).map_err(|error| failed(&file, &error))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(&file, &error))
    }
}
