//! Measures the exchanges of the ranks' group in MLX, which carries hidden states and sums. All ranks run the same exchanges.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::connection::Outcome;
use super::group::{self, RankGroup};
use super::group_start::GroupStart;
use super::load::{greet, group_file, join};
use super::loading::failed;
use super::message::{MeasureRequest, Request};
use super::worker_client::WorkerClient;
use super::workers::Workers;
use crate::error::Result;

/// Bytes of a small array, about those of a token's hidden state.
const SMALL: usize = 8 << 10;

/// Bytes of a large array.
const LARGE: usize = 8 << 20;

/// The number of exchanges of small arrays; the median counts.
const SMALL_ROUNDS: usize = 31;

/// The number of exchanges of large arrays; the fastest counts.
const LARGE_ROUNDS: usize = 3;

/// The time until another look at the workers.
const PAUSE: Duration = Duration::from_millis(20);

/// The measured time of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The seconds for an array of a few kilobytes.
    pub seconds: f64,
    /// The bytes of a large array per second.
    pub bytes_per_second: f64,
}

/// The speed of the ranks' group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupSpeed {
    /// The transfer of an array to the next rank.
    pub transfer: Exchange,
    /// The sum of the arrays of all ranks.
    pub sum: Exchange,
}

impl Exchange {
    /// Returns the seconds for `count` exchanges of `bytes` bytes in total.
    pub fn time(&self, count: usize, bytes: u64) -> f64 {
        count as f64 * self.seconds + bytes as f64 / self.bytes_per_second
    }

    /// Measures `run`, which makes `steps` exchanges of an array with this many bytes, one after the other.
    fn measure(run: impl Fn(usize) -> Result<()>, steps: usize) -> Result<Self> {
        let times = |bytes, rounds| -> Result<Vec<Duration>> {
            // The first exchange allocates memory.
            run(bytes)?;
            let time = |_| {
                let begun = Instant::now();
                run(bytes).map(|()| begun.elapsed())
            };
            let mut times = (0..rounds).map(time).collect::<Result<Vec<Duration>>>()?;
            times.sort_unstable();
            Ok(times)
        };
        let small = times(SMALL, SMALL_ROUNDS)?[SMALL_ROUNDS / 2];
        let large = times(LARGE, LARGE_ROUNDS)?[0].saturating_sub(small);
        let bytes_per_second = (steps * LARGE) as f64 / large.as_secs_f64().max(1e-9);
        Ok(Self { seconds: small.as_secs_f64() / steps as f64, bytes_per_second })
    }
}

/// Runs the exchanges of a measurement as one of the ranks.
fn exchange(group: &RankGroup) -> Result<GroupSpeed> {
    let transfer = Exchange::measure(|bytes| group.send_around(bytes), group.size())?;
    let sum = Exchange::measure(|bytes| group.sum_zeros(bytes), 1)?;
    Ok(GroupSpeed { transfer, sum })
}

/// Takes part in a measurement as a worker.
pub(super) fn take_part(request: &MeasureRequest) -> Result<()> {
    let MeasureRequest { rank, ranks, backend, group_file } = request;
    let group = group::join(*backend, group_file, *rank, *ranks)?;
    exchange(&group).map(drop)
}

/// Measures the group of this process, which is rank 0, and the workers. May wait for ever if a rank hangs.
///
/// # Errors
/// If a worker is not there, works for another rank 0, or cannot join. The error names it.
pub fn measure_group(workers: &Workers) -> Result<GroupSpeed> {
    group::expect_possible()?;
    let start = GroupStart::of_this_process(workers);
    let until = Instant::now() + workers.connect_timeout;
    let mut clients = Vec::new();
    for (place, address) in workers.addresses.iter().enumerate() {
        let (key, timeout) = (&workers.key, workers.heartbeat_timeout);
        let mut client = WorkerClient::new(address, place + 1, key, timeout, None).with_group(start);
        greet(&mut client, until)?;
        clients.push(client);
    }
    let file = group_file(workers, &clients)?;
    for (client, rank) in clients.iter().zip(1..) {
        let (backend, ranks) = (start.backend, start.ranks);
        let request = MeasureRequest { rank, ranks, backend, group_file: file.clone() };
        client.send(&Request::Measure(request), &[]).map_err(|message| failed(client, &message))?;
    }
    let of_each = |look: &dyn Fn(&WorkerClient) -> Outcome<()>| {
        clients.iter().try_for_each(|client| look(client).map_err(|message| failed(client, &message)))
    };
    let group = join(start, file, || of_each(&WorkerClient::expect_joining), PAUSE)?;
    let speed = exchange(&group)?;
    of_each(&WorkerClient::expect_measured)?;
    Ok(speed)
}
