//! What becomes of a drawn token: it is taken into the history at once, so that the next step can begin, and told while the device
//! works. Either may end the sequence.

use super::options::Exactness;
use super::output_text::Piece;
use super::request::{Event, FinishReason, Finished, TokenOutput};
use super::sequence::Sequence;
use crate::sampling::Draw;

/// Takes a token into the history. Gives the reason if no other is to be drawn after it.
pub(super) fn take(sequence: &mut Sequence, token: u32) -> Option<FinishReason> {
    sequence.mark_token();
    sequence.history.push(token);
    if sequence.limits.end_tokens.contains(&token) {
        return Some(FinishReason::EndToken);
    }
    let full = sequence.history.generated().len() >= sequence.limits.max_tokens;
    full.then_some(FinishReason::Length)
}

/// Turns a token that was taken into text and reports it. Gives the reason if the sequence has come to its end.
pub(super) fn tell(sequence: &mut Sequence, draw: Draw, ended: Option<FinishReason>) -> Option<FinishReason> {
    // A token that ends the text is not part of it, whatever the tokenizer would make of it.
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

/// Reports the end of a sequence.
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
    // Nobody listens any more when the front end is gone; that is not an error.
    sequence.outlet.sink.try_send(Event::Done(done)).ok();
}
