//! The formats of transcripts: text, subtitles and JSON. Invariant: pure.

use serde::Serialize;

use super::options::Timed;
use super::segment::Segment;
use super::words::Word;

/// A format of a transcript.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TranscriptFormat {
    /// JSON with the text.
    #[default]
    Json,
    /// The text.
    Text,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// JSON with the language, the duration and all segments.
    VerboseJson,
}

impl TranscriptFormat {
    /// All formats with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("json", Self::Json),
        ("text", Self::Text),
        ("srt", Self::Srt),
        ("vtt", Self::Vtt),
        ("verbose_json", Self::VerboseJson),
    ];

    /// Returns the format with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Returns the suffix of files in this format.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Json | Self::VerboseJson => "json",
            Self::Text => "txt",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
        }
    }
}

/// A complete transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// `transcribe` or `translate`.
    pub task: &'static str,
    /// The name of the language of the text, such as `german`.
    pub language: String,
    /// The duration of the file in seconds.
    pub duration: f64,
    /// The segments in order.
    pub segments: Vec<Segment>,
    /// The parts that the verbose format lists.
    pub timed: Timed,
}

/// A transcript with all details, in the format of OpenAI's API.
#[derive(Serialize)]
struct Verbose<'a> {
    task: &'a str,
    language: &'a str,
    duration: f64,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<VerboseWord<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<Vec<VerboseSegment<'a>>>,
    usage: AudioUsage,
}

/// A transcript without details.
#[derive(Serialize)]
struct Short<'a> {
    text: &'a str,
    usage: AudioUsage,
}

/// The duration of the audio in whole seconds, by which OpenAI's API measures usage.
#[derive(Serialize)]
struct AudioUsage {
    r#type: &'static str,
    seconds: u64,
}

#[derive(Serialize)]
struct VerboseWord<'a> {
    word: &'a str,
    start: f64,
    end: f64,
}

#[derive(Serialize)]
struct VerboseSegment<'a> {
    id: usize,
    seek: usize,
    start: f64,
    end: f64,
    text: &'a str,
    tokens: &'a [u32],
    temperature: f32,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
}

impl Transcript {
    /// Returns the whole text.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }

    /// Returns the transcript in a format. JSON has no line break at its end.
    pub fn format(&self, format: TranscriptFormat) -> String {
        match format {
            TranscriptFormat::Json => json(&Short { text: &self.text(), usage: self.usage() }),
            TranscriptFormat::Text => format!("{}\n", self.text()),
            TranscriptFormat::Srt => self.segments.iter().map(srt).collect(),
            TranscriptFormat::Vtt => {
                let cues: String = self.segments.iter().map(vtt).collect();
                format!("WEBVTT\n\n{cues}")
            }
            TranscriptFormat::VerboseJson => self.verbose(),
        }
    }

    fn verbose(&self) -> String {
        let words = self.segments.iter().flat_map(|segment| &segment.words).map(VerboseWord::of);
        let segments = self.segments.iter().map(VerboseSegment::of);
        let verbose = Verbose {
            task: self.task,
            language: &self.language,
            duration: rounded(self.duration),
            text: &self.text(),
            words: (self.timed != Timed::Segments).then(|| words.collect()),
            segments: (self.timed != Timed::Words).then(|| segments.collect()),
            usage: self.usage(),
        };
        json(&verbose)
    }

    fn usage(&self) -> AudioUsage {
        AudioUsage { r#type: "duration", seconds: self.duration.ceil() as u64 }
    }
}

impl<'a> VerboseWord<'a> {
    fn of(word: &'a Word) -> Self {
        Self { word: word.text.trim(), start: rounded(word.start), end: rounded(word.end) }
    }
}

impl<'a> VerboseSegment<'a> {
    fn of(segment: &'a Segment) -> Self {
        Self {
            id: segment.id,
            seek: segment.seek,
            start: rounded(segment.start),
            end: rounded(segment.end),
            text: &segment.text,
            tokens: &segment.tokens,
            temperature: segment.temperature,
            avg_logprob: segment.avg_logprob,
            compression_ratio: segment.compression_ratio,
            no_speech_prob: segment.no_speech_prob,
        }
    }
}

fn json(transcript: &impl Serialize) -> String {
    serde_json::to_string(transcript).expect("finite numbers and text are JSON")
}

/// Returns a segment as a numbered subtitle.
fn srt(segment: &Segment) -> String {
    let (start, end) = (timestamp(segment.start, true, ','), timestamp(segment.end, true, ','));
    format!("{}\n{start} --> {end}\n{}\n\n", segment.id + 1, cue(&segment.text))
}

/// Returns a segment as a cue.
fn vtt(segment: &Segment) -> String {
    let (start, end) = (timestamp(segment.start, false, '.'), timestamp(segment.end, false, '.'));
    format!("{start} --> {end}\n{}\n\n", cue(&segment.text))
}

/// Returns the text of a cue. An arrow in it would look like a time.
fn cue(text: &str) -> String {
    text.trim().replace("-->", "->")
}

/// Formats a time. Hours may be omitted unless `hours`.
fn timestamp(seconds: f64, hours: bool, point: char) -> String {
    let milliseconds = (seconds.max(0.0) * 1000.0).round() as u64;
    let (hour, minute) = (milliseconds / 3_600_000, milliseconds / 60_000 % 60);
    let (second, milliseconds) = (milliseconds / 1000 % 60, milliseconds % 1000);
    let hour = if hours || hour > 0 { format!("{hour:02}:") } else { String::new() };
    format!("{hour}{minute:02}:{second:02}{point}{milliseconds:03}")
}

/// Rounds to hundredths of a second.
fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |id, start, end, text: &str| Segment {
            id,
            seek: 0,
            start,
            end,
            text: text.to_owned(),
            tokens: vec![1],
            temperature: 0.0,
            avg_logprob: -0.5,
            compression_ratio: 1.0,
            no_speech_prob: 0.0,
            words: vec![Word { text: text.to_owned(), start, end }],
        };
        let segments = vec![segment(0, 0.0, 2.5, " Good morning."), segment(1, 3661.04, 3662.0, " a --> b")];
        Transcript {
            task: "transcribe",
            language: "english".to_owned(),
            duration: 3662.004,
            segments,
            timed: Timed::Segments,
        }
    }

    #[test]
    fn subtitles_have_times_and_texts() {
        let srt =
            "1\n00:00:00,000 --> 00:00:02,500\nGood morning.\n\n2\n01:01:01,040 --> 01:01:02,000\na -> b\n\n";
        assert_eq!(transcript().format(TranscriptFormat::Srt), srt);
        let vtt =
            "WEBVTT\n\n00:00.000 --> 00:02.500\nGood morning.\n\n01:01:01.040 --> 01:01:02.000\na -> b\n\n";
        assert_eq!(transcript().format(TranscriptFormat::Vtt), vtt);
        let empty = Transcript { segments: Vec::new(), ..transcript() };
        assert_eq!(empty.format(TranscriptFormat::Vtt), "WEBVTT\n\n");
        assert_eq!(empty.format(TranscriptFormat::Text), "\n");
    }

    #[test]
    fn json_has_the_fields_of_openai() {
        assert_eq!(
            transcript().format(TranscriptFormat::Json),
            r#"{"text":"Good morning. a --> b","usage":{"type":"duration","seconds":3663}}"#
        );
        let verbose = transcript().format(TranscriptFormat::VerboseJson);
        let verbose: serde_json::Value = serde_json::from_str(&verbose).expect("JSON");
        assert_eq!(
            (verbose["language"].as_str(), verbose["duration"].as_f64()),
            (Some("english"), Some(3662.0))
        );
        assert_eq!(verbose["segments"][1]["start"].as_f64(), Some(3661.04));
        assert_eq!(verbose["words"], serde_json::Value::Null);
        let words = Transcript { timed: Timed::Words, ..transcript() }.format(TranscriptFormat::VerboseJson);
        let words: serde_json::Value = serde_json::from_str(&words).expect("JSON");
        let first = serde_json::json!({"word": "Good morning.", "start": 0.0, "end": 2.5});
        assert_eq!((&words["words"][0], &words["segments"]), (&first, &serde_json::Value::Null));
    }
}
