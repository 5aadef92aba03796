//! The special tokens of a Whisper model, from its tokenizer and generation_config.json.

use chat_format::text::Tokenizer;

use super::languages::is_language;
use super::non_speech::non_speech_tokens;
use crate::config::Fields;
use crate::error::{Error, Result};

/// The steps of timestamps in a second.
pub(crate) const TIMESTAMPS_PER_SECOND: usize = 50;

/// The latest first timestamp, in steps, unless generation_config.json sets it.
const MAX_INITIAL_TIMESTAMP: usize = 50;

/// The special tokens of a Whisper model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeechTokens {
    /// Starts the transcript.
    pub start: u32,
    /// Ends it. Smaller tokens are text.
    pub end: u32,
    /// Starts the previous text.
    pub previous: Option<u32>,
    /// Selects transcription in the spoken language.
    pub transcribe: u32,
    /// Selects translation to English.
    pub translate: u32,
    /// Its probability is that of no speech.
    pub no_speech: Option<u32>,
    /// Selects text without timestamps.
    pub no_timestamps: u32,
    /// The timestamp of the start. Greater tokens are later, by a fiftieth of a second each.
    pub first_timestamp: u32,
    /// The codes of languages and their tokens. Empty for a model that only knows English.
    pub languages: Vec<(String, u32)>,
    /// Tokens that are never text.
    pub suppressed: Vec<u32>,
    /// Tokens that cannot begin a transcript.
    pub first_suppressed: Vec<u32>,
    /// The latest first timestamp, in steps.
    pub max_initial_timestamp: Option<usize>,
}

impl SpeechTokens {
    /// Finds the tokens of a model with `vocab_size` tokens. `generation` is its generation_config.json.
    pub(crate) fn read(
        tokenizer: &Tokenizer,
        vocab_size: usize,
        generation: Option<&Fields>,
    ) -> Result<Self> {
        let named = |name: &str| {
            let missing = || Error::Tokenizer(format!("has no token {name}, which speech recognition needs"));
            tokenizer.id(name).ok_or_else(missing)
        };
        let no_timestamps = named("<|notimestamps|>")?;
        let (start, end) = (named("<|startoftranscript|>")?, named("<|endoftext|>")?);
        let no_speech = tokenizer.id("<|nospeech|>").or_else(|| tokenizer.id("<|nocaptions|>"));
        let previous = tokenizer.id("<|startofprev|>");
        let (transcribe, translate) = (named("<|transcribe|>")?, named("<|translate|>")?);
        let is_multilingual =
            generation.map(|fields| fields.optional_flag("is_multilingual")).transpose()?.flatten();
        // Models for English only have the tokens of languages too, but do not use them. Their vocabulary is smaller by one.
        let is_multilingual = is_multilingual.unwrap_or(vocab_size != 51_864);
        let languages = if is_multilingual { languages(tokenizer, start) } else { Vec::new() };
        let listed = |key: &str| -> Result<Option<Vec<u32>>> {
            let fields = generation.filter(|fields| fields.has(key) && !fields.is_null(key));
            fields.map(|fields| fields.token_ids(key)).transpose()
        };
        let suppressed = if let Some(listed) = listed("suppress_tokens")? {
            listed
        } else {
            let special = [Some(start), previous, tokenizer.id("<|startoflm|>"), no_speech];
            let mut all = non_speech_tokens(tokenizer)?;
            all.extend([transcribe, translate].into_iter().chain(special.into_iter().flatten()));
            all
        };
        let first_suppressed = match listed("begin_suppress_tokens")? {
            Some(listed) => listed,
            None => tokenizer.encode(" ", false)?.into_iter().chain([end]).collect(),
        };
        let latest =
            generation.map(|fields| fields.optional_count("max_initial_timestamp_index")).transpose()?;
        let first_timestamp = no_timestamps + 1;
        if first_timestamp as usize >= vocab_size || end >= start || start >= no_timestamps {
            return Err(Error::Tokenizer("its tokens of speech are not in the expected order".to_owned()));
        }
        Ok(Self {
            start,
            end,
            previous,
            transcribe,
            translate,
            no_speech,
            no_timestamps,
            first_timestamp,
            languages,
            suppressed,
            first_suppressed,
            max_initial_timestamp: latest.flatten().or(Some(MAX_INITIAL_TIMESTAMP)),
        })
    }

    /// Returns true if the model knows several languages.
    pub fn is_multilingual(&self) -> bool {
        !self.languages.is_empty()
    }

    /// Returns the token of a language code.
    pub fn language(&self, code: &str) -> Option<u32> {
        self.languages.iter().find(|(known, _)| known == code).map(|(_, token)| *token)
    }

    /// Returns the code of a language's token.
    pub fn code(&self, token: u32) -> Option<&str> {
        self.languages.iter().find(|(_, known)| *known == token).map(|(code, _)| code.as_str())
    }
}

/// Returns the languages, whose tokens follow `start`.
fn languages(tokenizer: &Tokenizer, start: u32) -> Vec<(String, u32)> {
    let named = |id: u32| {
        let token = tokenizer.token(id)?;
        let code = token.strip_prefix("<|")?.strip_suffix("|>")?;
        is_language(code).then(|| (code.to_owned(), id))
    };
    (start + 1..).map_while(named).collect()
}
