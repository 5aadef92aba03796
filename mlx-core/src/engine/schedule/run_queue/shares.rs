//! The number of slots of each client and each request. One without a slot may take one from another with several. Invariant: pure.

use std::collections::BTreeMap;

use super::Ticket;
use crate::engine::client::Client;

/// The numbers of running sequences by client and by request.
#[derive(Clone)]
pub(super) struct Shares {
    clients: BTreeMap<Client, usize>,
    requests: BTreeMap<(Client, u64), usize>,
}

impl Shares {
    /// Counts the running sequences.
    pub(super) fn new(running: impl Iterator<Item = Ticket>) -> Self {
        let (mut clients, mut requests) = (BTreeMap::new(), BTreeMap::new());
        for Ticket { client, request, .. } in running {
            *clients.entry(client).or_default() += 1;
            *requests.entry((client, request)).or_default() += 1;
        }
        Self { clients, requests }
    }

    /// Returns true if the client or request of a waiting sequence has no slot while there is one that it may take, ignoring priorities.
    pub(super) fn is_short(&self, own: Ticket) -> bool {
        let Ticket { client, request, .. } = own;
        if !self.clients.contains_key(&client) {
            return self.clients.values().any(|places| *places > 1);
        }
        let mut of_client = self.requests.range((client, 0)..=(client, u64::MAX));
        !self.requests.contains_key(&(client, request)) && of_client.any(|(_, places)| *places > 1)
    }

    /// Returns true if a waiting sequence may take the slot of a running one. A client without a slot takes one from a client with several.
    /// A request without a slot takes one from a request with several of the same client. So slots only become more even, and none is taken
    /// back.
    pub(super) fn may_take_slot(&self, other: Ticket, own: Ticket) -> bool {
        let (own_request, other_request) = ((own.client, own.request), (other.client, other.request));
        let is_fair = if own.client == other.client {
            !self.requests.contains_key(&own_request) && self.requests.get(&other_request) > Some(&1)
        } else {
            !self.clients.contains_key(&own.client) && self.clients.get(&other.client) > Some(&1)
        };
        is_fair && other.priority <= own.priority
    }

    /// Removes the slot of a running sequence.
    pub(super) fn remove(&mut self, other: Ticket) {
        self.clients.entry(other.client).and_modify(|places| *places -= 1);
        self.requests.entry((other.client, other.request)).and_modify(|places| *places -= 1);
    }
}
