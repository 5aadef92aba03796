//! A worker's connection to rank 0. Its layers use it in the middle of a pass, too.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use safetensors::Dtype;

use super::connection::{Connection, Outcome, REPLY_TIMEOUT};
use super::message::{Reply, Request};
use crate::error::{Error, Result};
use crate::weights::AllReduce;

/// The connection to the rank 0 that this worker works for, while there is one.
#[derive(Default)]
pub(super) struct ServerConnection(Mutex<Option<Connection>>);

impl ServerConnection {
    /// Sets the connection of a rank 0 that was let in.
    pub(super) fn connect(&self, connection: Connection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    /// Drops the connection: rank 0 was refused or has left.
    pub(super) fn hang_up(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Connection) -> Outcome<T>) -> Outcome<T> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_mut().map_or_else(|| Err("is not connected".into()), use_it)
    }

    /// Returns the next request, or `None` if none has come until then.
    pub(super) fn receive(&self, until: Instant) -> Outcome<Option<(Request, Vec<u8>)>> {
        self.with(|connection| connection.receive(until))
    }

    /// Checks that rank 0, which waits for a reply, is still connected.
    pub(super) fn look(&self) -> Outcome<()> {
        self.with(Connection::look)
    }

    /// Sends a reply and its payload.
    pub(super) fn send(&self, reply: &Reply, payload: &[u8]) -> Outcome<()> {
        self.with(|connection| connection.send(reply, payload))
    }
}

impl AllReduce for ServerConnection {
    fn sum(&self, _dtype: Dtype, part: Vec<u8>) -> Result<Vec<u8>> {
        let sum = self.with(|connection| {
            connection.send_late(&Reply::Partial, &part)?;
            match connection.expect(REPLY_TIMEOUT)? {
                (Request::Sum, sum) if sum.len() == part.len() => Ok(sum),
                _ => Err("sent something else than the sum".into()),
            }
        });
        sum.map_err(|error| Error::Distributed(format!("rank 0 {error}")))
    }
}
