//! How many places each client and each request has: what has none may take one from what has several. Invariant: pure.

use std::collections::BTreeMap;

use super::Ticket;
use crate::engine::client::Client;

/// Running sequences by client and by request.
#[derive(Clone)]
pub(super) struct Shares {
    clients: BTreeMap<Client, usize>,
    requests: BTreeMap<(Client, u64), usize>,
}

impl Shares {
    /// The shares of what runs.
    pub(super) fn new(running: impl Iterator<Item = Ticket>) -> Self {
        let (mut clients, mut requests) = (BTreeMap::new(), BTreeMap::new());
        for Ticket { client, request, .. } in running {
            *clients.entry(client).or_default() += 1;
            *requests.entry((client, request)).or_default() += 1;
        }
        Self { clients, requests }
    }

    /// Whether a waiting sequence has no place while there is one that it may take, but for priorities.
    pub(super) fn is_short(&self, own: Ticket) -> bool {
        let Ticket { client, request, .. } = own;
        if !self.clients.contains_key(&client) {
            return self.clients.values().any(|places| *places > 1);
        }
        let mut of_client = self.requests.range((client, 0)..=(client, u64::MAX));
        !self.requests.contains_key(&(client, request)) && of_client.any(|(_, places)| *places > 1)
    }

    /// Whether a waiting sequence may take the place of a running one: a client without a place takes one of a client with several, and a request
    /// without a place one of a request with several of the same client. So places only become more even, and none is taken back.
    pub(super) fn yields(&self, other: Ticket, own: Ticket) -> bool {
        let (own_request, other_request) = ((own.client, own.request), (other.client, other.request));
        let is_fair = if own.client == other.client {
            !self.requests.contains_key(&own_request) && self.requests.get(&other_request) > Some(&1)
        } else {
            !self.clients.contains_key(&own.client) && self.clients.get(&other.client) > Some(&1)
        };
        is_fair && other.priority <= own.priority
    }

    /// Removes the place of a running sequence.
    pub(super) fn remove(&mut self, other: Ticket) {
        self.clients.entry(other.client).and_modify(|places| *places -= 1);
        self.requests.entry((other.client, other.request)).and_modify(|places| *places -= 1);
    }
}
