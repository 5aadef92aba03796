//! The tokenizer of another model, for a model without one.

use std::path::Path;

use mlx_files::{Fields, object, tokenizer_lender};
use mlx_hub::{ModelName, Result, TOKENIZER, VOCABULARY};

use super::client::Client;
use super::listing::{HubFile, Listing};

/// A model on the Hub that lends its tokenizer.
pub(crate) struct Lender {
    pub(crate) client: Client,
    pub(crate) commit: String,
    /// The files to borrow.
    pub(crate) files: Vec<HubFile>,
}

impl Lender {
    /// Finds the tokenizer of a model without one. `None` if it has one, or if none is known for its config.
    pub(crate) fn find(client: &Client, listing: &Listing) -> Result<Option<Self>> {
        let has = |file: &str| listing.file(file).is_some();
        if has(TOKENIZER) || VOCABULARY.into_iter().all(has) || !has("config.json") {
            return Ok(None);
        }
        let path = Path::new("config.json");
        // An invalid config is reported after it was downloaded.
        let Ok(config) = object(path, client.file_text(&listing.commit, "config.json")?.as_bytes()) else {
            return Ok(None);
        };
        let Some(name) = tokenizer_lender(&Fields::of(path, config)) else { return Ok(None) };
        let client = client.of(&name.parse::<ModelName>()?);
        let Listing { commit, mut files, .. } = Listing::fetch(&client, None)?;
        files.retain(|file| file.path == TOKENIZER);
        Ok(Some(Self { client, commit, files }))
    }
}
