//! Thousands of random days of an engine with a fake device and a fake clock: scheduler, ledger, pace and chunks at work together.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::time::Duration;

use super::chunks::Chunks;
use super::options::Priority;
use super::pace::{Pace, work};
use super::scheduler::{Change, Scheduler};
use super::sequence::Next;

const PATTERNS: u64 = 2000;
/// Small, so that promises are extended often.
const GROWTH: usize = 8;
// What the pace promises is said again here, so that a slip there shows.
const SHARE: f64 = 1.6;
const LEAST: f64 = 0.002;
/// After this many new measurements an old one counts for a hundredth.
const MEMORY: usize = 16;
/// Rounding of sums of seconds.
const SLACK: f64 = 1e-6;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (mix(self.0) % end as u64) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.below(1 << 40) as f64 / (1u64 << 40) as f64
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

/// Bytes of a sequence of `tokens` tokens.
fn need(tokens: usize) -> u64 {
    40 + 3 * tokens as u64
}

/// What a cache knows after one more token; the next token is drawn from that.
fn see(seen: u64, token: u64) -> u64 {
    mix(seen ^ token)
}

/// A device, and the limits of an engine on it.
struct Device {
    layers: usize,
    /// Seconds of a step, of each of its rows, and of a unit of prefill work.
    step: f64,
    row: f64,
    unit: f64,
    /// How wrong the unit is about depth, and how much every time varies.
    depth: f64,
    noise: f64,
    /// The share of steps in company that fail.
    failing: f64,
    works_ahead: bool,
    max_running: usize,
    budget: u64,
}

impl Device {
    /// With room for `largest`: what could not run alone is refused before the scheduler sees it.
    fn random(random: &mut Random, largest: u64) -> Self {
        let step = 10f64.powf(random.between(-3.5, -0.5));
        Self {
            layers: 1 + random.below(6),
            step,
            row: step * random.between(0.0, 0.3),
            unit: step * random.between(0.05, 2.0) / work(64, 64),
            depth: random.between(0.6, 1.6),
            noise: [0.0, 0.1, 0.3][random.below(3)],
            failing: if random.chance(0.25) { 0.03 } else { 0.0 },
            works_ahead: random.chance(0.5),
            max_running: 1 + random.below(6),
            budget: (largest as f64 * random.between(1.0, 2.5)) as u64,
        }
    }

    fn step_seconds(&self, rows: usize) -> f64 {
        self.step + self.row * rows as f64
    }

    fn layer_seconds(&self, rows: usize, depth: usize) -> f64 {
        self.unit * (work(rows, 0) + self.depth * (work(rows, depth) - work(rows, 0)))
    }

    /// By how much two measurements of a unit may differ.
    fn band(&self) -> f64 {
        (1.0 + self.noise) / (1.0 - self.noise) * self.depth.max(1.0) / self.depth.min(1.0)
    }
}

#[derive(Clone, Copy, Default)]
struct Request {
    arrival: f64,
    priority: Priority,
    prompt: usize,
    most: usize,
    promise: usize,
    cancelled: f64,
}

impl Request {
    fn random(random: &mut Random, span: f64) -> Self {
        let prompt = 1 + if random.chance(0.1) { random.below(1500) } else { random.below(150) };
        let most = prompt + 1 + random.below(40);
        let promise = if random.chance(0.6) { most.min(prompt + GROWTH) } else { most };
        let arrival = random.between(0.0, span);
        let cancelled = if random.chance(0.1) { arrival + random.between(0.0, 60.0) } else { f64::INFINITY };
        let priority = [Priority::Low, Priority::Normal, Priority::High][random.below(3)];
        Self { arrival, priority, prompt, most, promise, cancelled }
    }
}

#[derive(Default)]
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

#[derive(Default)]
struct Sequence {
    id: u64,
    request: Request,
    came: f64,
    rank: (Duration, u64),
    history: Vec<u64>,
    run: Option<Run>,
    first_start: Option<f64>,
    last_token: Option<f64>,
    end: f64,
    preemptions: usize,
    put_backs: usize,
}

impl Sequence {
    fn new(id: u64, request: Request, came: f64) -> Self {
        let handicap = [40, 10, 0][request.priority as usize];
        let rank = (Duration::from_secs_f64(came) + Duration::from_secs(handicap), id);
        let history = (0..request.prompt as u64).map(|place| mix(id << 32 | place)).collect();
        Self { id, request, came, rank, history, ..Self::default() }
    }

    fn next(&self) -> Next {
        let (last, prompt) = (self.history.len() - 1, self.request.prompt);
        match self.run.as_ref().map(|run| run.offset) {
            Some(offset) if offset < prompt => Next::Prompt(prompt),
            Some(offset) if offset < last => Next::Replay(last),
            Some(offset) if offset == last => Next::Step,
            _ => Next::Nothing,
        }
    }

    fn fills(&self) -> bool {
        matches!(self.next(), Next::Prompt(_) | Next::Replay(_))
    }

    fn displaces(&self, other: &Self) -> bool {
        other.run.is_some() && other.request.priority < self.request.priority && other.rank > self.rank
    }

    fn is_over(&self) -> bool {
        self.history.len() == self.request.most
    }

    /// Whether it has said what it would have said alone.
    fn is_undisturbed(&self) -> bool {
        let (prompt, answer) = self.history.split_at(self.request.prompt);
        let mut seen = prompt.iter().fold(self.id, |seen, &token| see(seen, token));
        let as_drawn = |&token: &u64| std::mem::replace(&mut seen, see(seen, !seen)) == !token;
        answer.iter().all(as_drawn) && self.is_over()
    }
}

/// The engine's loop around the parts under test.
struct Simulation {
    seed: u64,
    device: Device,
    random: Random,
    now: f64,
    scheduler: Scheduler,
    pace: Pace,
    sequences: BTreeMap<u64, Sequence>,
    ended: Vec<Sequence>,
    /// Who is in the step on the device; the seconds that steps took.
    step: Vec<u64>,
    steps: Vec<f64>,
    /// The most seconds that this turn's fills may take.
    fills: f64,
    last_filled: u64,
    trace: Vec<(f64, &'static str, u64)>,
}

impl Simulation {
    fn run(seed: u64) -> Self {
        let mut random = Random(seed);
        let span = [0.0, 3.0, 30.0, 120.0][random.below(4)];
        let mut requests: Vec<_> = (0..=random.below(18)).map(|_| Request::random(&mut random, span)).collect();
        requests.sort_by(|one, other| one.arrival.total_cmp(&other.arrival));
        let largest = requests.iter().map(|it| need(it.most)).max().expect("there is at least one");
        let device = Device::random(&mut random, largest);
        let scheduler = Scheduler::new(device.max_running, device.budget);
        let (pace, sequences, ended) = (Pace::default(), BTreeMap::new(), Vec::new());
        let (step, steps, trace) = (Vec::new(), Vec::new(), Vec::new());
        let (now, fills, last_filled) = (0.0, 0.0, 0);
        let mut simulation = Self { seed, device, random, now, scheduler, pace, sequences, ended, step, steps, fills, last_filled, trace };
        simulation.work_through(&requests);
        simulation
    }

    fn work_through(&mut self, requests: &[Request]) {
        let mut coming = requests.iter().zip(1..).peekable();
        while let Some(&(first, _)) = coming.peek().or_else() {
        }
    }
}
