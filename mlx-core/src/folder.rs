//! A model folder without its weights: tokenizer, chat template, defaults. Invariant: it uses no device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use chat_format::text::Tokenizer;
use chat_format::{CallFormat, ChatTemplate, OutputFormat, ToolSupport};
use mlx_files::Warnings;

use crate::config::Fields;
use crate::error::{Error, Result};

use crate::processor::{NoImages, Processor};
use crate::sampling::{SamplingOptions, TokenTable};
use crate::sentence_transformers::TextEmbedding;

/// The tokenizer, chat template and defaults of a Hugging Face folder.
pub struct ModelFolder {
    /// The folder.
    pub path: PathBuf,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Turns messages into a prompt; a base model has none.
    pub template: Option<ChatTemplate>,
    /// How the model marks thoughts in what it writes.
    pub format: OutputFormat,
    /// How the model calls tools, or why it cannot.
    pub tools: Result<ToolSupport, String>,
    /// How it takes pictures, or why it cannot be given any.
    pub images: Result<Processor, NoImages>,
    /// The sampling defaults of `generation_config.json`.
    pub sampling: SamplingOptions,
    /// The tokens that end a text.
    pub end_tokens: Vec<u32>,
    /// The texts of tokens, for the sampler.
    pub token_table: TokenTable,
    /// The steps from a text to its vector, or the reason why there are none.
    embedding: Result<TextEmbedding, String>,
    /// Faults of optional files.
    pub warnings: Warnings,
}

impl ModelFolder {
    /// Reads everything but the weights.
    pub fn open(path: &Path) -> Result<Self> {
        expect_folder(path)?;
        let config = Fields::read(&path.join("config.json"))?;
        let mut warnings = Warnings::default();
        let generation = Fields::read_optional(&path.join("generation_config.json"));
        let generation = warnings.or_default(generation, "the file is not used");
        let tokenizer = Tokenizer::load(path)?;
        warnings.extend(tokenizer.warnings());
        let sampling = generation.as_ref().map(|fields| SamplingOptions::read(fields, &mut warnings));
        let ends = generation.as_ref().map_or_else(|| Ok(Vec::new()), |it| it.token_ids("eos_token_id"));
        let ends = warnings.or_default(ends, "its end tokens are not used");
        let end_tokens = end_tokens(&config, ends, &tokenizer)?;
        let template = ChatTemplate::load(path)?;
        let embedding = TextEmbedding::read(path, &tokenizer).map_err(|error| error.to_string());
        if let Err(why) = &embedding {
            warnings.push(format!("{why}; requests for vectors are refused"));
        }
        Ok(Self {
            path: path.to_path_buf(),
            format: OutputFormat::detect(template.as_ref(), &tokenizer),
            tools: ToolSupport::detect(template.as_ref(), &tokenizer, None),
            images: Processor::load(path, &tokenizer),
            embedding,
            template,
            token_table: token_table(&tokenizer, &end_tokens)?,
            tokenizer,
            sampling: sampling.unwrap_or_default(),
            end_tokens,
            warnings,
        })
    }

    /// Sets the format of calls of tools, in place of the one that the chat template shows.
    pub(crate) fn set_tool_format(&mut self, name: &str) -> Result<()> {
        if CallFormat::named(name).is_none() {
            let names: Vec<&str> = CallFormat::names().collect();
            let message = format!("{name:?} is not a format of calls; there are {}", names.join(", "));
            return Err(Error::Option { name: "tool_format", message });
        }
        self.tools = ToolSupport::detect(self.template.as_ref(), &self.tokenizer, Some(name));
        Ok(())
    }

    /// Returns the steps from a text to its vector.
    ///
    /// # Errors
    /// When a file of sentence-transformers is damaged or requires something that is not supported; the error names file and key.
    pub fn embedding(&self) -> Result<&TextEmbedding> {
        self.embedding.as_ref().map_err(|why| Error::request("model", format!("makes no vectors: {why}")))
    }

    /// The model's name for people: its name on the hub if it is in the hub's cache, or else the folder's last name.
    pub fn name(&self) -> String {
        if let Some(name) = mlx_hub::name_of(&self.path) {
            return name;
        }
        let name = self.path.file_name().or_else(|| self.path.parent().and_then(Path::file_name));
        name.map_or_else(|| self.path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }
}

/// Fails if `path` is not a folder.
pub(crate) fn expect_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    Err(mlx_hub::Error::not_a_model(path).into())
}

fn token_table(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<TokenTable> {
    let newline = tokenizer.encode("\n", false)?.last().copied();
    let protected = end_tokens.iter().copied().chain(newline).collect();
    let tokenizer = tokenizer.clone();
    Ok(TokenTable { text: Arc::new(move |id| tokenizer.token_bytes(id)), protected })
}

/// Returns the end-of-sequence tokens of all three files. `generation` holds those of `generation_config.json`. Checkpoints often name the
/// end of a message in one file and the end of the text in another.
fn end_tokens(config: &Fields, generation: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut tokens = config.token_ids("eos_token_id")?;
    tokens.extend(generation);
    tokens.extend(tokenizer.eos_id());
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}
