//! Handles drawn tokens. A token is accepted into the history at once, so that the next step can begin, and emitted as text and events
//! while the device works. Accepting or emitting it may end the sequence.

mod repetition;

use self::repetition::repeated;
use super::event::{Event, FinishReason, Finished, TokenOutput};
use super::options::Exactness;
use super::sequence::{Piece, Sequence};
use super::usage::Usage;
use crate::sampling::Draw;

/// A token that was accepted into the history of a sequence but not yet emitted.
pub(super) struct Accepted {
    pub(super) id: u64,
    draw: Draw,
    /// The decoded text of the token, if it was decoded.
    piece: Option<Piece>,
    /// The reason why it is the last token, if it is.
    ended: Option<FinishReason>,
}

/// Accepts the tokens of an earlier run, which emitted them. The last of them may end the sequence.
pub(super) fn replay(sequence: &mut Sequence, tokens: &[u32]) {
    let Some((&last, earlier)) = tokens.split_last() else { return };
    for &token in earlier {
        sequence.history.push(token);
    }
    sequence.text.sync(&sequence.history);
    let mut ended = accept_token(sequence, last);
    // An end-of-sequence token is not part of the text.
    if !matches!(ended, Some(FinishReason::EndToken)) {
        let piece = sequence.text.sync(&sequence.history);
        ended = stop_string(sequence, &piece).or(ended);
    }
    sequence.ended = ended;
    sequence.emitted = tokens.len();
}

/// Accepts a token into the history. If it is the last one, the sequence has ended except for the emission.
pub(super) fn accept(id: u64, sequence: &mut Sequence, draw: Draw) -> Accepted {
    sequence.mark_token();
    let ended = accept_token(sequence, draw.token);
    sequence.ended.clone_from(&ended);
    Accepted { id, draw, piece: None, ended }
}

/// Adds a token to the history. Returns the reason if it is the last one, regardless of the text.
fn accept_token(sequence: &mut Sequence, token: u32) -> Option<FinishReason> {
    sequence.history.push(token);
    let full = sequence.history.generated().len() >= sequence.limits.max_tokens;
    if sequence.limits.end_tokens.contains(&token) {
        Some(FinishReason::EndToken)
    } else {
        full.then_some(FinishReason::Length)
    }
}

/// Returns the stop string that ends the text in this piece, if there is one.
fn stop_string(sequence: &Sequence, piece: &Piece) -> Option<FinishReason> {
    piece.matched.map(|index| FinishReason::StopString(sequence.limits.stop[index].clone()))
}

impl Accepted {
    /// Decodes this token, which must be the newest of its sequence. A stop string may end the text here.
    pub(super) fn decode(&mut self, sequence: &mut Sequence) {
        // An end-of-sequence token is not part of the text.
        if self.piece.is_some() || matches!(self.ended, Some(FinishReason::EndToken)) {
            return;
        }
        let piece = sequence.text.sync(&sequence.history);
        if let Some(stop) = stop_string(sequence, &piece) {
            self.ended = Some(stop);
            sequence.ended.clone_from(&self.ended);
        }
        self.piece = Some(piece);
    }
}

/// Turns an accepted token into text and emits it. Returns the reason if the sequence ends.
pub(super) fn emit(sequence: &mut Sequence, mut accepted: Accepted) -> Option<FinishReason> {
    accepted.decode(sequence);
    let Accepted { draw, piece, ended, .. } = accepted;
    let Piece { text, delta, .. } = piece.unwrap_or_default();
    let output = TokenOutput { id: draw.token, text, delta, logprob: draw.logprob };
    sequence.outlet.sink.record(&sequence.usage());
    if !sequence.outlet.sink.send(Event::Token(output)) {
        return Some(FinishReason::Cancelled);
    }
    sequence.emitted += 1;
    ended
}

/// Emits the end of a sequence.
pub(super) fn finish(sequence: &mut Sequence, mut reason: FinishReason, exactness: Exactness) {
    // After a stop string there is no more text. Otherwise the held-back end of the text may still complete a stop string.
    let rest = match reason {
        FinishReason::StopString(_) => Piece::default(),
        _ => sequence.text.finish(),
    };
    // A failure or a cancellation is never reported as a stop.
    if let (Some(index), FinishReason::EndToken | FinishReason::Length) = (rest.matched, &reason) {
        reason = FinishReason::StopString(sequence.limits.stop[index].clone());
    }
    let repeated_tokens = repeated(sequence.history.generated());
    let (usage, timings) = (Usage { repeated_tokens, ..sequence.usage() }, sequence.timings());
    let done = Finished { reason, delta: rest.delta, usage, timings, exactness };
    // The client may have disconnected, which is not an error.
    sequence.outlet.sink.send(Event::Done(done));
}
