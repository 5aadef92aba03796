//! Thousands of random days of an engine with a fake device and a fake clock: what scheduler, ledger, pace and chunks promise
//! has to hold when they work together, in the order in which the engine's turns use them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::chunks::Chunks;
use super::options::Priority;
use super::pace::{Pace, work};
use super::scheduler::{Change, Scheduler};
use super::sequence::Next;

const PATTERNS: u64 = 2000;

/// Small, so that promises are extended often.
const GROWTH: usize = 8;

// What the pace promises, said again, so that a slip there shows here.
const SHARE: f64 = 1.6;
const LEAST: f64 = 0.002;

/// After this many new measurements an old one counts for a hundredth.
const MEMORY: usize = 16;

/// Rounding of sums of seconds.
const SLACK: f64 = 1e-6;

/// SplitMix64: the same seed gives the same day.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.between(0.0, 1.0) < probability
    }
}

fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[derive(Clone, Copy)]
struct Request {
    arrival: f64,
    priority: Priority,
    prompt: usize,
    answer: usize,
    open_ended: bool,
    cancelled: f64,
}

impl Request {
    fn random(random: &mut Random, span: f64) -> Self {
        let longest = if random.chance(0.1) { 1500 } else { 150 };
        let arrival = random.between(0.0, span);
        let cancelled = if random.chance(0.1) { arrival + random.between(0.0, 60.0) } else { f64::INFINITY };
        Self {
            arrival,
            priority: [Priority::Low, Priority::Normal, Priority::High][random.below(3)],
            prompt: 1 + random.below(longest),
            answer: 1 + random.below(40),
            open_ended: random.chance(0.6),
            cancelled,
        }
    }

    fn first_promise(&self) -> usize {
        self.prompt + if self.open_ended { self.answer.min(GROWTH) } else { self.answer }
    }

    fn most_growths(&self) -> usize {
        (self.prompt + self.answer - self.first_promise()).div_ceil(GROWTH)
    }
}

/// Bytes of a sequence of `tokens` tokens.
fn need(tokens: usize) -> u64 {
    40 + 3 * tokens as u64
}

/// A device that takes time and makes tokens of what its cache has seen.
struct Device {
    layers: usize,
    chunks: Chunks,
    /// Seconds of a step, and of each of its rows.
    step: (f64, f64),
    /// Seconds of a unit of work.
    unit: f64,
    /// How wrong the unit is about depth, and everything about everything.
    depth: f64,
    noise: f64,
    /// How many steps of company fail.
    failing: f64,
    works_ahead: bool,
}

impl Device {
    fn random(random: &mut Random) -> Self {
        let step = 10f64.powf(random.between(-3.5, -0.5));
        Self {
            layers: 1 + random.below(6),
            chunks: Chunks::new(false),
            step: (step, step * random.between(0.0, 0.3)),
            unit: step * random.between(0.05, 2.0) / work(64, 64),
            depth: random.between(0.6, 1.6),
            noise: [0.0, 0.1, 0.3][random.below(3)],
            failing: if random.chance(0.25) { 0.03 } else { 0.0 },
            works_ahead: random.chance(0.5),
        }
    }

    fn step_seconds(&self, rows: usize) -> f64 {
        self.step.0 + self.step.1 * rows as f64
    }

    fn layer_seconds(&self, rows: usize, depth: usize) -> f64 {
        self.unit * (work(rows, 0) + self.depth * (work(rows, depth) - work(rows, 0)))
    }

    /// By how much two measurements of a unit may differ.
    fn band(&self) -> f64 {
        (1.0 + self.noise) / (1.0 - self.noise) * self.depth.max(1.0) / self.depth.min(1.0)
    }
}

struct Pattern {
    seed: u64,
    requests: Vec<Request>,
    device: Device,
    budget: u64,
    max_running: usize,
}

impl Pattern {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let span = [0.0, 3.0, 30.0, 120.0][random.below(4)];
        let mut requests: Vec<_> =
            (0..=random.below(18)).map(|_| Request::random(&mut random, span)).collect();
        requests.sort_by(|one, other| one.arrival.total_cmp(&other.arrival));
        // What could not run alone is refused before it gets here.
        let largest = requests.iter().map(|it| need(it.prompt + it.answer)).max().expect("at least one");
        let budget = (largest as f64 * random.between(1.0, 2.5)) as u64;
        Self { seed, requests, device: Device::random(&mut random), budget, max_running: 1 + random.below(6) }
    }
}

struct Run {
    offset: usize,
    /// What the cache knows of the tokens up to the offset.
    seen: u64,
    /// Layers of the pass that has begun.
    layer: usize,
    /// Turns since its last chunk, and who has begun one since.
    turns: usize,
    others: BTreeSet<u64>,
}

struct Sequence {
    id: u64,
    request: Request,
    came: f64,
    rank: (Duration, u64),
    history: Vec<u64>,
    promise: usize,
    run: Option<Run>,
    last_token: Option<f64>,
    first_start: Option<f64>,
    end: Option<f64>,
    put_backs: usize,
    preemptions: usize,
    growths: usize,
}

impl Sequence {
    fn new(id: u64, request: Request, came: f64) -> Self {
        let handicap = match request.priority {
            Priority::High => 0,
            Priority::Normal => 10,
            Priority::Low => 40,
        };
        Self {
            id,
            request,
            came,
            rank: (Duration::from_secs_f64(came) + Duration::from_secs(handicap), id),
            history: (0..request.prompt as u64).map(|place| mix(id << 32 | place)).collect(),
            promise: request.first_promise(),
            run: None,
            last_token: None,
            first_start: None,
            end: None,
            put_backs: 0,
            preemptions: 0,
            growths: 0,
        }
    }

    fn next(&self) -> Next {
        let Some(run) = &self.run else { return Next::Nothing };
        match (run.offset, self.history.len() - 1) {
            (offset, _) if offset < self.request.prompt => Next::Prompt(self.request.prompt),
            (offset, last) if offset < last => Next::Replay(last),
            (offset, last) if offset == last => Next::Step,
            _ => Next::Nothing,
        }
    }

    fn fills(&self) -> bool {
        matches!(self.next(), Next::Prompt(_) | Next::Replay(_))
    }

    fn is_over(&self) -> bool {
        self.history.len() == self.request.prompt + self.request.answer
    }

    /// What it would have said alone.
    fn undisturbed(&self) -> Vec<u64> {
        let mut history = self.history[..self.request.prompt].to_vec();
        let mut seen = history.iter().fold(self.id, |seen, token| mix(seen ^ token));
        for _ in 0..self.request.answer {
            history.push(!seen);
            seen = mix(seen ^ !seen);
        }
        history
    }
}
