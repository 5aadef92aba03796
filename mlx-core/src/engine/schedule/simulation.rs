//! Thousands of random simulations of the scheduler with a fake device and a fake clock. The plans are real; the simulation runs them and
//! checks them against its own accounting.

mod request;
mod turns;

use std::collections::BTreeMap;
use std::time::Duration;

use self::request::{GROWTH, Progress, Random, Sequence, need, together};
use self::turns::priority_delay;
use super::Scheduler;
use super::plan::{Changes, Next, Prefill, SequenceView};
use super::prefill_budget::{PrefillBudget, work};
use super::shapes::Shapes;
use super::speculation::SpeculationPolicy;
use crate::engine::client::Client;
use crate::engine::schedule::chunks::Chunks;

const DAYS: u64 = 3000;
// The constants of the budget are repeated here, so that a change there makes the test fail.
const SHARE: f64 = 0.5;
const BURST: f64 = 6.0;
const MIN_SECONDS: f64 = 0.002;
// The variation of times, and the allowance for rounding and for steps long past.
const NOISE: f64 = 0.2;
const SLACK: f64 = 1.01;

/// The engine's loop around the parts under test. Times are in seconds.
struct Simulation {
    seed: u64,
    random: Random,
    layers: usize,
    step: f64,
    unit: f64,
    max_running: usize,
    budget: u64,
    scheduler: Scheduler,
    now: f64,
    sequences: BTreeMap<u64, Sequence>,
    ended: Vec<Sequence>,
    /// The time at which each client last took a slot.
    last_served: BTreeMap<Client, Duration>,
    steps: Vec<f64>,
    /// The maximum seconds of this step's prefill.
    prefill_limit: f64,
    trace: Vec<(u64, &'static str, u64)>,
}

impl Simulation {
    /// Creates a device with memory for each of `requests`. The engine refuses larger ones before the scheduler sees them.
    fn new(seed: u64, mut random: Random, requests: &[Sequence]) -> Self {
        let largest = requests.iter().map(|it| need(it.most).total()).fold(0, u64::max) as f64;
        let budget = (largest * random.between(1.0, 3.0)) as u64;
        let (step, max_running) = (10f64.powf(random.between(-3.0, 0.0)), 1 + random.below(6));
        let (chunks, layers) = (Chunks::ON_A_CPU, 1 + random.below(6));
        let shapes = Shapes {
            chunks,
            context: 1 << 20,
            layers,
            step_rows: max_running.max(8),
            exact_rows: max_running,
        };
        Self {
            seed,
            layers,
            step,
            unit: step * random.between(0.05, 2.0) / work(64, 64),
            max_running,
            budget,
            random,
            scheduler: Scheduler::new(max_running, budget, shapes),
            now: 0.0,
            sequences: BTreeMap::new(),
            ended: Vec::new(),
            last_served: BTreeMap::new(),
            steps: Vec::new(),
            prefill_limit: 0.0,
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
                day.step();
            }
            day.now = day.now.max(one.came);
            let now = Duration::from_secs_f64(day.now);
            day.scheduler.submit(id, one.ticket, need(one.reserved), now);
            (one.id, one.came, one.rank) = (id, day.now, (now + priority_delay(&one), id));
            day.sequences.insert(id, one);
        }
        while !day.sequences.is_empty() {
            day.step();
        }
        day.check_bounds();
        day.trace
    }

    fn check(&self, holds: bool, broken: &str) {
        let (seed, now, last) = (self.seed, self.now, self.trace.len().saturating_sub(8));
        assert!(holds, "seed {seed} at {now:.4} s: {broken}; the last events: {:?}", &self.trace[last..]);
    }

    fn which(&self, chosen: impl Fn(&Sequence) -> bool) -> Vec<u64> {
        self.sequences.values().filter(|it| chosen(it)).map(|it| it.id).collect()
    }

    fn views(&self) -> Vec<SequenceView> {
        self.sequences.values().map(Sequence::view).collect()
    }

    fn step(&mut self) {
        self.which(|it| it.cancelled <= self.now).into_iter().for_each(|id| self.end(id, "cancel"));
        let changes = self.scheduler.admit(&self.views(), Duration::from_secs_f64(self.now));
        self.apply(&changes);
        let budget = self.scheduler.budget;
        let plan = self.scheduler.plan(&self.views(), &SpeculationPolicy::default());
        let before = self.now;
        let streams = self.sequences.values().any(|it| it.view().next() == Next::Decode);
        let planned = |id: &u64| plan.decode.contains(id);
        for one in self.sequences.values_mut().filter(|it| !planned(&it.id) && it.last_token.is_some()) {
            one.skipped += 1;
        }
        self.decode(&plan.decode);
        let ends = self.prefill(&plan.prefill, streams, budget);
        let seconds = self.steps.last().filter(|_| !plan.decode.is_empty()).copied().unwrap_or(0.0);
        self.sequences.values_mut().for_each(|it| it.allowed += self.prefill_limit + seconds);
        self.check(self.now > before || self.sequences.is_empty(), "the device has nothing to do");
        let fails = plan.decode.len() > 1 && self.random.below(30) == 0;
        if fails {
            plan.decode.iter().for_each(|&id| self.quarantine(id));
        } else {
            plan.decode.into_iter().for_each(|id| self.draw(id));
        }
        for id in ends {
            self.draw(id);
        }
        self.which(|it| it.history.len() == it.most).into_iter().for_each(|id| self.end(id, "end"));
        self.check_books();
    }

    /// Applies the scheduler's changes one by one.
    fn apply(&mut self, changes: &Changes) {
        let Changes { extend, preempt, admit } = changes;
        for id in extend {
            let one = self.sequences.get_mut(id).expect("the plan names it");
            one.reserved = one.most.min(one.reserved + GROWTH);
        }
        // Growth preempts sequences of lower rank. Admission preempts sequences of lower priority, and sequences of a client or request
        // with several slots in favor of one without a slot.
        for &id in preempt {
            let victim = &self.sequences[&id];
            let displaced = admit.iter().any(|id| self.sequences[id].outranks(victim));
            let outgrown = extend.iter().any(|id| self.sequences[id].rank <= victim.rank);
            let yields = admit.iter().map(|id| &self.sequences[id]).any(|own| {
                own.ticket.priority >= victim.ticket.priority && self.may_take(victim, own, changes, preempt)
            });
            self.check(displaced || outgrown || yields, "preempted for nothing");
            let why = match (displaced, yields) {
                (true, _) => "displace",
                (_, true) => "yield",
                _ => "outgrow",
            };
            self.stop(id, why);
        }
        for id in admit {
            self.start(*id, changes);
        }
        let displaced = |next: &Sequence| self.which(|it| next.outranks(it) && !admit.contains(&it.id));
        let room = |next: &Sequence| self.has_room(next, &displaced(next));
        self.check(!self.next(&[]).is_some_and(room), "the next waits although there is room");
    }

    fn start(&mut self, id: u64, changes: &Changes) {
        let (own, preempted) = (&self.sequences[&id], &changes.preempt);
        // The first of the preempted sequences may have been in the queue by then, and the others not yet.
        let later = (0..=preempted.len()).map(|first| &preempted[first..]);
        let is_next = later.filter_map(|later| self.next(later)).any(|next| next.id == id);
        let is_next = is_next || preempted.contains(&id);
        let mut gone = (0..=preempted.len()).map(|first| &preempted[..first]);
        let takes = |it: &Sequence, gone: &[u64]| {
            (it.runs || preempted.contains(&it.id)) && self.may_take(it, own, changes, gone)
        };
        let takes = gone.any(|gone| self.sequences.values().any(|it| takes(it, gone)));
        self.check(is_next || takes, "it was not its turn");
        self.check(self.has_room(own, &[]), "started without room");
        self.trace.push((self.now.to_bits(), "start", id));
        self.last_served.insert(own.ticket.client, Duration::from_secs_f64(self.now));
        let (now, own) = (self.now, self.sequences.get_mut(&id).expect("it was looked at above"));
        (own.started, own.runs, own.progress) = (own.started.or(Some(now)), true, Progress::default());
    }

    fn stop(&mut self, id: u64, why: &'static str) {
        let Some(one) = self.sequences.get_mut(&id).filter(|it| it.runs) else { return };
        (one.runs, one.last_token) = (false, None);
        self.trace.push((self.now.to_bits(), why, id));
    }

    fn quarantine(&mut self, id: u64) {
        self.stop(id, "requeue");
        self.scheduler.requeue(id);
        self.sequences.get_mut(&id).expect("it was planned").quarantined = true;
    }

    fn end(&mut self, id: u64, why: &'static str) {
        self.trace.push((self.now.to_bits(), why, id));
        self.scheduler.remove(id);
        let one = self.sequences.remove(&id).expect("only what is there ends");
        let whole = one.history.iter().copied().eq(0..one.most);
        self.check(why == "cancel" || whole, "tokens were lost or repeated");
        self.ended.push(Sequence { ended: self.now, ..one });
    }

    fn decode(&mut self, ids: &[u64]) {
        if ids.is_empty() {
            return;
        }
        for id in ids {
            let one = self.sequences.get_mut(id).expect("the plan names it");
            one.progress.seen += 1;
        }
        let seconds = self.step * (1.0 + 0.1 * ids.len() as f64);
        let seconds = seconds * self.random.between(1.0 - NOISE, 1.0 + NOISE);
        self.now += seconds;
        self.steps.push(seconds);
        self.scheduler.record_times(None, Some(seconds));
    }

    fn remaining(&self, one: &Sequence) -> f64 {
        let end = if one.progress.seen < one.prompt { one.prompt } else { one.history.len() - 1 };
        self.layers as f64 * work(end.saturating_sub(one.progress.seen), end)
    }

    /// Computes the planned passes. Returns the sequences that can draw their first token.
    fn prefill(&mut self, passes: &[Prefill], streams: bool, budget: PrefillBudget) -> Vec<u64> {
        let started = self.now;
        let isolated = self.sequences.values().any(|it| it.quarantined);
        for one in self.sequences.values_mut().filter(|it| it.prefills() && !isolated) {
            one.progress.steps += 1;
        }
        self.limit_prefill();
        self.check(streams || passes.len() <= 1, "several passes without a stream beside them");
        let (mut done, mut ends) = (0.0, vec![]);
        for (index, pass) in passes.iter().enumerate() {
            done += self.compute(pass, budget, &mut ends);
            let left_open = self.sequences.values().any(|it| it.runs && it.progress.layers > 0);
            self.check(
                isolated || !left_open || index + 1 == passes.len(),
                "another pass before the open one",
            );
        }
        self.scheduler.record_times(Some((done, self.now - started)), None);
        ends
    }

    /// Sets the maximum time of a step's prefill, as the budget guarantees it.
    fn limit_prefill(&mut self) {
        let step = self.steps.iter().rev().take(24).copied().fold(0.0, f64::max);
        let prefills = self.sequences.values().filter(|it| it.prefills());
        let shortest = prefills.map(|it| self.remaining(it)).fold(f64::INFINITY, f64::min);
        let short = shortest.is_infinite() || shortest * self.unit * (1.0 - NOISE) <= step * BURST;
        let share = if short { BURST } else { SHARE };
        self.prefill_limit = (step * share).max(MIN_SECONDS) * (1.0 + NOISE) / (1.0 - NOISE);
    }

    fn compute(&mut self, pass: &Prefill, budget: PrefillBudget, ends: &mut Vec<u64>) -> f64 {
        let cost = |length: usize, end: usize| work(length, end);
        let layer: f64 = pass.chunks.iter().map(|it| cost(it.range.len(), it.range.end)).sum();
        self.check((pass.cost - layer * pass.layers as f64).abs() < 1e-6 * pass.cost, "a wrong cost");
        self.now += pass.cost * self.unit * self.random.between(1.0 - NOISE, 1.0 + NOISE);
        // One layer runs regardless of its cost.
        self.prefill_limit = self.prefill_limit.max(layer * self.unit * (1.0 + NOISE));
        self.check(pass.chunks.len() == 1 || pass.layers == self.layers, "a shared pass was left open");
        let adapter = |id: u64| id.is_multiple_of(16);
        let first = adapter(pass.chunks[0].id);
        self.check(pass.chunks.iter().all(|it| adapter(it.id) == first), "a pass of two adapters");
        for chunk in &pass.chunks {
            if pass.chunks.len() > 1 {
                self.trace.push((self.now.to_bits(), "share", chunk.id));
            }
            let one = &self.sequences[&chunk.id];
            self.check(one.prefills() && one.progress.seen == chunk.range.start, "not the next chunk");
            self.check(pass.chunks.len() == 1 || !one.exact && chunk.ends_prompt, "must not share a pass");
            if one.progress.layers == 0 {
                self.begin_chunk(chunk.id, pass);
            }
            let one = self.sequences.get_mut(&chunk.id).expect("the plan names it");
            one.progress.layers += pass.layers;
            if one.progress.layers >= self.layers {
                let next = Progress { seen: chunk.range.end, ..Progress::default() };
                let Progress { steps, chunks, .. } = std::mem::replace(&mut one.progress, next);
                ends.extend(chunk.ends_prompt.then_some(chunk.id));
                // One more sequence may have been within its pass.
                self.check(steps <= self.layers * (chunks + 2), "a chunk waited for too many others");
                let short = budget.is_short(self.remaining(&self.sequences[&chunk.id]));
                let one = self.sequences.get_mut(&chunk.id).expect("the plan names it");
                one.progress.short = short;
            }
        }
        pass.cost
    }

    /// Checks that every waiting prompt gets a chunk before another one gets its second, unless the remainder of that prompt is short.
    fn begin_chunk(&mut self, id: u64, pass: &Prefill) {
        let isolated = self.sequences.values().any(|it| it.quarantined);
        let short = self.sequences[&id].progress.short;
        let beside = |other: &u64| pass.chunks.iter().any(|chunk| chunk.id == *other);
        let mut fair = true;
        for other in self.which(Sequence::prefills).into_iter().filter(|other| !beside(other)) {
            let progress = &mut self.sequences.get_mut(&other).expect("it waits").progress;
            progress.chunks += 1;
            fair &= short || isolated || progress.others.insert(id);
        }
        self.check(fair, "a second chunk before the first of one that waits");
    }

    fn draw(&mut self, id: u64) {
        let Some(one) = self.sequences.get_mut(&id).filter(|it| it.runs) else { return };
        one.history.push(one.progress.seen);
        one.quarantined = false;
        let (skipped, allowed) = (std::mem::take(&mut one.skipped), std::mem::take(&mut one.allowed));
        let gap = self.now - one.last_token.replace(self.now).unwrap_or(self.now);
        self.check(skipped <= 1, "a stream was skipped twice");
        self.check(gap <= allowed * SLACK, "a stream was silent for longer than a step and its share");
    }

    fn check_books(&mut self) {
        let running = self.sequences.values().filter(|it| it.runs);
        let needs = running.clone().map(|it| need(it.reserved));
        let (reserved, running, mut used) = (together(needs), running.count(), 0);
        for one in self.sequences.values().filter(|it| it.runs) {
            let holds = need(one.progress.seen).own;
            let excess = self.scheduler.record_used(one.id, holds);
            self.check(excess == 0, "one holds more than its reservation");
            used += holds;
        }
        let (ledger, waiting) = (self.scheduler.ledger(), self.sequences.len() - running);
        self.check((ledger.reserved(), ledger.used()) == (reserved, used), "the ledger's sums are wrong");
        self.check(used <= reserved && reserved <= self.budget, "more is reserved than there is");
        self.check(waiting == self.scheduler.waiting(), "too many or too few wait");
        self.check(running == self.scheduler.running() && running <= self.max_running, "too many run");
    }

    /// Checks bounds that follow from the requests. A sequence is preempted at most once for each of: its own failed passes, growth of
    /// itself or of a higher rank, starts of higher priority, and starts of sequences without a slot. Each start costs at most a whole
    /// prefill, each token a step, and each preemption or cancellation a wasted step. The device is never idle. So a request waits no
    /// longer than the work of all that started before it, and stays no longer than all work takes.
    fn check_bounds(&mut self) {
        self.ended.sort_by_key(|it| it.rank);
        let mut counts: BTreeMap<(u64, &str), usize> = BTreeMap::new();
        self.trace.iter().for_each(|it| *counts.entry((it.2, it.1)).or_default() += 1);
        let count = |id: u64, event| counts.get(&(id, event)).copied().unwrap_or(0);
        let (mut growths, mut bounds): (usize, Vec<(&Sequence, f64)>) = (0, Vec::new());
        let step = self.step * (1.0 + 0.1 * self.max_running as f64);
        for one in &self.ended {
            growths += (one.most - one.prompt) / GROWTH;
            let above = self.ended.iter().filter(|it| it.ticket.priority > one.ticket.priority);
            let most = growths + above.map(|it| count(it.id, "start")).sum::<usize>();
            self.check(
                count(one.id, "displace") + count(one.id, "outgrow") <= most,
                "preempted without a reason",
            );
            let starts = count(one.id, "start").max(1);
            let fill = self.layers as f64 * work(one.most, one.most) * self.unit;
            let seconds = starts as f64 * (fill + step) + (one.most - one.prompt) as f64 * step;
            bounds.push((one, seconds * (1.0 + NOISE) * SLACK));
        }
        let all = bounds.iter().map(|it| it.1).sum();
        for one in &self.ended {
            let start = one.started.unwrap_or(one.ended);
            let first = bounds.iter().filter(|it| it.0.started.is_some_and(|other| other <= start));
            self.check(start - one.came <= first.map(|it| it.1).sum::<f64>(), "waited for nothing");
            self.check(one.ended - one.came <= all, "stayed longer than all work takes");
        }
    }
}

#[test]
fn plans_keep_their_promises() {
    let trace: Vec<_> = (0..DAYS).flat_map(Simulation::run).collect();
    for event in ["displace", "yield", "outgrow", "requeue", "cancel", "share", "end"] {
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
