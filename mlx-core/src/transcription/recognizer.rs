//! The part of a transcription that depends on the model.

use super::segment::Segment;
use crate::engine::{Event, FinishReason, RequestOptions};
use crate::error::{Error, Result};

/// The result of an event of a request.
#[derive(Debug, Default, PartialEq)]
pub struct Progress {
    /// The new text. Concatenated, the deltas of a file are the texts of its segments.
    pub delta: String,
    /// The segments of a part. They come with its last event.
    pub segments: Vec<Segment>,
}

/// Transcribes a file with one kind of model.
pub(super) trait Recognizer: Send {
    /// Returns the lower-case name of the language of the text, once it is known.
    fn language(&self) -> Option<String>;

    /// Returns the duration of the file in seconds.
    fn duration(&self) -> f64;

    /// Returns the seconds of audio that are complete.
    fn position(&self) -> f64;

    /// Returns the bytes of the audio in memory.
    fn bytes(&self) -> usize;

    /// Returns the prompt and the options of the request for the next part. `None` at the end of the file.
    fn next_part(&mut self) -> Result<Option<(Vec<u32>, RequestOptions)>>;

    /// Takes an event of the request. [`Event::Done`] moves to the next part.
    fn accept(&mut self, event: Event) -> Result<Progress>;
}

/// Returns the error of a part that ended for this reason.
pub(super) fn failure(reason: &FinishReason) -> Option<Error> {
    match reason {
        FinishReason::Cancelled => Some(Error::Cancelled),
        FinishReason::Error(message) => Some(Error::EngineStopped(message.clone())),
        _ => None,
    }
}
