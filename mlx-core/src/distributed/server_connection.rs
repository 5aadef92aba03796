//! A worker's connection to rank 0. Without a group in MLX, the worker's layers also use it in the middle of a pass.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use mlx_rs::Array;

use super::background::Background;
use super::connection::{Outcome, REPLY_TIMEOUT};
use super::message::{Reply, Request};
use crate::array;
use crate::error::{Error, Result};
use crate::weights::AllReduce;

/// The connection to the current rank 0, if there is one.
#[derive(Default)]
pub(super) struct ServerConnection(Mutex<Option<Background<Request>>>);

impl ServerConnection {
    /// Sets the connection to an admitted rank 0.
    pub(super) fn connect(&self, connection: Background<Request>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    /// Drops the connection to rank 0.
    pub(super) fn hang_up(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn with<T>(&self, use_it: impl FnOnce(&Background<Request>) -> Outcome<T>) -> Outcome<T> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().map_or_else(|| Err("is not connected".into()), use_it)
    }

    /// Returns the next request, or `None` at the deadline.
    pub(super) fn receive(&self, until: Instant) -> Outcome<Option<(Request, Vec<u8>)>> {
        self.with(|connection| connection.receive(until))
    }

    /// Checks that rank 0 is still connected while it waits for a reply.
    pub(super) fn look(&self) -> Outcome<()> {
        self.with(Background::look)
    }

    /// Sends a reply and its payload.
    pub(super) fn send(&self, reply: &Reply, payload: &[u8]) -> Outcome<()> {
        self.with(|connection| connection.send(reply, payload))
    }
}

impl AllReduce for ServerConnection {
    fn sum(&self, part: &Array) -> Result<Array> {
        let (dtype, bytes) = array::to_bytes(part)?;
        let sum = self.with(|connection| {
            connection.send(&Reply::Partial, &bytes)?;
            match connection.expect(REPLY_TIMEOUT)? {
                (Request::Sum, sum) if sum.len() == bytes.len() => Ok(sum),
                _ => Err("sent an unexpected request instead of the sum".into()),
            }
        });
        let sum = sum.map_err(|error| Error::Distributed(format!("rank 0 {error}")))?;
        let shape: Vec<usize> = part.shape().iter().map(|&size| size as usize).collect();
        array::of_file(&sum, dtype, &shape)
    }
}
