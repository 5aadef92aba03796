//! What becomes of a drawn token: it is accepted, turned into text, reported, and may end the sequence.

use super::follower::Piece;
use super::options::Exactness;
use super::request::{Event, FinishReason, Finished, TokenOutput};
use super::sequence::Sequence;
use crate::sampling::Draw;

/// Accepts a token. Gives the reason if the sequence has come to its end.
pub(super) fn accept(sequence: &mut Sequence, draw: Draw) -> Option<FinishReason> {
    sequence.mark_token();
    sequence.history.push(draw.token);
    let ended = sequence.limits.end_tokens.contains(&draw.token);
    // A token that ends the text is not part of it, whatever the tokenizer would make of it.
    let piece = if ended { Piece::default() } else { sequence.text.sync(&sequence.history) };
    let output = TokenOutput { id: draw.token, text: piece.text, delta: piece.delta, logprob: draw.logprob };
    if sequence.sink.try_send(Event::Token(output)).is_err() {
        return Some(FinishReason::Cancelled);
    }
    if ended {
        return Some(FinishReason::EndToken);
    }
    if let Some(index) = piece.matched {
        return Some(FinishReason::StopString(sequence.limits.stop[index].clone()));
    }
    let full = sequence.history.generated().len() >= sequence.limits.max_tokens;
    full.then_some(FinishReason::Length)
}

/// Reports the end of a sequence.
pub(super) fn finish(mut sequence: Sequence, mut reason: FinishReason) {
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
    let done = Finished { reason, delta: rest.delta, usage, timings, exactness: Exactness::Sampling };
    // Nobody listens any more when the front end is gone; that is not an error.
    sequence.sink.try_send(Event::Done(done)).ok();
}
