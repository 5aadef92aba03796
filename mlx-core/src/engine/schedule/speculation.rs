//! Decides how many draft tokens a step verifies. Invariant: pure. It depends only on measured times and on the acceptance of earlier
//! drafts.

use std::collections::BTreeMap;

use super::prefill_budget::fade;

/// The maximum number of tokens of a draft.
pub(in crate::engine) const MAX_DRAFT: usize = 15;

/// A draft is verified if it is expected to raise the tokens per second by at least this factor. With noisy times, the best of many widths
/// looks better than it is.
const WORTH: f64 = 1.08;

/// The number of steps after which a measured time is stale, since texts get longer and the load changes.
const STALE: u64 = 200;

/// The relative cost of another row in a step, without measurements.
const ROW_COST: f64 = 0.08;

/// The weights of a new observation in the odds of its sequence, and in the odds of all sequences.
const OWN: f64 = 0.25;
const ALL: f64 = 0.05;

/// The number of sources of drafts.
const SOURCES: usize = 5;

/// The number of steps between trial drafts of one token, while drafts of a model do not pay off.
const TRIAL_INTERVAL: u64 = 64;

/// The number of tokens that a model drafts before there are measurements.
const FIRST: usize = 3;

/// The number of classes of match lengths.
const CLASSES: usize = 4;

/// The source of a draft and the class of its match length. Acceptance is learned separately for each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct DraftKind(usize);

impl DraftKind {
    /// Returns the kind of a draft from a source below 5, based on a match of `length` tokens.
    pub(in crate::engine) fn new(source: u8, length: usize) -> Self {
        let class = [4, 8, 16].iter().filter(|&&least| length >= least).count();
        Self((usize::from(source) % SOURCES) * CLASSES + class)
    }
}

/// The planner's view of a draft.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct DraftView {
    pub(in crate::engine) length: usize,
    pub(in crate::engine) kind: DraftKind,
    /// True if it is verified regardless of its cost.
    pub(in crate::engine) force: bool,
}

/// The probabilities that draft tokens are right.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AcceptanceRate {
    /// For the first token.
    first: f64,
    /// For each later token, if those before it are right.
    next: f64,
}

impl AcceptanceRate {
    const START: Self = Self { first: 0.5, next: 0.8 };

    /// Records that the first `accepted` of `verified` tokens were right.
    fn record(&mut self, verified: usize, accepted: usize, weight: f64) {
        let blend = |value: &mut f64, right: bool| *value += weight * (f64::from(u8::from(right)) - *value);
        for place in 0..verified.min(accepted + 1) {
            blend(if place == 0 { &mut self.first } else { &mut self.next }, place < accepted);
        }
    }

    /// Returns the probability that all of the first `place + 1` tokens are right.
    fn all_right(self, place: usize) -> f64 {
        self.first * self.next.powi(place as i32)
    }
}

type ByKind = [AcceptanceRate; SOURCES * CLASSES];

/// The measured times and acceptance rates.
#[derive(Debug)]
pub(in crate::engine) struct SpeculationPolicy {
    /// For each number of rows, the seconds of a step and the step of the last measurement.
    times: BTreeMap<usize, (f64, u64)>,
    steps: u64,
    all: ByKind,
    own: BTreeMap<u64, ByKind>,
    /// The seconds of a pass of the draft model.
    drafting: Option<f64>,
    /// The step in which the model last drafted.
    drafted_at: u64,
}

impl Default for SpeculationPolicy {
    fn default() -> Self {
        let all = [AcceptanceRate::START; SOURCES * CLASSES];
        Self { times: BTreeMap::new(), steps: 0, all, own: BTreeMap::new(), drafting: None, drafted_at: 0 }
    }
}

impl SpeculationPolicy {
    /// Records the duration of a decode step with `rows` rows.
    pub(in crate::engine) fn record_time(&mut self, rows: usize, seconds: f64) {
        self.steps += 1;
        let old = self.times.get(&rows).filter(|it| self.steps - it.1 <= STALE).map(|it| it.0);
        let mut time = old;
        fade(&mut time, seconds);
        self.times.insert(rows, (time.unwrap_or(seconds), self.steps));
    }

    /// Records the result of a draft: the first `accepted` of its first `verified` tokens were drawn. For an unverified draft the first
    /// token counts, since it can be compared once the next token is drawn.
    pub(in crate::engine) fn record_draft(
        &mut self,
        id: u64,
        kind: DraftKind,
        verified: usize,
        accepted: usize,
    ) {
        self.own.entry(id).or_insert(self.all)[kind.0].record(verified, accepted, OWN);
        self.all[kind.0].record(verified, accepted, ALL);
    }

    /// Records the duration of a pass of the draft model.
    pub(in crate::engine) fn record_drafting(&mut self, seconds: f64) {
        fade(&mut self.drafting, seconds);
        self.drafted_at = self.steps;
    }

    /// Returns true if, for a sequence, the first token of a draft of kind `one` is at least as likely to be right as that of kind `other`.
    pub(in crate::engine) fn prefers(&self, id: u64, one: DraftKind, other: DraftKind) -> bool {
        let odds = self.own.get(&id).unwrap_or(&self.all);
        odds[one.0].first >= odds[other.0].first
    }

    /// Returns the number of tokens that a model should draft for each of these sequences, before a step of `rows` rows with a limit of
    /// `limit` rows. Each token takes one pass of the draft model over all of these sequences.
    pub(in crate::engine) fn worth_drafting(
        &self,
        rows: usize,
        limit: usize,
        ids: &[u64],
        kind: DraftKind,
    ) -> usize {
        let most = limit.saturating_sub(rows).checked_div(ids.len()).unwrap_or(0).min(MAX_DRAFT);
        let Some(time) = self.time(rows) else { return 0 };
        let Some(pass) = self.drafting else { return most.min(FIRST) };
        let odds: Vec<AcceptanceRate> =
            ids.iter().map(|id| self.own.get(id).unwrap_or(&self.all)[kind.0]).collect();
        let (mut best, mut count, mut tokens) = (rows as f64 / time * WORTH, 0, rows as f64);
        for place in 0..most {
            tokens += odds.iter().map(|it| it.all_right(place)).sum::<f64>();
            let step = self.time(rows + (place + 1) * ids.len()).unwrap_or(f64::INFINITY);
            let rate = tokens / (step + (place + 1) as f64 * pass);
            if rate > best {
                (best, count) = (rate, place + 1);
            }
        }
        let is_due = self.steps >= self.drafted_at + TRIAL_INTERVAL;
        if count == 0 && is_due { most.min(1) } else { count }
    }

    /// Removes a sequence.
    pub(in crate::engine) fn remove(&mut self, id: u64) {
        self.own.remove(&id);
    }

    /// Chooses the number of draft tokens to verify per sequence, to maximize the expected tokens per second. The step has `rows` rows
    /// without drafts, and at most `limit` rows in total.
    pub(super) fn choose(&self, rows: usize, limit: usize, drafts: &[(u64, DraftView)]) -> Vec<(u64, usize)> {
        let mut candidates: Vec<(f64, u64)> = Vec::new();
        for (id, draft) in drafts {
            let odds = self.own.get(id).unwrap_or(&self.all)[draft.kind.0];
            let odds = if draft.force { AcceptanceRate { first: 1.0, next: 1.0 } } else { odds };
            candidates.extend((0..draft.length.min(MAX_DRAFT)).map(|place| (odds.all_right(place), *id)));
        }
        // The sort is stable, so a token never precedes the one before it.
        candidates.sort_by(|one, other| other.0.total_cmp(&one.0));
        candidates.truncate(limit.saturating_sub(rows));
        let force = drafts.iter().any(|it| it.1.force);
        let count = if force { candidates.len() } else { self.worth(rows, &candidates) };
        let mut chosen: BTreeMap<u64, usize> = BTreeMap::new();
        candidates[..count].iter().for_each(|it| *chosen.entry(it.1).or_default() += 1);
        chosen.into_iter().collect()
    }

    /// Returns the number of candidates that maximizes the tokens per second. The candidates are sorted by falling probability.
    fn worth(&self, rows: usize, candidates: &[(f64, u64)]) -> usize {
        let Some(time) = self.time(rows) else { return 0 };
        let plain = rows as f64 / time;
        let (mut best, mut count, mut tokens) = (plain * WORTH, 0, rows as f64);
        for (place, candidate) in candidates.iter().enumerate() {
            tokens += candidate.0;
            let rate = tokens / self.time(rows + place + 1).unwrap_or(f64::INFINITY);
            if rate > best {
                (best, count) = (rate, place + 1);
            }
        }
        count
    }

    /// Returns the expected seconds of a step of `rows` rows: measured, interpolated or extrapolated.
    fn time(&self, rows: usize) -> Option<f64> {
        let mut known =
            self.times.iter().filter(|it| self.steps - it.1.1 <= STALE).map(|(&at, it)| (at, it.0));
        let below = known.clone().take_while(|it| it.0 <= rows).last();
        let above = known.find(|it| it.0 >= rows);
        let grown = |rows: usize| 1.0 + ROW_COST * rows as f64;
        Some(match (below?, above) {
            (below, Some(above)) if above.0 > below.0 => {
                let share = (rows - below.0) as f64 / (above.0 - below.0) as f64;
                below.1 + share * (above.1 - below.1)
            }
            (below, _) => below.1 * grown(rows - below.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(length: usize, kind: DraftKind) -> DraftView {
        DraftView { length, kind, force: false }
    }

    /// Returns the number of tokens chosen for one sequence with drafts that are always or never right, on a device with this cost per row.
    fn learned(row_cost: f64, right: bool) -> usize {
        let mut policy = SpeculationPolicy::default();
        let kind = DraftKind::new(0, 5);
        let mut last = 0;
        for _ in 0..300 {
            let chosen = policy.choose(1, 8, &[(1, view(7, kind))]);
            last = chosen.first().map_or(0, |it| it.1);
            policy.record_time(1 + last, 1.0 + row_cost * last as f64);
            let verified = last.max(1);
            policy.record_draft(1, kind, verified, if right { verified } else { 0 });
        }
        last
    }

    #[test]
    fn right_drafts_are_verified_and_wrong_ones_are_not() {
        assert_eq!(learned(0.1, true), 7);
        assert_eq!(learned(0.1, false), 0);
        assert_eq!(learned(1.5, true), 0, "rows that cost more than a step of their own");
    }

    #[test]
    fn drafts_give_way_to_rows() {
        let mut policy = SpeculationPolicy::default();
        (1..=8).for_each(|rows| policy.record_time(rows, 1.0 + 0.1 * rows as f64));
        let drafts: Vec<_> = (1..=6).map(|id| (id, view(7, DraftKind::new(0, 20)))).collect();
        let rows: usize = policy.choose(6, 8, &drafts).iter().map(|it| it.1).sum();
        assert!(rows <= 2, "{rows} rows of drafts beside six");
        assert!(policy.choose(8, 8, &drafts).is_empty());
    }

    /// Returns in how many of 300 steps a model drafts, and the length of its last draft. Its drafts are always or never right, and `pass`
    /// is the cost of one of its passes relative to a step.
    fn drafted_steps(pass: f64, right: bool) -> (usize, usize) {
        let mut policy = SpeculationPolicy::default();
        let kind = DraftKind::new(4, 0);
        let (mut steps, mut last) = (0, 0);
        for _ in 0..300 {
            last = policy.worth_drafting(1, 8, &[1], kind);
            policy.record_time(1 + last, 1.0 + 0.1 * last as f64);
            if last > 0 {
                steps += 1;
                policy.record_drafting(pass);
                policy.record_draft(1, kind, last, if right { last } else { 0 });
            }
        }
        (steps, last)
    }

    #[test]
    fn a_model_drafts_as_long_as_that_pays() {
        let (steps, last) = drafted_steps(0.1, true);
        assert!(steps > 290 && last == 7, "{last} tokens in {steps} steps");
        assert!(drafted_steps(0.1, false).0 < 20);
        assert!(drafted_steps(1.1, true).0 < 20, "as slow as the model itself");
    }

    #[test]
    fn old_times_are_measured_again() {
        let mut policy = SpeculationPolicy::default();
        policy.record_time(8, 100.0);
        policy.record_time(1, 1.0);
        assert!(policy.choose(1, 8, &[(1, view(7, DraftKind::new(0, 20)))]).iter().all(|it| it.1 < 2));
        (0..=STALE).for_each(|_| policy.record_time(1, 1.0));
        assert!(policy.choose(1, 8, &[(1, view(7, DraftKind::new(0, 20)))]).iter().any(|it| it.1 > 2));
    }

    proptest! {
        #[test]
        fn no_draft_is_longer_than_proposed_and_no_step_wider_than_allowed(
            times in proptest::collection::vec((1..33usize, 0.001..1.0f64), 0..20),
            drafts in proptest::collection::btree_map(0..40u64, (0..30usize, 0..4u8, 0..40usize, any::<bool>()), 0..12),
            went in proptest::collection::vec((0..40u64, 0..4u8, 0..40usize, 0..16usize, 0..16usize), 0..60),
            rows in 1..33usize,
            limit in 1..33usize,
        ) {
            let mut policy = SpeculationPolicy::default();
            for (rows, seconds) in times {
                policy.record_time(rows, seconds);
            }
            for (id, source, length, verified, accepted) in went {
                policy.record_draft(id, DraftKind::new(source, length), verified, accepted.min(verified));
            }
            let drafts: Vec<(u64, DraftView)> = drafts
                .into_iter()
                .map(|(id, (length, source, rests_on, force))| {
                    (id, DraftView { length, kind: DraftKind::new(source, rests_on), force })
                })
                .collect();
            let chosen = policy.choose(rows, limit, &drafts);
            for (id, count) in &chosen {
                let draft = drafts.iter().find(|it| it.0 == *id).map_or(0, |it| it.1.length);
                prop_assert!(*count > 0 && *count <= draft.min(MAX_DRAFT));
            }
            let added: usize = chosen.iter().map(|it| it.1).sum();
            prop_assert!(added == 0 || rows + added <= limit);
        }
    }
}
