//! Chooses the texts of the next pass. Invariant: pure. It handles ids, lengths and times, never arrays or tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::schedule::{Ticket, priority_delay};
use crate::sentence_transformers::Poolings;

/// Tokens of padding that a pass may have in addition to an eighth of its tokens.
const PADDING: usize = 16;

/// A running text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) tokens: usize,
    pub(super) ticket: Ticket,
    pub(super) arrived: Duration,
    /// The poolings of its vector; `None` for logits. Texts of a pass have the same.
    pub(super) poolings: Option<Poolings>,
    /// True if it shares no pass.
    pub(super) is_alone: bool,
}

/// The times at which clients and requests last had a turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    clients: BTreeMap<Client, Duration>,
    requests: BTreeMap<u64, Duration>,
}

impl Turns {
    /// Returns the texts of the next pass. `most` returns their maximum number for a length with padding. Clients, and then the requests of a
    /// client, take turns to choose its first text; a priority is equivalent to waiting time. The texts nearest in length fill the pass.
    pub(super) fn next(
        &mut self,
        running: &[Waiting],
        most: impl Fn(usize) -> usize,
        now: Duration,
    ) -> Vec<u64> {
        let Some(first) = running.iter().min_by_key(|it| self.rank(it)).copied() else { return Vec::new() };
        self.clients.insert(first.ticket.client, now);
        self.requests.insert(first.ticket.request, now);
        self.clients.retain(|client, _| running.iter().any(|it| it.ticket.client == *client));
        self.requests.retain(|request, _| running.iter().any(|it| it.ticket.request == *request));
        if first.is_alone {
            return vec![first.id];
        }
        let fits = |it: &&Waiting| it.id != first.id && !it.is_alone && it.poolings == first.poolings;
        let mut others: Vec<&Waiting> = running.iter().filter(fits).collect();
        others.sort_by_key(|it| (it.tokens.abs_diff(first.tokens), it.id));
        let (mut pass, mut tokens, mut longest) = (vec![first.id], first.tokens, first.tokens);
        for other in others {
            let longest_with = longest.max(other.tokens);
            let (padded, real) = ((pass.len() + 1) * longest_with, tokens + other.tokens);
            if pass.len() >= most(longest_with) || padded > real + real / 8 + PADDING {
                break;
            }
            pass.push(other.id);
            (tokens, longest) = (real, longest_with);
        }
        pass
    }

    /// Returns a sort key; the smallest comes next.
    fn rank(&self, text: &Waiting) -> (Duration, Duration, Duration, u64) {
        let delay = priority_delay(text.ticket.priority);
        let due = text.arrived + delay;
        let turn = |last: Option<&Duration>| last.map_or(due, |last| due.max(*last + delay));
        let client = turn(self.clients.get(&text.ticket.client));
        (client, turn(self.requests.get(&text.ticket.request)), due, text.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::client::Priority;

    fn of_tokens(pass: usize) -> impl Fn(usize) -> usize {
        move |length| (pass / length).max(1)
    }

    fn text(id: u64, tokens: usize) -> Waiting {
        let ticket = Ticket { client: Client(0), request: 1, priority: Priority::Normal };
        let poolings = Some(crate::sentence_transformers::Pooling::Mean.into());
        Waiting { id, tokens, ticket, arrived: Duration::ZERO, poolings, is_alone: false }
    }

    #[test]
    fn texts_of_similar_length_share_a_pass() {
        let running = [text(1, 10), text(2, 500), text(3, 11), text(4, 490), text(5, 9), text(6, 30)];
        let mut turns = Turns::default();
        assert_eq!(turns.next(&running, of_tokens(1024), Duration::ZERO), [1, 3, 5]);
        assert_eq!(turns.next(&running[1..2], of_tokens(1024), Duration::ZERO), [2]);
        assert_eq!(turns.next(&[text(2, 500), text(4, 490)], of_tokens(1024), Duration::ZERO), [2, 4]);
        assert_eq!(
            turns.next(&[text(2, 520), text(4, 490)], of_tokens(1024), Duration::ZERO),
            [2],
            "two are too many"
        );
        assert_eq!(turns.next(&[text(7, 9000)], of_tokens(1024), Duration::ZERO), [7], "longer than a pass");
    }

    #[test]
    fn exact_texts_and_other_poolings_share_no_pass() {
        let alone = Waiting { is_alone: true, ..text(2, 10) };
        let other = Waiting { poolings: None, ..text(3, 10) };
        let mut turns = Turns::default();
        assert_eq!(
            turns.next(&[text(1, 10), alone, other, text(4, 10)], of_tokens(1024), Duration::ZERO),
            [1, 4]
        );
        assert_eq!(turns.next(&[alone, text(4, 10)], of_tokens(1024), Duration::ZERO), [2]);
    }

    #[test]
    fn clients_and_requests_take_turns_and_high_priority_comes_first() {
        let of = |id, client, request, priority| Waiting {
            ticket: Ticket { client: Client(client), request, priority },
            tokens: 10 * id as usize,
            ..text(id, 0)
        };
        let normal = Priority::Normal;
        let mut running =
            vec![of(1, 1, 1, normal), of(2, 1, 1, normal), of(3, 1, 2, normal), of(4, 2, 3, normal)];
        let mut turns = Turns::default();
        let mut order = Vec::new();
        for second in 1..=4 {
            let id = turns.next(&running, of_tokens(1), Duration::from_secs(second))[0];
            running.retain(|it| it.id != id);
            order.push(id);
        }
        assert_eq!(order, [1, 4, 3, 2], "the other client, then the other request");
        let high = [of(5, 1, 1, normal), of(6, 1, 2, Priority::High)];
        assert_eq!(Turns::default().next(&high, of_tokens(1), Duration::ZERO)[0], 6);
    }
}
