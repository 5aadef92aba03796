//! Thousands of random days of an engine with a fake device and a fake clock: scheduler, ledger, pace and chunks at work together.

mod request;

use std::collections::BTreeMap;
use std::{mem, time::Duration};

use self::request::{GROWTH, Pass, Random, Sequence, need};
use super::prefill_budget::{PrefillBudget, work};
use super::scheduler::{Change, Scheduler};
use super::{chunks::Chunks, sequence::Next};

const DAYS: u64 = 3000;
// What the pace promises is said again here, so that a slip there shows.
const SHARE: f64 = 0.6;
const BURST: f64 = 6.0;
const LEAST: f64 = 0.002;
// By how much times vary, and what rounding and steps long past add.
const NOISE: f64 = 0.2;
const SLACK: f64 = 1.01;

/// The engine's loop around the parts under test; times are in seconds.
struct Simulation {
    seed: u64,
    random: Random,
    layers: usize,
    step: f64,
    unit: f64,
    max_running: usize,
    scheduler: Scheduler,
    pace: PrefillBudget,
    now: f64,
    sequences: BTreeMap<u64, Sequence>,
    ended: Vec<Sequence>,
    on_device: Vec<u64>,
    steps: Vec<f64>,
    /// The most seconds that this turn's fills may take.
    fills: f64,
    places: u64,
    trace: Vec<(u64, &'static str, u64)>,
}

impl Simulation {
    /// A device that has room for each of `requests`: what could not run alone is refused before the scheduler sees it.
    fn new(seed: u64, mut random: Random, requests: &[Sequence]) -> Self {
        let largest = requests.iter().map(|it| need(it.most)).fold(0, u64::max) as f64;
        let budget = (largest * random.between(1.0, 3.0)) as u64;
        let (step, max_running) = (10f64.powf(random.between(-3.0, 0.0)), 1 + random.below(6));
        Self {
            seed,
            layers: 1 + random.below(6),
            step,
            unit: step * random.between(0.05, 2.0) / work(64, 64),
            max_running,
            random,
            scheduler: Scheduler::new(max_running, budget),
            pace: PrefillBudget::default(),
            now: 0.0,
            sequences: BTreeMap::new(),
            ended: Vec::new(),
            on_device: Vec::new(),
            steps: Vec::new(),
            fills: 0.0,
            places: 0,
            trace: Vec::new(),
        }
    }

    fn run(seed: u64) -> Vec<(u64, &'static str, u64)> {
        let mut random = Random(seed, 0);
        let (span, longest) = ([0.0, 3.0, 30.0, 90.0][random.below(4)], [40, 150, 1500][random.below(3)]);
        let count = 1 + random.below(18);
        let mut coming: Vec<_> = (0..count).map(|_| Sequence::random(&mut random, span, longest)).collect();
        coming.sort_by(|one, other| one.came.total_cmp(&other.came));
        let mut day = Self::new(seed, random, &coming);
        for (mut one, id) in coming.into_iter().zip(1..) {
            while day.now < one.came && !day.sequences.is_empty() {
                day.turn();
            }
            day.now = day.now.max(one.came);
            let now = Duration::from_secs_f64(day.now);
            day.scheduler.submit(id, one.priority, need(one.promise), now);
            let handicap = Duration::from_secs([40, 10, 0][one.priority as usize]);
            (one.id, one.came, one.rank) = (id, day.now, (now + handicap, id));
            day.sequences.insert(id, one);
        }
        while !day.sequences.is_empty() {
            day.turn();
        }
        day.check_bounds();
        day.trace
    }

    fn check(&self, holds: bool, broken: &str) {
        let (seed, now, last) = (self.seed, self.now, self.trace.len().saturating_sub(8));
        assert!(holds, "seed {seed} at {now:.4} s: {broken}; the last events: {:?}", &self.trace[last..]);
    }

    fn which(&self, wanted: impl Fn(&Sequence) -> bool) -> Vec<u64> {
        self.sequences.values().filter(|it| wanted(it)).map(|it| it.id).collect()
    }

    fn turn(&mut self) {
        self.which(|it| it.cancelled <= self.now).into_iter().for_each(|id| self.end(id, "cancel"));
        self.admit();
        let (before, ready) = (self.now, mem::take(&mut self.on_device));
        if !ready.is_empty() {
            let seconds = self.step * (1.0 + 0.1 * ready.len() as f64);
            self.now += seconds * self.random.between(1.0 - NOISE, 1.0 + NOISE);
            self.steps.push(self.now - before);
            self.pace.stepped(self.now - before);
        }
        let prompts = self.fill_all(!ready.is_empty());
        self.check(self.now > before || self.sequences.is_empty(), "the device has nothing to do");
        let fails = ready.len() > 1 && self.random.below(30) == 0;
        ready.iter().filter(|_| fails).for_each(|&id| self.stop(id, "put back"));
        ready.into_iter().chain(prompts).for_each(|id| self.draw(id));
        self.start_step();
        self.which(|it| it.history.len() == it.most).into_iter().for_each(|id| self.end(id, "end"));
        self.check_books();
    }

    /// Follows the scheduler's decisions one by one, with books of its own.
    fn admit(&mut self) {
        let mut victims = Vec::new();
        for change in self.scheduler.admit() {
            match change {
                Change::Preempt(id) => victims.push(id),
                Change::Start(id) => self.start(id, &mem::take(&mut victims)),
            }
        }
        let first = self.sequences.values().filter(|it| !it.runs).min_by_key(|it| it.rank);
        let room = first.is_some_and(|first| self.has_room(first, &self.which(|it| first.displaces(it))));
        self.check(!room, "the first in line waits although there is room");
    }

    /// Whether `one` could start if `victims` were gone.
    fn has_room(&self, one: &Sequence, victims: &[u64]) -> bool {
        let stay = self.which(|it| it.runs && !victims.contains(&it.id));
        let bytes = stay.iter().map(|id| need(self.sequences[id].promise)).sum::<u64>();
        stay.len() < self.max_running && bytes + need(one.promise) <= self.scheduler.ledger().budget()
    }

    fn start(&mut self, id: u64, victims: &[u64]) {
        let own = &self.sequences[&id];
        let overtaken = self.which(|it| !it.runs && it.rank < own.rank);
        self.check(overtaken.is_empty(), "overtaken by one that came later by more than the handicap");
        let later = self.which(|it| it.id > id && it.priority == own.priority && it.started.is_some());
        self.check(own.started.is_some() || later.is_empty(), "not first come first served");
        self.check(victims.iter().all(|it| own.displaces(&self.sequences[it])), "displaced one not below it");
        self.check(self.has_room(own, victims), "started without room");
        let fewer = victims.split_last().is_some_and(|(_, fewer)| self.has_room(own, fewer));
        self.check(!fewer, "displaced more than have to go");
        for &victim in victims {
            self.stop(victim, "displace");
        }
        self.trace.push((self.now.to_bits(), "start", id));
        self.places += 1;
        let (now, own) = (self.now, self.sequences.get_mut(&id).expect("it was looked at above"));
        let pass = Pass { place: self.places, ..Pass::default() };
        (own.started, own.runs, own.pass) = (own.started.or(Some(now)), true, pass);
    }

    fn stop(&mut self, id: u64, why: &'static str) {
        let Some(one) = self.sequences.get_mut(&id).filter(|it| it.runs) else { return };
        (one.runs, one.last_token) = (false, None);
        if why == "put back" {
            self.scheduler.put_back(id);
        }
        self.trace.push((self.now.to_bits(), why, id));
    }

    fn end(&mut self, id: u64, why: &'static str) {
        self.trace.push((self.now.to_bits(), why, id));
        self.scheduler.remove(id);
        let one = self.sequences.remove(&id).expect("only what is there ends");
        let whole = one.history.iter().copied().eq(0..one.most);
        self.check(why == "cancel" || whole, "tokens were lost or repeated");
        self.ended.push(Sequence { ended: self.now, ..one });
    }

    /// The sequence in the middle of a pass, then whoever has waited longest.
    fn to_prefill(&self) -> Vec<u64> {
        let mut filling: Vec<_> = self.sequences.values().filter(|it| it.fills()).collect();
        filling.sort_by_key(|it| (it.pass.layer == 0, it.pass.place, it.id));
        filling.into_iter().map(|it| it.id).collect()
    }

    fn rest(&self, id: u64) -> f64 {
        let it = &self.sequences[&id];
        let end = if it.pass.offset < it.prompt { it.prompt } else { it.history.len() - 1 };
        self.layers as f64 * work(end.saturating_sub(it.pass.offset), end)
    }

    /// Gives those whose first token can be drawn.
    fn fill_all(&mut self, streams: bool) -> Vec<u64> {
        let rests: Vec<f64> = self.to_prefill().iter().map(|&id| self.rest(id)).collect();
        let (allowance, started) = (self.pace.allowance(rests.iter().copied()), self.now);
        let (mut done, mut ends) = (0.0, vec![]);
        self.sequences.values_mut().filter(|it| it.fills()).for_each(|it| it.pass.turns += 1);
        let step = self.steps.iter().rev().take(24).copied().fold(0.0, f64::max);
        let short = rests.first().is_none_or(|rest| rest * self.unit * (1.0 - NOISE) <= step * BURST);
        let share = if short { BURST } else { SHARE };
        self.fills = (step * share).max(LEAST) * (1.0 + NOISE) / (1.0 - NOISE);
        while let Some(&id) = self.to_prefill().first().filter(|_| streams || done == 0.0) {
            let Some(cost) = self.fill(id, streams.then_some(allowance - done), done == 0.0) else { break };
            done += cost;
            ends.extend((self.sequences[&id].next() == Next::Nothing).then_some(id));
        }
        self.pace.filled(done, self.now - started);
        ends
    }

    fn fill(&mut self, id: u64, limit: Option<f64>, first: bool) -> Option<f64> {
        let (one, all) = (&self.sequences[&id], self.layers);
        let Pass { offset, layer: begun, kept, .. } = one.pass;
        let range = match one.next() {
            Next::Prompt(length) => Chunks::new(false).next(offset, length),
            Next::Replay(length) => offset..length.min(offset + self.max_running),
            Next::Step | Next::Nothing => return None,
        };
        let cost = work(range.len(), range.end);
        let layers = limit.map_or(all, |limit| ((limit / cost) as usize).max(usize::from(first)));
        let done = (layers > 0).then_some(layers.min(all - begun) as f64 * cost)?;
        self.now += done * self.unit * self.random.between(1.0 - NOISE, 1.0 + NOISE);
        self.fills = self.fills.max(cost * self.unit * (1.0 + NOISE));
        let mut fair = true;
        for other in self.sequences.values_mut().filter(|it| begun == 0 && it.id != id && it.fills()) {
            other.pass.chunks += 1;
            fair &= kept || other.pass.others.insert(id);
        }
        self.check(fair, "a second chunk before the first of one that waits");
        let pass = &mut self.sequences.get_mut(&id).expect("it was looked at above").pass;
        pass.layer += layers;
        if pass.layer >= all {
            let next = Pass { offset: range.end, place: pass.place, kept: true, ..Pass::default() };
            let ended = mem::replace(pass, next);
            // One more may have been in the middle of its pass.
            self.check(ended.turns <= all * (ended.chunks + 2), "a chunk waited for too many others");
            self.go_behind(id);
        }
        Some(done)
    }

    fn go_behind(&mut self, id: u64) {
        if !self.pace.is_short(self.rest(id)) {
            self.places += 1;
            let pass = &mut self.sequences.get_mut(&id).expect("it had a chunk").pass;
            (pass.place, pass.kept) = (self.places, false);
        }
    }

    fn draw(&mut self, id: u64) {
        let at_most = self.fills + self.steps.last().copied().unwrap_or(0.0);
        let Some(one) = self.sequences.get_mut(&id).filter(|it| it.runs) else { return };
        one.history.push(one.pass.offset);
        let gap = self.now - one.last_token.replace(self.now).unwrap_or(self.now);
        self.check(gap <= at_most * SLACK, "a stream was silent for longer than a step and its share");
    }

    fn start_step(&mut self) {
        let steps = |it: &Sequence| it.next() == Next::Step;
        self.which(steps).into_iter().for_each(|id| self.grow(id));
        self.on_device = self.which(steps);
        self.sequences.values_mut().filter(|it| steps(it)).for_each(|it| it.pass.offset += 1);
    }

    fn grow(&mut self, id: u64) {
        let one = self.sequences.get_mut(&id).expect("it was ready");
        // Who had to go for the growth of another must not note a promise that nobody made.
        if !one.runs || one.history.len() < one.promise {
            return;
        }
        let before = need(one.promise);
        one.promise = one.most.min(one.promise + GROWTH);
        for gone in self.scheduler.grow(id, need(one.promise) - before) {
            let below = self.which(|it| it.runs && it.rank > self.sequences[&gone].rank);
            self.check(below.is_empty(), "a growth displaced one that does not rank last");
            self.stop(gone, "outgrow");
        }
    }

    fn check_books(&mut self) {
        let (mut running, mut promised, mut used) = (0, 0, 0);
        for one in self.sequences.values().filter(|it| it.runs) {
            let (promise, holds) = (need(one.promise), need(one.pass.offset));
            let excess = self.scheduler.note_used(one.id, holds);
            self.check(excess == 0, "one holds more than it was promised");
            (running, promised, used) = (running + 1, promised + promise, used + holds);
        }
        let (ledger, waiting) = (self.scheduler.ledger(), self.sequences.len() - running);
        self.check((ledger.reserved(), ledger.used()) == (promised, used), "the ledger's sums are wrong");
        self.check(used <= promised && promised <= ledger.budget(), "more is promised than there is");
        self.check(waiting == self.scheduler.waiting(), "too many or too few wait");
        self.check(running == self.scheduler.running() && running <= self.max_running, "too many run");
    }

    /// Bounds that follow from the requests. Each is preempted at most once for every failed pass of its own, every growth of
    /// its own or of one that ranks above it, and every start of one of higher priority that ranks above it. Each start costs
    /// at most a whole fill, each token a step, and each preemption a step in vain, as may a cancellation. The device never
    /// idles, so nobody waits for longer than the work of all that may go first, nor stays for longer than that of all.
    fn check_bounds(&mut self) {
        self.ended.sort_by_key(|it| it.rank);
        let (mut growths, mut bounds): (usize, Vec<(&Sequence, usize, f64)>) = (0, Vec::new());
        let step = self.step * (1.0 + 0.1 * self.max_running as f64);
        for one in &self.ended {
            growths += (one.most - one.prompt) / GROWTH;
            let above = bounds.iter().filter(|it| it.0.priority > one.priority).map(|it| it.1);
            let count = |event| self.trace.iter().filter(|it| it.2 == one.id && it.1 == event).count();
            let most = growths + above.sum::<usize>();
            self.check(count("displace") + count("outgrow") <= most, "preempted without a reason");
            let starts = 1 + most + count("put back");
            let fill = self.layers as f64 * work(one.most, one.most) * self.unit;
            let seconds = starts as f64 * (fill + step) + (one.most - one.prompt) as f64 * step;
            bounds.push((one, starts, seconds * (1.0 + NOISE) * SLACK));
        }
        let all = bounds.iter().map(|it| it.2).sum();
        for one in &self.ended {
            let first = bounds.iter().filter(|it| it.0.rank <= one.rank || it.0.came <= one.came);
            let waited = one.started.unwrap_or(one.ended) - one.came;
            self.check(waited <= first.map(|it| it.2).sum(), "waited longer than for those that go first");
            self.check(one.ended - one.came <= all, "stayed for longer than all work takes");
        }
    }
}

#[test]
fn the_parts_keep_their_promises_together() {
    let trace: Vec<_> = (0..DAYS).flat_map(Simulation::run).collect();
    for event in ["displace", "outgrow", "put back", "cancel", "end"] {
        let count = trace.iter().filter(|it| it.1 == event).count() as u64;
        assert!(count > DAYS / 10, "the days test too little: {event}");
    }
}

#[test]
fn the_same_seed_gives_the_same_day() {
    for seed in 0..DAYS / 20 {
        assert_eq!(Simulation::run(seed), Simulation::run(seed), "seed {seed}");
    }
}
