//! The audio processor of a multimodal model: the frames of a clip, and its tokens in the prompt. Invariant: pure, like the image processors.

use std::path::Path;

use chat_format::Audio;
use chat_format::text::Tokenizer;
use mlx_audio::{Check, Limits, SAMPLE_RATE, decode_samples, gemma_frames, gemma_log_mel, qwen_log_mel};

use super::clip::{AudioClip, CHUNK_FRAMES, ClipFrames};
use super::placeholders::expand;
use super::{NoMedia, files};
use crate::config::{Fields, thinker};
use crate::error::{Error, Result};

/// The seconds of the longest clip of Qwen3-ASR, in its reference implementation.
const QWEN_SECONDS: u32 = 1200;

/// The maximum seconds of a clip in processor_config.json. Published files have 30.
const MAX_SECONDS: usize = 3600;

/// The processor of the audio of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioProcessor {
    frames: ClipFrames,
    /// The placeholder token of the rows of clips, and its text.
    audio_token: u32,
    audio_token_text: String,
    /// The tokens before and after the rows of a clip; `None` if the template writes them.
    around: Option<[u32; 2]>,
    /// The seconds of the longest clip that the model was trained with.
    max_seconds: u32,
}

impl AudioProcessor {
    /// Reads the settings from config.json and processor_config.json. An error is the reason why audio is not supported.
    pub(crate) fn load(folder: &Path, tokenizer: &Tokenizer) -> Result<Self, NoMedia> {
        Self::read(folder, tokenizer).map_err(NoMedia::of)
    }

    fn read(folder: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let config = Fields::read(&folder.join("config.json"))?;
        let family = config.optional_text("model_type")?.unwrap_or_default();
        let family = family.to_owned();
        let config = thinker(&config)?;
        let Some(audio) = config.section("audio_config")? else {
            let message = format!("cannot be given to {family}, which has no audio tower");
            return Err(Error::request("input_audio", message));
        };
        let Some(frames) = ClipFrames::of(&family, &audio)? else {
            let message = format!("cannot be given to {family} yet: its audio tower is not supported");
            return Err(Error::request("input_audio", message));
        };
        if let Some(settings) = files::section(folder, "feature_extractor")? {
            expect_supported(&settings, frames)?;
        }
        let token = |keys: &[&str], usual: u32| token(&config, tokenizer, keys, usual);
        let ((audio_token, audio_token_text), around, max_seconds) = match frames {
            ClipFrames::ChunkedMel { .. } => (token(&["audio_token_id"], 151_676)?, None, QWEN_SECONDS),
            ClipFrames::LogMel { .. } | ClipFrames::Samples { .. } => {
                let before = token(&["boa_token_id"], 256_000)?.0;
                let after = token(&["eoa_token_index", "eoa_token_id"], 258_883)?.0;
                (token(&["audio_token_id"], 258_881)?, Some([before, after]), gemma_seconds(folder)?)
            }
        };
        Ok(Self { frames, audio_token, audio_token_text, around, max_seconds })
    }

    /// The placeholder token of the rows of clips.
    pub fn audio_token(&self) -> u32 {
        self.audio_token
    }

    /// The seconds of the longest clip.
    pub fn max_seconds(&self) -> u32 {
        self.max_seconds
    }

    /// True if the model is a speech recognizer: its answer is the text of the recording.
    pub fn transcribes(&self) -> bool {
        matches!(self.frames, ClipFrames::ChunkedMel { .. })
    }

    /// Returns the whole seconds of the longest clip with at most this many rows.
    pub(crate) fn seconds_in(&self, rows: usize) -> u32 {
        let seconds = u32::try_from(rows / self.frames.rows(CHUNK_FRAMES)).unwrap_or(u32::MAX);
        seconds.min(self.max_seconds)
    }

    /// Decodes a file to the frames that the model needs. Calls `check` regularly, which may end the work by an error.
    ///
    /// # Errors
    /// Fails if the file is damaged, in another format, or too long or too short for the model.
    pub fn clip(&self, audio: &Audio, check: &mut Check<'_>) -> Result<AudioClip, mlx_audio::Error> {
        let limits = Limits { bytes: Audio::LARGEST_FILE, seconds: self.max_seconds };
        self.clip_of(decode_samples(audio.bytes(), &limits, check)?)
    }

    /// Returns the frames of samples at 16 kHz.
    pub(crate) fn clip_of(&self, mut samples: Vec<f32>) -> Result<AudioClip, mlx_audio::Error> {
        let width = self.frames.width();
        let values = match self.frames {
            ClipFrames::LogMel { bins } => gemma_log_mel(&samples, bins),
            ClipFrames::ChunkedMel { bins } if !samples.is_empty() => qwen_log_mel(&samples, bins),
            ClipFrames::ChunkedMel { .. } => Vec::new(),
            ClipFrames::Samples { count } => {
                samples.resize(samples.len().next_multiple_of(count), 0.0);
                samples
            }
        };
        if values.is_empty() {
            return Err(mlx_audio::Error::Short);
        }
        Ok(AudioClip::new(width, values))
    }

    /// Returns the frames and the tokens of a clip of [`max_seconds`](Self::max_seconds).
    pub(crate) fn longest(&self) -> (usize, usize) {
        let seconds = self.max_seconds as usize;
        let samples = seconds * SAMPLE_RATE as usize;
        let frames = match self.frames {
            ClipFrames::LogMel { .. } => gemma_frames(samples),
            ClipFrames::ChunkedMel { .. } => seconds * CHUNK_FRAMES,
            ClipFrames::Samples { count } => samples.div_ceil(count),
        };
        (frames, self.frames.rows(frames) + self.around.map_or(0, |around| around.len()))
    }

    /// Returns the number of rows of a clip, which must have the frames that the model needs.
    pub fn rows(&self, clip: &AudioClip) -> Result<usize> {
        let width = self.frames.width();
        if clip.width() != width || clip.frames() == 0 {
            let message = format!(
                "has {clip:?} numbers; the model needs at least one frame of {width}, at {SAMPLE_RATE} Hz"
            );
            return Err(Error::request("audio", message));
        }
        Ok(self.frames.rows(clip.frames()))
    }

    /// Expands a prompt with one placeholder token per clip, as templates write it, to the tokens of each clip.
    pub(crate) fn expanded(&self, tokens: Vec<u32>, clips: &[AudioClip]) -> Result<Vec<u32>> {
        let mismatch = |places| {
            format!(
                "hold {} audio clips, and their prompt has {places} placeholders for audio; {} in a text counts as one",
                clips.len(),
                self.audio_token_text
            )
        };
        expand(tokens, self.audio_token, clips, mismatch, |clip| self.tokens(clip))
    }

    /// Returns the tokens for a clip.
    fn tokens(&self, clip: &AudioClip) -> Result<Vec<u32>> {
        let rows = vec![self.audio_token; self.rows(clip)?];
        Ok(match self.around {
            Some([before, after]) => [&[before], &rows[..], &[after]].concat(),
            None => rows,
        })
    }
}

/// Returns the token under the first of these keys in config.json, and its text. The default is `usual`.
fn token(config: &Fields, tokenizer: &Tokenizer, keys: &[&str], usual: u32) -> Result<(u32, String)> {
    let found =
        keys.iter().map(|key| config.token_ids(key)).find(|ids| !matches!(ids, Ok(ids) if ids.is_empty()));
    let ids = found.unwrap_or(Ok(vec![usual]))?;
    match (&ids[..], ids.first().and_then(|id| tokenizer.token(*id))) {
        ([id], Some(text)) => Ok((*id, text)),
        _ => Err(config.error(keys[0], "is not a token of tokenizer.json; prompts with audio need it")),
    }
}

/// Returns the seconds of the longest clip in processor_config.json.
fn gemma_seconds(folder: &Path) -> Result<u32> {
    let processor = files::processor(folder)?;
    let count = |key: &str, usual: usize| {
        let given = processor.as_ref().map(|it| it.optional_size(key)).transpose()?.flatten();
        Ok::<_, Error>(given.unwrap_or(usual))
    };
    let milliseconds = count("audio_seq_length", 750)?.saturating_mul(count("audio_ms_per_token", 40)?);
    match (milliseconds.div_ceil(1000), &processor) {
        (seconds, Some(processor)) if seconds > MAX_SECONDS => {
            let message = format_args!(
                "times audio_ms_per_token is {seconds} seconds; at most {MAX_SECONDS} are supported"
            );
            Err(processor.error("audio_seq_length", message))
        }
        (seconds, _) => Ok(seconds as u32),
    }
}

/// Rejects settings that would give other frames.
fn expect_supported(settings: &Fields, frames: ClipFrames) -> Result<()> {
    let expect = |key: &str, needed: f64| match settings.optional_number(key)? {
        Some(value) if (value - needed).abs() > 1e-9 => {
            Err(settings.error(key, format_args!("is {value}; only {needed} is supported")))
        }
        _ => Ok(()),
    };
    expect("sampling_rate", f64::from(SAMPLE_RATE))?;
    expect("feature_size", frames.width() as f64)?;
    match frames {
        ClipFrames::LogMel { .. } => {}
        ClipFrames::Samples { count } => return expect("audio_samples_per_token", count as f64),
        ClipFrames::ChunkedMel { .. } => {
            let needed = [
                ("hop_length", 160.0),
                ("n_fft", 400.0),
                ("dither", 0.0),
                ("n_window", 50.0),
                ("min_length", 8000.0),
            ];
            return needed.into_iter().try_for_each(|(key, needed)| expect(key, needed));
        }
    }
    for (key, needed) in [
        ("frame_length", 320.0),
        ("hop_length", 160.0),
        ("fft_length", 512.0),
        ("min_frequency", 0.0),
        ("max_frequency", 8000.0),
        ("preemphasis", 0.0),
        ("dither", 0.0),
        ("input_scale_factor", 1.0),
        ("mel_floor", 1e-3),
    ] {
        expect(key, needed)?;
    }
    for key in ["per_bin_mean", "per_bin_stddev"] {
        if settings.has(key) {
            return Err(settings.error(key, "is given; features are not normalized here"));
        }
    }
    Ok(())
}
