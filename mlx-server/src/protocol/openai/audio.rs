//! The requests and the responses of `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.

use mlx_core::engine::Priority;
use mlx_core::speech::language_code;
use mlx_core::transcription::{Timed, TranscriptFormat};
use mlx_json::{Number, Value};
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::options::priority;
use super::sampling::integer_seed;
use super::schema::merged;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

field_group! {
    /// Audio to transcribe, as the parts of a form.
    pub(crate) struct AudioFields {
        /// The audio file: wav, flac, mp3, m4a or mp4 with AAC, or ogg or webm with Vorbis or Opus.
        #[schema(format = Binary, example = "talk.mp3")]
        pub(crate) file: String,
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// The spoken language, as a code or an English name. By default, it is detected.
        #[schema(example = "de")]
        pub(crate) language: String,
        /// Names, terms and a style to follow: the text before the first words for Whisper, the context for Qwen3-ASR.
        #[schema(example = "The speakers are Ada and Grace.")]
        pub(crate) prompt: String,
        /// `json`, `text`, `srt`, `vtt` or `verbose_json`.
        #[schema(pattern = "^(json|text|srt|vtt|verbose_json)$", example = "verbose_json")]
        pub(crate) response_format: String,
        /// Only this temperature. By default, or if it is 0, Whisper tries higher temperatures for parts that fail at 0.
        #[schema(minimum = 0, maximum = 1, example = 0.4)]
        pub(crate) temperature: f32,
        /// The seed of the random draws at temperatures above 0.
        #[schema(value_type = i64, example = 7)]
        pub(crate) seed: Number,
        /// True to stream the text. Only for the formats json and text.
        #[schema(example = true)]
        pub(crate) stream: bool,
        /// `segment`, `word` or both: the parts with times. `word` needs the format verbose_json and Whisper. By default `segment`.
        #[schema(example = json!(["word"]))]
        pub(crate) timestamp_granularities: Vec<String>,
        /// Must be empty: log-probabilities are not supported.
        #[schema(example = json!([]))]
        pub(crate) include: Vec<String>,
        /// The priority in the queue: low, normal or high. By default low, since audio can be long.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user. Written to the request's log line.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AudioRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The code of the spoken language.
    pub(crate) language: Option<&'static str>,
    /// Text before the first words.
    pub(crate) prompt: Option<String>,
    /// The format of the response.
    pub(crate) format: TranscriptFormat,
    /// The only temperature.
    pub(crate) temperature: Option<f32>,
    /// The seed of the draws.
    pub(crate) seed: Option<u64>,
    /// True if the text is streamed.
    pub(crate) stream: bool,
    /// The priority in the queue.
    pub(crate) priority: Priority,
    /// The end user.
    pub(crate) user: Option<String>,
    /// The parts with times.
    pub(crate) timed: Timed,
    /// The name of the file.
    file: String,
    include: Option<Vec<String>>,
}

impl AudioRequest {
    /// Parses a request from the parts of a form, in which the file is represented by its name.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = AudioFields::read(fields)?;
        // Audio is always cut at pauses.
        fields.take_unused("chunking_strategy", &[json!("auto")]);
        let speakers = "is not supported: there is no speaker diarization";
        fields.reject(&[("known_speaker_names", speakers), ("known_speaker_references", speakers)])?;
        let file = given.file.ok_or_else(|| ApiError::field("file", "is missing; give an audio file"))?;
        let unknown = |text: &str| {
            ApiError::field(
                "language",
                format!("is {text:?}; give a code or an English name, such as de or german"),
            )
        };
        let language = given.language.as_deref().filter(|text| !text.is_empty());
        let language = language.map(|text| language_code(text).ok_or_else(|| unknown(text))).transpose()?;
        let format = format(given.response_format.as_deref())?;
        let timed = timed(&given.timestamp_granularities.unwrap_or_default(), format)?;
        if given.include.as_ref().is_some_and(|include| !include.is_empty()) {
            return Err(ApiError::unsupported(
                "include",
                "is not supported: log-probabilities are not returned",
            ));
        }
        let stream = given.stream.unwrap_or(false);
        if stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
            let message = "cannot be true with this response_format; a stream has the formats json and text";
            return Err(ApiError::field("stream", message));
        }
        let temperature = given.temperature;
        if let Some(wrong) = temperature.filter(|it| !(0.0..=1.0).contains(it)) {
            return Err(ApiError::field("temperature", format!("is {wrong}; it must be from 0 to 1")));
        }
        Ok(Self {
            model: given.model,
            language,
            prompt: given.prompt,
            format,
            temperature,
            seed: given.seed.map(|seed| integer_seed(&seed)).transpose()?,
            stream,
            priority: priority(Some(given.priority.as_deref().unwrap_or("low")))?,
            user: given.user,
            file,
            timed,
            include: given.include,
        })
    }
}

fn format(name: Option<&str>) -> Result<TranscriptFormat, ApiError> {
    let name = name.unwrap_or("json");
    if name == "diarized_json" {
        return Err(ApiError::unsupported(
            "response_format",
            "is diarized_json; speaker diarization is not supported",
        ));
    }
    TranscriptFormat::named(name)
        .ok_or_else(|| ApiError::field("response_format", "must be json, text, srt, vtt or verbose_json"))
}

fn timed(given: &[String], format: TranscriptFormat) -> Result<Timed, ApiError> {
    const FIELD: &str = "timestamp_granularities";
    let (mut segments, mut words) = (given.is_empty(), false);
    for granularity in given {
        match granularity.as_str() {
            "segment" => segments = true,
            "word" => words = true,
            other => {
                return Err(ApiError::field(FIELD, format!("is {other:?}; it must be segment or word")));
            }
        }
    }
    if words && format != TranscriptFormat::VerboseJson {
        return Err(ApiError::field(FIELD, "is word, which needs response_format verbose_json"));
    }
    if !given.is_empty() && format != TranscriptFormat::VerboseJson {
        tracing::debug!("timestamp_granularities has no effect without response_format verbose_json");
    }
    Ok(match (segments, words) {
        (true, true) => Timed::Both,
        (false, true) => Timed::Words,
        _ => Timed::Segments,
    })
}

/// Returns the value of a form's part: a number or a boolean for the fields that have one, otherwise its text.
pub(crate) fn form_value(name: &str, text: String) -> Value {
    match name {
        "temperature" | "seed" => match mlx_json::parse_strict(text.trim().as_bytes()) {
            Ok(number @ Value::Number(_)) => number,
            _ => text.into(),
        },
        "stream" => match text.trim().to_lowercase().as_str() {
            "true" | "1" => true.into(),
            "false" | "0" => false.into(),
            _ => text.into(),
        },
        _ => text.into(),
    }
}

impl PartialSchema for AudioRequest {
    fn schema() -> RefOr<Schema> {
        merged([AudioFields::schema()], &[]).build(&["file"])
    }
}

impl ToSchema for AudioRequest {}

/// A transcript. `verbose_json` also has the task, the language, the duration and the segments.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TranscriptionObject {
    /// The text.
    pub(crate) text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[(&str, &str)]) -> Result<AudioRequest, ApiError> {
        let all = parts.iter().map(|(name, text)| ((*name).to_owned(), form_value(name, (*text).to_owned())));
        AudioRequest::read(&mut Fields::of(all.collect()))
    }

    #[test]
    fn parts_of_a_form_become_a_request() {
        let request =
            read(&[("file", "a.wav"), ("temperature", "0.5"), ("stream", "true"), ("language", "German")]);
        let request = request.expect("it is valid");
        assert_eq!((request.temperature, request.stream, request.language), (Some(0.5), true, Some("de")));
        assert_eq!(request.priority, Priority::Low);
    }

    #[test]
    fn unsupported_values_are_refused_by_name() {
        for (part, field) in [
            (("language", "klingon"), "language"),
            (("temperature", "hot"), "temperature"),
            (("temperature", "2"), "temperature"),
            (("response_format", "diarized_json"), "response_format"),
            (("response_format", "xml"), "response_format"),
            (("known_speaker_names", "Ada"), "known_speaker_names"),
            (("stream", "maybe"), "stream"),
        ] {
            assert_eq!(read(&[("file", "a.wav"), part]).expect_err(field).param(), Some(field));
        }
        assert_eq!(read(&[("stream", "true")]).expect_err("no file").param(), Some("file"));
        let streamed = [("file", "a.wav"), ("stream", "true"), ("response_format", "srt")];
        assert_eq!(read(&streamed).expect_err("no stream of subtitles").param(), Some("stream"));
    }
}
