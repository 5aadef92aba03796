//! Thousands of random days of an engine with a fake device and a fake clock: scheduler, ledger, pace and chunks at work together.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{replace, take};
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
/// The share of steps in company that fail.
const FAILING: f64 = 0.01;
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
}

fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// What a cache knows after one more token; the next token is drawn from that.
fn see(seen: u64, token: &u64) -> u64 {
    mix(seen ^ token)
}

/// Bytes of a sequence of `tokens` tokens.
fn need(tokens: usize) -> u64 {
    40 + 3 * tokens as u64
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
            works_ahead: random.below(2) == 0,
            max_running: 1 + random.below(6),
            budget: (largest as f64 * random.between(1.0, 2.5)) as u64,
        }
    }

    fn layer(&self, rows: usize, depth: usize) -> f64 {
        self.unit * (work(rows, 0) + self.depth * (work(rows, depth) - work(rows, 0)))
    }
}

#[derive(Clone, Copy, Default)]
struct Request {
    arrival: f64,
    cancelled: f64,
    priority: Priority,
    prompt: usize,
    most: usize,
    promise: usize,
}

impl Request {
    fn random(random: &mut Random, span: f64) -> Self {
        let prompt = 1 + random.below([150, 1500][usize::from(random.below(10) == 0)]);
        let most = prompt + 1 + random.below(40);
        let promise = if random.below(5) < 3 { most.min(prompt + GROWTH) } else { most };
        let arrival = random.between(0.0, span);
        let cancelled = if random.below(10) == 0 { arrival + random.between(0.0, 60.0) } else { f64::INFINITY };
        let priority = [Priority::Low, Priority::Normal, Priority::High][random.below(3)];
        Self { arrival, cancelled, priority, prompt, most, promise }
    }
}

#[derive(Default)]
struct Cache {
    offset: usize,
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
    runs: bool,
    cache: Cache,
    first_start: Option<f64>,
    last_token: Option<f64>,
    end: f64,
    preemptions: usize,
    put_backs: usize,
}

impl Sequence {
    fn new(id: u64, request: Request, came: f64) -> Self {
        let handicap = Duration::from_secs([40, 10, 0][request.priority as usize]);
        let history = (0..request.prompt as u64).map(|place| mix(id << 32 | place)).collect();
        let rank = (Duration::from_secs_f64(came) + handicap, id);
        Self { id, request, came, rank, history, ..Self::default() }
    }

    fn next(&self) -> Next {
        let (offset, last, prompt) = (self.cache.offset, self.history.len() - 1, self.request.prompt);
        match self.runs {
            true if offset < prompt => Next::Prompt(prompt),
            true if offset < last => Next::Replay(last),
            true if offset == last => Next::Step,
            _ => Next::Nothing,
        }
    }

    fn fills(&self) -> bool {
        matches!(self.next(), Next::Prompt(_) | Next::Replay(_))
    }

    fn steps(&self) -> bool {
        self.next() == Next::Step && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.history.len() == self.request.most
    }

    fn displaces(&self, other: &Self) -> bool {
        other.runs && other.request.priority < self.request.priority && other.rank > self.rank
    }

    /// Whether it has said what it would have said alone.
    fn is_undisturbed(&self) -> bool {
        let (prompt, answer) = self.history.split_at(self.request.prompt);
        let mut seen = prompt.iter().fold(self.id, see);
        self.is_over() && answer.iter().all(|token| replace(&mut seen, see(seen, token)) == !token)
    }
}

/// The engine's loop around the parts under test.
struct Simulation {
    seed: u64,
    random: Random,
    device: Device,
    scheduler: Scheduler,
    pace: Pace,
    now: f64,
    sequences: BTreeMap<u64, Sequence>,
    /// Who is in the step on the device; the seconds that steps took; the most that this turn's fills may take.
    step: Vec<u64>,
    steps: Vec<f64>,
    fills: f64,
    last_filled: u64,
    trace: Vec<(u64, &'static str, u64)>,
}

impl Simulation {
    fn run(seed: u64) -> Vec<(u64, &'static str, u64)> {
        let mut random = Random(seed << 32);
        let span = [0.0, 3.0, 30.0, 120.0][random.below(4)];
        let mut requests: Vec<_> = (0..=random.below(18)).map(|_| Request::random(&mut random, span)).collect();
        requests.sort_by(|one, other| one.arrival.total_cmp(&other.arrival));
        let largest = requests.iter().map(|it| need(it.most)).max().expect("there is at least one");
        let (device, pace, sequences) = (Device::random(&mut random, largest), Pace::default(), BTreeMap::new());
        let scheduler = Scheduler::new(device.max_running, device.budget);
        let (now, fills, last_filled, step, steps, trace) = (0.0, 0.0, 0, vec![], vec![], vec![]);
        #[rustfmt::skip]
        let mut day = Self { seed, random, device, scheduler, pace, now, sequences, step, steps, fills, last_filled, trace };
        let mut ended = Vec::new();
        for (request, id) in requests.into_iter().zip(1..) {
            while day.now < request.arrival && !day.sequences.is_empty() {
                day.turn(&mut ended);
            }
            day.now = day.now.max(request.arrival);
            day.scheduler.submit(id, request.priority, need(request.promise), Duration::from_secs_f64(day.now));
            day.sequences.insert(id, Sequence::new(id, request, day.now));
        }
        while !day.sequences.is_empty() {
            day.turn(&mut ended);
        }
        day.check_bounds(ended);
        day.trace
    }

    fn check(&self, holds: bool, broken: &str) {
        let (seed, now, last) = (self.seed, self.now, self.trace.len().saturating_sub(8));
        assert!(holds, "seed {seed} at {now:.4} s: {broken}; the last events: {:?}", &self.trace[last..]);
    }

    fn note(&mut self, event: &'static str, id: u64) {
        self.trace.push((self.now.to_bits(), event, id));
    }

    fn which(&self, wanted: impl Fn(&Sequence) -> bool) -> Vec<u64> {
        self.sequences.values().filter(|it| wanted(it)).map(|it| it.id).collect()
    }

    fn turn(&mut self, ended: &mut Vec<Sequence>) {
        let cancelled = self.which(|it| it.request.cancelled <= self.now);
        ended.extend(cancelled.into_iter().map(|id| self.end(id, "cancel")));
        self.admit();
        let (before, ready) = (self.now, take(&mut self.step));
        if !ready.is_empty() {
            self.pass_time(self.device.step + self.device.row * ready.len() as f64);
            self.steps.push(self.now - before);
            self.pace.stepped(self.now - before);
        }
        let prompts = self.fill_all(!ready.is_empty());
        let worked = self.now > before || self.sequences.is_empty();
        self.check(worked, "the device has nothing to do while requests are there");
        let fails = ready.len() > 1 && self.random.between(0.0, 1.0) < FAILING;
        for id in ready.into_iter().filter(|id| self.sequences.get(id).is_some_and(|it| it.runs)).collect::<Vec<_>>() {
            if fails { self.fail(id) } else { self.draw(id) }
        }
        prompts.into_iter().for_each(|id| self.draw(id));
        let over = self.which(Sequence::is_over);
        if self.device.works_ahead {
            self.start_step();
        }
        ended.extend(over.into_iter().map(|id| self.end(id, "end")));
        if !self.device.works_ahead {
            self.start_step();
        }
        self.check_books();
    }

    fn pass_time(&mut self, seconds: f64) {
        self.now += seconds * self.random.between(1.0 - self.device.noise, 1.0 + self.device.noise);
    }

    /// Follows the scheduler's decisions one by one, with books of its own.
    fn admit(&mut self) {
        let mut victims = Vec::new();
        for change in self.scheduler.admit() {
            match change {
                Change::Preempt(id) => victims.push(id),
                Change::Start(id) => self.start(id, &take(&mut victims)),
            }
        }
        self.check(victims.is_empty(), "displaced for nobody");
        let first = self.sequences.values().filter(|it| !it.runs).min_by_key(|it| it.rank);
        let room = first.is_some_and(|first| self.has_room(first, &self.which(|it| first.displaces(it))));
        self.check(!room, "the first in line waits although there is room");
    }

    /// Whether `one` could start if `victims` were gone.
    fn has_room(&self, one: &Sequence, victims: &[u64]) -> bool {
        let stay = self.which(|it| it.runs && !victims.contains(&it.id));
        let promises = stay.iter().map(|id| need(self.sequences[id].request.promise)).sum::<u64>();
        stay.len() < self.device.max_running && promises + need(one.request.promise) <= self.device.budget
    }

    fn start(&mut self, id: u64, victims: &[u64]) {
        let own = &self.sequences[&id];
        let overtaken = self.which(|it| !it.runs && it.rank < own.rank && !victims.contains(&it.id));
        self.check(overtaken.is_empty(), "overtaken by one that came later by more than the handicap");
        let later = |it: &Sequence| it.id > id && it.request.priority == own.request.priority;
        let started = self.which(|it| later(it) && it.first_start.is_some() && own.first_start.is_none());
        self.check(started.is_empty(), "not first come first served within a priority");
        let lower = victims.iter().all(|victim| own.displaces(&self.sequences[victim]));
        self.check(lower, "displaced one of no lower priority");
        self.check(self.has_room(own, victims), "started without room");
        let fewer = victims.split_last().is_some_and(|(_, fewer)| self.has_room(own, fewer));
        self.check(!fewer, "displaced more than have to go");
        victims.iter().for_each(|&victim| self.stop(victim, "displace"));
        self.note("start", id);
        let (now, cache) = (self.now, Cache { seen: id, ..Cache::default() });
        let own = self.sequences.get_mut(&id).expect("it was looked at above");
        (own.first_start, own.runs, own.cache) = (own.first_start.or(Some(now)), true, cache);
    }

    fn stop(&mut self, id: u64, why: &'static str) {
        self.note(why, id);
        let one = self.sequences.get_mut(&id).expect("only what is there is stopped");
        (one.runs, one.last_token, one.preemptions) = (false, None, one.preemptions + 1);
    }

    fn end(&mut self, id: u64, why: &'static str) -> Sequence {
        self.note(why, id);
        self.scheduler.remove(id);
        let one = self.sequences.remove(&id).expect("only what is there ends");
        self.check(why == "cancel" || one.is_undisturbed(), "tokens were lost, repeated or changed");
        Sequence { end: self.now, ..one }
    }

    /// The sequence in the middle of a pass, or the next in turn.
    fn next_to_fill(&self) -> Option<u64> {
        let amid = self.sequences.values().find(|it| it.fills() && it.cache.layer > 0);
        let later = self.sequences.range(self.last_filled + 1..).map(|it| it.1);
        amid.or_else(|| later.chain(self.sequences.values()).find(|it| it.fills())).map(|it| it.id)
    }

    /// Gives those whose first token can be drawn.
    fn fill_all(&mut self, streams: bool) -> Vec<u64> {
        let (allowance, started) = (self.pace.allowance(), self.now);
        let (mut done, mut ends) = (0.0, Vec::new());
        self.sequences.values_mut().filter(|it| it.fills()).for_each(|it| it.cache.turns += 1);
        self.fills = 0.0;
        while let Some(id) = self.next_to_fill() {
            let Some(cost) = self.fill(id, streams.then_some(allowance - done), done == 0.0) else { break };
            (done, self.last_filled) = (done + cost, id);
            ends.extend((self.sequences[&id].next() == Next::Nothing).then_some(id));
            if !streams {
                break;
            }
        }
        self.pace.filled(done, self.now - started);
        ends
    }

    fn fill(&mut self, id: u64, limit: Option<f64>, first: bool) -> Option<f64> {
        let (one, all) = (&self.sequences[&id], self.device.layers);
        let (offset, begun) = (one.cache.offset, one.cache.layer);
        let range = match one.next() {
            Next::Prompt(length) => Chunks::new(false).next(offset, length),
            Next::Replay(length) => offset..length.min(offset + self.device.max_running),
            Next::Step | Next::Nothing => return None,
        };
        let (cost, seconds) = (work(range.len(), range.end), self.device.layer(range.len(), range.end));
        let layers = limit.map_or(all, |limit| ((limit / cost) as usize).max(usize::from(first))).min(all - begun);
        if first {
            self.fills = self.share().max(seconds * (1.0 + self.device.noise));
        }
        if layers == 0 {
            return None;
        }
        let mut others = self.sequences.values_mut().filter(|it| begun == 0 && it.id != id && it.fills());
        let fair = others.all(|it| it.cache.others.insert(id));
        self.check(fair, "a second chunk before the first of one that waits");
        self.pass_time(layers as f64 * seconds);
        let Sequence { cache, history, .. } = self.sequences.get_mut(&id)?;
        cache.layer += layers;
        if cache.layer == all {
            let seen = history[range.clone()].iter().fold(cache.seen, see);
            let waited = replace(cache, Cache { offset: range.end, seen, ..Cache::default() });
            // One more may have been in the middle of its pass.
            let in_time = waited.turns <= all * (waited.others.len() + 2);
            self.check(in_time, "a chunk waited for more than one chunk of each other");
        }
        Some(layers as f64 * cost)
    }

    /// The most seconds that the pace may give to fills, as far as its measurements may be off.
    fn share(&self) -> f64 {
        let Device { noise, depth, .. } = self.device;
        let longest = |steps: &[f64]| steps.iter().copied().fold(0.0, f64::max);
        let recent = longest(&self.steps[self.steps.len().saturating_sub(MEMORY)..]);
        let off = (1.0 + noise) / (1.0 - noise) * depth.max(1.0) / depth.min(1.0);
        ((recent + longest(&self.steps) / 100.0) * SHARE).max(LEAST) * off
    }

    fn draw(&mut self, id: u64) {
        let at_most = self.fills + self.steps.last().copied().unwrap_or(0.0);
        let one = self.sequences.get_mut(&id).expect("only what is there is drawn for");
        let whole = one.cache.offset == one.history.len();
        one.history.push(!one.cache.seen);
        let gap = self.now - one.last_token.replace(self.now).unwrap_or(self.now);
        self.check(whole, "drew from a cache that does not hold the history");
        self.check(gap <= at_most + SLACK, "a stream was silent for longer than a step and its share");
    }

    fn fail(&mut self, id: u64) {
        self.scheduler.put_back(id);
        self.stop(id, "put back");
        self.sequences.entry(id).and_modify(|it| it.put_backs += 1);
    }

    fn start_step(&mut self) {
        self.which(Sequence::steps).into_iter().for_each(|id| self.grow(id));
        self.step = self.which(Sequence::steps);
        for Sequence { cache, history, .. } in self.sequences.values_mut().filter(|it| it.steps()) {
            (cache.seen, cache.offset) = (see(cache.seen, &history[cache.offset]), cache.offset + 1);
        }
    }

    fn grow(&mut self, id: u64) {
        let one = self.sequences.get_mut(&id).expect("it was ready");
        // Who had to go for the growth of another must not note a promise that nobody made.
        if !one.runs || one.history.len() < one.request.promise {
            return;
        }
        let (rank, before) = (one.rank, need(one.request.promise));
        one.request.promise = one.request.most.min(one.request.promise + GROWTH);
        let more = need(one.request.promise) - before;
        for gone in self.scheduler.grow(id, more) {
            self.check(self.sequences[&gone].rank >= rank, "a growth displaced what ranks above it");
            self.stop(gone, "outgrow");
        }
    }

    fn check_books(&mut self) {
        let running = self.which(|it| it.runs);
        let (mut promised, mut used) = (0, 0);
        for id in &running {
            let Sequence { cache, request, .. } = &self.sequences[id];
            (promised, used) = (promised + need(request.promise), used + need(cache.offset));
            let excess = self.scheduler.note_used(*id, need(cache.offset));
            self.check(excess == 0, "holds more than it was promised");
        }
        let (ledger, waiting) = (self.scheduler.ledger(), self.sequences.len() - running.len());
        self.check((ledger.reserved(), ledger.used()) == (promised, used), "the sums of the ledger are wrong");
        self.check(used <= promised && promised <= self.device.budget, "promised more than there is");
        let counts = (self.scheduler.running(), self.scheduler.waiting());
        self.check(counts == (running.len(), waiting), "somebody was forgotten");
        self.check(running.len() <= self.device.max_running, "too many run");
    }

    /// Bounds that follow from the requests. Each is preempted at most once for every failed pass of its own, every growth of
    /// its own or of one that ranks above it, and every start of one of higher priority that ranks above it. The device
    /// never idles, so nobody waits longer than the work of all that may go first takes, or is there for longer than all work.
    fn check_bounds(&self, mut ended: Vec<Sequence>) {
        ended.sort_by_key(|it| it.rank);
        let (mut growths, mut most): (usize, Vec<(usize, f64)>) = (0, Vec::new());
        for one in &ended {
            growths += one.request.most.saturating_sub(one.request.prompt).div_ceil(GROWTH);
            let above = ended.iter().zip(&most).filter(|(it, _)| it.request.priority > one.request.priority);
            let bound = one.put_backs + growths + above.map(|(_, (most, _))| most + 1).sum::<usize>();
            self.check(one.preemptions <= bound, "preempted more often than there are reasons");
            most.push((bound, self.work_of(&one.request, bound)));
        }
        for one in &ended {
            let goes_first = |it: &Sequence| it.rank <= one.rank || it.came <= one.came;
            let first = ended.iter().zip(&most).filter(|(it, _)| goes_first(it)).map(|(_, most)| most.1);
            let waited = one.first_start.unwrap_or(one.end) - one.came;
            self.check(waited <= first.sum::<f64>() + SLACK, "waited for longer than those that go first take");
            let all = most.iter().map(|most| most.1).sum::<f64>();
            self.check(one.end - one.came <= all + SLACK, "there for longer than all work takes");
        }
    }

    /// The most seconds of a request: a fill for every start, and a step for every token; one is lost with every preemption.
    fn work_of(&self, request: &Request, preemptions: usize) -> f64 {
        let fill = self.device.layers as f64 * self.device.layer(request.most, request.most);
        let step = self.device.step + self.device.row * self.device.max_running as f64;
        let steps = request.most - request.prompt + preemptions + 1;
        ((preemptions + 1) as f64 * fill + steps as f64 * step) * (1.0 + self.device.noise)
    }
}

#[test]
fn the_parts_keep_their_promises_when_they_work_together() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, event, _) in (0..PATTERNS).flat_map(Simulation::run) {
        *counts.entry(event).or_default() += 1;
    }
    // Or the patterns would test nothing.
    let enough = |event| counts.get(event).is_some_and(|&count| count > PATTERNS / 5);
    assert!(["displace", "outgrow", "put back", "cancel", "end"].into_iter().all(enough), "{counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_day() {
    (0..PATTERNS / 20).for_each(|seed| assert_eq!(Simulation::run(seed), Simulation::run(seed), "seed {seed}"));
}
