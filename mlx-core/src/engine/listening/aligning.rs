//! The last step of a window whose words get times: the decoder reads the text again, without timestamps.

use crate::error::Result;
use crate::model::{EncodedAudio, Whisper};
use crate::speech::{SpeechTokens, WindowResult, cut};

/// Returns the starts of the text tokens of all segments and of the end. `prompt` begins with the token that starts the transcript.
pub(super) fn starts(
    model: &Whisper,
    audio: &EncodedAudio,
    prompt: &[u32],
    speech: &SpeechTokens,
    (result, frames): (&WindowResult, usize),
) -> Result<Vec<u32>> {
    let mut tokens: Vec<u32> = prompt.to_vec();
    tokens.retain(|token| *token != speech.no_timestamps);
    let first = tokens.len();
    tokens.push(speech.no_timestamps);
    tokens.extend(cut(&result.tokens, speech.first_timestamp, frames).text(speech.end));
    if tokens.len() == first + 1 {
        return Ok(Vec::new());
    }
    // The row of a token attends to the audio of the next one. So the last row, that of the end, is not needed.
    let rows = first..tokens.len();
    tokens.push(speech.end);
    Ok(model.align(&tokens, rows, audio, frames)?.starts())
}
