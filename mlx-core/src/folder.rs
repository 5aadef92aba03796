//! A model folder without its weights: tokenizer, chat template and defaults. Invariant: it uses no device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use chat_format::text::Tokenizer;
use chat_format::{CallFormat, ChatTemplate, OutputFormat, ToolSupport};
use mlx_files::Warnings;
use serde_json::Map;

use crate::abilities::Abilities;
use crate::config::Fields;
use crate::cross_encoder::CrossEncoder;
use crate::error::{Error, Result};
use crate::model::Architecture;
use crate::model_name::display_name;

use crate::processor::{AudioProcessor, NoMedia, Processor};
use crate::sampling::{SamplingOptions, TokenTable};
use crate::sentence_transformers::{TextEmbedding, lowercases};
use crate::speech::{QWEN3_ASR_TEMPLATE, SpeechTokens};

/// The tokenizer, chat template and defaults of a Hugging Face folder.
pub struct ModelFolder {
    /// The folder.
    pub path: PathBuf,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, which renders messages to a prompt. Base models have none.
    pub template: Option<ChatTemplate>,
    /// The format of thoughts in the model's output.
    pub format: OutputFormat,
    /// The format of tool calls, or the reason why tools are not supported.
    pub tools: Result<ToolSupport, String>,
    /// The image processor, or the reason why images are not supported.
    pub images: Result<Processor, NoMedia>,
    /// The audio processor, or the reason why audio is not supported.
    pub audio: Result<AudioProcessor, NoMedia>,
    /// The sampling defaults of `generation_config.json`.
    pub sampling: SamplingOptions,
    /// The tokens that end a text.
    pub end_tokens: Vec<u32>,
    /// The texts of tokens, for the sampler.
    pub token_table: TokenTable,
    /// The steps from a text to its embedding, or the reason why there are none.
    embedding: Result<TextEmbedding, String>,
    /// The scores of pairs, or the reason why there are none.
    cross_encoder: Result<CrossEncoder, String>,
    /// The special tokens of a speech recognizer, or the reason why there are none.
    speech: Result<SpeechTokens, String>,
    /// Problems with optional files.
    pub warnings: Warnings,
}

impl ModelFolder {
    /// Reads all files except the weights.
    pub fn open(path: &Path) -> Result<Self> {
        expect_folder(path)?;
        let _open = mlx_gguf::keep_open(path);
        let config = Fields::read(&path.join("config.json"))?;
        let mut warnings = Warnings::default();
        let generation = Fields::read_optional(&path.join("generation_config.json"));
        let generation = warnings.or_default(generation, "the file is ignored");
        let tokenizer = Tokenizer::load_as(path, lowercases(path))?;
        warnings.extend(tokenizer.warnings());
        let sampling = generation.as_ref().map(|fields| SamplingOptions::read(fields, &mut warnings));
        let ends = generation.as_ref().map_or_else(|| Ok(Vec::new()), |it| it.token_ids("eos_token_id"));
        let ends = warnings.or_default(ends, "its end tokens are ignored");
        let end_tokens = end_tokens(&config, ends, &tokenizer)?;
        let audio = AudioProcessor::load(path, &tokenizer);
        let template = template(path, audio.as_ref().is_ok_and(AudioProcessor::transcribes))?;
        let architecture = Architecture::read(&config).ok().map(|(_, architecture)| architecture);
        let is_encoder = matches!(architecture, Some(Architecture::Encoder(_)));
        let embedding = TextEmbedding::read(path, &tokenizer, is_encoder).map_err(|error| error.to_string());
        let cross_encoder = CrossEncoder::read(path, &config).map_err(|error| error.to_string());
        let speech = match architecture {
            Some(Architecture::Whisper(whisper)) => {
                SpeechTokens::read(&tokenizer, whisper.vocab_size, generation.as_ref())
                    .map_err(|error| error.to_string())
            }
            _ => Err("it is no speech recognizer, such as Whisper".to_owned()),
        };
        if let (Err(why), Err(_)) = (&embedding, &cross_encoder) {
            warnings.push(format!("{why}; requests for embeddings are rejected"));
        }
        Ok(Self {
            path: path.to_path_buf(),
            format: OutputFormat::detect(template.as_ref(), &tokenizer),
            tools: ToolSupport::detect(template.as_ref(), &tokenizer, None),
            images: Processor::load(path, &tokenizer),
            audio,
            embedding,
            cross_encoder,
            speech,
            template,
            token_table: token_table(&tokenizer, &end_tokens)?,
            tokenizer,
            sampling: sampling.unwrap_or_default(),
            end_tokens,
            warnings,
        })
    }

    /// Sets the format of tool calls, instead of the detected one.
    pub(crate) fn set_tool_format(&mut self, name: &str) -> Result<()> {
        if CallFormat::named(name).is_none() {
            let names: Vec<&str> = CallFormat::names().collect();
            let message = format!("is {name:?}; it must be one of {}", names.join(", "));
            return Err(Error::Option { name: "tool_format", message });
        }
        self.tools = ToolSupport::detect(self.template.as_ref(), &self.tokenizer, Some(name));
        Ok(())
    }

    /// Returns the steps from a text to its embedding.
    ///
    /// # Errors
    /// Fails if a file of sentence-transformers is damaged or requires an unsupported feature. The error names the file and the key.
    pub fn embedding(&self) -> Result<&TextEmbedding> {
        self.embedding
            .as_ref()
            .map_err(|why| Error::request("model", format!("cannot compute embeddings: {why}")))
    }

    /// Returns the scores of pairs by a cross-encoder.
    ///
    /// # Errors
    /// Fails if the model is no cross-encoder, or if a file about its scores cannot be used.
    pub fn cross_encoder(&self) -> Result<&CrossEncoder> {
        self.cross_encoder
            .as_ref()
            .map_err(|why| Error::request("model", format!("cannot score pairs of texts: {why}")))
    }

    /// Returns the special tokens of a speech recognizer.
    ///
    /// # Errors
    /// Fails if the model is no speech recognizer, or if its tokenizer lacks a token.
    pub fn speech(&self) -> Result<&SpeechTokens> {
        self.speech.as_ref().map_err(|why| Error::request("model", format!("cannot transcribe audio: {why}")))
    }

    /// Returns the tasks that the model is made for.
    pub fn abilities(&self) -> Result<Abilities> {
        Abilities::of(&self.path)
    }

    /// The display name of the model: its name in its store, else the name of the folder, or of the GGUF file without its suffix.
    pub fn name(&self) -> String {
        display_name(&self.path)
    }
}

/// Returns the chat template. Conversions of Qwen3-ASR often lack it, but prompts have the same form for all its sizes.
fn template(folder: &Path, is_qwen3_asr: bool) -> Result<Option<ChatTemplate>> {
    match ChatTemplate::load(folder)? {
        None if is_qwen3_asr => Ok(Some(ChatTemplate::from_source(QWEN3_ASR_TEMPLATE, Map::new())?)),
        template => Ok(template),
    }
}

/// Fails if `path` is neither a folder nor a GGUF file, which counts as one.
pub(crate) fn expect_folder(path: &Path) -> Result<()> {
    if path.is_dir() || mlx_gguf::is_gguf(path) {
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

/// Returns the end-of-sequence tokens of all three files. `generation` holds the tokens of `generation_config.json`. Checkpoints often name
/// the end of a message in one file and the end of the text in another.
fn end_tokens(config: &Fields, generation: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut tokens = config.token_ids("eos_token_id")?;
    tokens.extend(generation);
    tokens.extend(tokenizer.eos_id());
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}
