//! What becomes of a drawn token: it is accepted into the history at once, so that the next step can begin, and emitted as text and events
//! while the device works. Either may end the sequence.

pub(super) mod embedding;
pub(super) mod prompt_score;
mod text;

pub(super) use text::{OutputText, Piece};

use super::options::Exactness;
use super::request::{Event, FinishReason, Finished, TokenOutput};
use super::sequence::Sequence;
use crate::sampling::Draw;

/// Accepts a token into the history. Returns the reason if it is the last one.
pub(super) fn accept(sequence: &mut Sequence, token: u32) -> Option<FinishReason> {
    sequence.mark_token();
    sequence.history.push(token);
    if sequence.limits.end_tokens.contains(&token) {
        return Some(FinishReason::EndToken);
    }
    let full = sequence.history.generated().len() >= sequence.limits.max_tokens;
    full.then_some(FinishReason::Length)
}

/// Turns an accepted token into text and emits it. Returns the reason if the sequence ends.
pub(super) fn emit(sequence: &mut Sequence, draw: Draw) -> Option<FinishReason> {
    let ended = sequence.ended.clone();
    // A token that ends the text is not part of it, whatever its text is.
    let is_end = matches!(ended, Some(FinishReason::EndToken));
    let piece = if is_end { Piece::default() } else { sequence.text.sync(&sequence.history) };
    let output = TokenOutput { id: draw.token, text: piece.text, delta: piece.delta, logprob: draw.logprob };
    if sequence.outlet.sink.try_send(Event::Token(output)).is_err() {
        return Some(FinishReason::Cancelled);
    }
    match piece.matched {
        Some(index) if !is_end => Some(FinishReason::StopString(sequence.limits.stop[index].clone())),
        _ => ended,
    }
}

/// Emits the end of a sequence.
pub(super) fn finish(sequence: &mut Sequence, mut reason: FinishReason, exactness: Exactness) {
    // After a stop string there is no more text; a held-back end of the text may still complete one.
    let rest = match reason {
        FinishReason::StopString(_) => Piece::default(),
        _ => sequence.text.finish(),
    };
    // A failure or a cancellation is never dressed up as a stop.
    if let (Some(index), FinishReason::EndToken | FinishReason::Length) = (rest.matched, &reason) {
        reason = FinishReason::StopString(sequence.limits.stop[index].clone());
    }
    let (usage, timings) = (sequence.usage(), sequence.timings());
    let done = Finished { reason, delta: rest.delta, usage, timings, exactness };
    // The client may be gone; that is not an error.
    sequence.outlet.sink.try_send(Event::Done(done)).ok();
}
