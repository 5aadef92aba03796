//! Measures the links between this machine and the workers of a model.

use std::time::{Duration, Instant};

use super::load::greet;
use super::loading::failed;
use super::worker_client::WorkerClient;
use super::workers::Workers;
use crate::error::Result;

/// The number of round trips; the median counts.
const ROUND_TRIPS: usize = 31;

/// The number of large messages; the fastest counts.
const LARGE: usize = 3;

/// Bytes of a large message.
const LARGE_BYTES: usize = 8 << 20;

/// A measured link to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The worker's rank and address.
    pub worker: String,
    /// The time of a short message to the worker and back.
    pub round_trip: Duration,
    /// Bytes per second in one direction.
    pub bytes_per_second: f64,
    /// The worker's memory budget in bytes.
    pub memory_budget: u64,
}

/// Measures the links to all workers, one after the other.
///
/// # Errors
/// If a worker is not there or works for another rank 0. The error names it.
pub fn measure_links(workers: &Workers) -> Result<Vec<Link>> {
    let of_worker = |(place, address): (usize, &String)| {
        let (key, timeout) = (&workers.key, workers.heartbeat_timeout);
        let mut client = WorkerClient::new(address, place + 1, key, timeout, None);
        let memory_budget = greet(&mut client, Instant::now() + workers.connect_timeout)?;
        let time = |payload: &[u8]| {
            let begun = Instant::now();
            client.echo(payload).map_err(|message| failed(&client, &message))?;
            Ok(begun.elapsed())
        };
        // The first message waits for the start of the worker's process.
        time(&[0])?;
        let mut short = (0..ROUND_TRIPS).map(|_| time(&[0])).collect::<Result<Vec<Duration>>>()?;
        short.sort_unstable();
        let round_trip = short[ROUND_TRIPS / 2];
        let large = vec![0; LARGE_BYTES];
        let large = (0..LARGE).map(|_| time(&large)).collect::<Result<Vec<Duration>>>()?;
        let fastest = large.into_iter().min().unwrap_or_default().saturating_sub(round_trip);
        let bytes_per_second = 2.0 * LARGE_BYTES as f64 / fastest.as_secs_f64().max(1e-9);
        Ok(Link { worker: client.name(), round_trip, bytes_per_second, memory_budget })
    };
    workers.addresses.iter().enumerate().map(of_worker).collect()
}
