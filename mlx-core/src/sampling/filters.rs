//! Filters that reduce a row to candidates before the draw. All of them use the row before temperature, and order candidates by id. No
//! filter sorts a vocabulary.

use std::cmp::Ordering;

use super::math::{exp, mass_by_value};
use super::params::Xtc;
use super::scan::{BLOCK, Scan};

/// A token that may still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// Buffers of the filters.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// The remaining candidates, by ascending id.
    pub(super) kept: Vec<Candidate>,
    /// Scratch space for partial sorts.
    ordered: Vec<Candidate>,
    peaks: Vec<f32>,
}

/// Orders candidates by descending logit, then by ascending id. Every filter uses this order, so that ties are resolved consistently.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that sorting asks for")]
fn by_rank(left: &Candidate, right: &Candidate) -> Ordering {
    right.logit.total_cmp(&left.logit).then(left.id.cmp(&right.id))
}

impl Candidates {
    /// Takes all tokens with a logit of at least `floor` and above minus infinity.
    pub(super) fn at_least(&mut self, row: &[f32], scan: &Scan, floor: f32) {
        self.kept.clear();
        let blocks = row.chunks(BLOCK).zip(scan.peaks()).zip((0..).step_by(BLOCK));
        for ((block, _), first) in blocks.filter(|((_, peak), _)| **peak >= floor) {
            // Branchless: writes every value, and advances only past those to keep. A branch would be mispredicted too often.
            let (mut kept, mut count) = ([Candidate { id: 0, logit: 0.0 }; BLOCK], 0);
            for (id, &logit) in (first..).zip(block) {
                kept[count] = Candidate { id, logit };
                count += usize::from(logit >= floor && logit > f32::NEG_INFINITY);
            }
            self.kept.extend_from_slice(&kept[..count]);
        }
    }

    /// Takes the `count` likeliest tokens of a row, exactly that many even with ties (top-k: Fan et al., 2018, arXiv:1805.04833).
    pub(super) fn top_k_of_row(&mut self, row: &[f32], scan: &Scan, count: usize) {
        self.peaks.clear();
        self.peaks.extend_from_slice(scan.peaks());
        let floor = if (1..self.peaks.len()).contains(&count) {
            // At least `count` blocks reach this peak, so at least as many tokens do.
            *self.peaks.select_nth_unstable_by(count - 1, |left, right| right.total_cmp(left)).1
        } else {
            f32::NEG_INFINITY
        };
        self.at_least(row, scan, floor);
        self.top_k(count);
    }

    /// Keeps the `count` likeliest candidates.
    pub(super) fn top_k(&mut self, count: usize) {
        if count == 0 {
            self.kept.clear();
        } else if count < self.kept.len() {
            self.ordered.clone_from(&self.kept);
            let last = *self.ordered.select_nth_unstable_by(count - 1, by_rank).1;
            self.kept.retain(|it| by_rank(it, &last).is_le());
        }
    }

    /// Sorts the candidates by descending logit.
    pub(super) fn ranked(&mut self) -> &[Candidate] {
        self.kept.sort_unstable_by(by_rank);
        &self.kept
    }

    /// Applies top-p (Holtzman et al., 2019, arXiv:1904.09751) to a whole row: keeps the smallest set of likeliest tokens with a share of the
    /// probability mass of at least `p`.
    pub(super) fn top_p_of_row(&mut self, row: &[f32], scan: &Scan, p: f32) {
        let top = scan.top();
        let mut by_distance = MassByDistance::default();
        let total = mass_by_value(row, top, |values, masses| by_distance.add(values, masses, top));
        let target = share_of(total, p);
        self.at_least(row, scan, by_distance.floor(top, target));
        self.cut_at_mass(target, by_rank, |it| it.logit - top);
    }

    /// Applies top-p to the candidates. Keeps at least one.
    pub(super) fn top_p(&mut self, p: f32) {
        let (top, total) = self.top_and_mass();
        self.cut_at_mass(share_of(total, p), by_rank, |it| it.logit - top);
    }

    /// Applies locally typical sampling (Meister et al., 2022, arXiv:2202.00666): keeps the fewest candidates with a share of the mass of at
    /// least `p`, starting with surprisals closest to the mean. Keeps at least one.
    pub(super) fn typical_p(&mut self, p: f32) {
        let (top, total) = self.top_and_mass();
        let share = |it: &Candidate| f64::from(exp(it.logit - top)) / total * f64::from(it.logit - top);
        let mean: f64 = self.kept.iter().map(share).sum();
        // -ln p - H = (ln total - x) - (ln total - mean) = mean - x, both relative to the top.
        let center = (f64::from(top) + mean) as f32;
        let distance = |it: &Candidate| (center - it.logit).abs();
        let nearest = |left: &Candidate, right: &Candidate| {
            distance(left).total_cmp(&distance(right)).then_with(|| by_rank(left, right))
        };
        self.cut_at_mass(share_of(total, p), nearest, |it| it.logit - top);
    }

    /// Applies min-p (Nguyen et al., 2024, arXiv:2407.01082): keeps candidates at least `p` times as likely as the likeliest.
    pub(super) fn min_p(&mut self, p: f32) {
        let top = self.top();
        self.kept.retain(|it| exp(it.logit - top) >= p);
    }

    /// Applies XTC (p-e-w, 2024, text-generation-webui pull request 6335): removes all candidates with at least the threshold probability
    /// except the least likely of them. Protected tokens stay.
    pub(super) fn exclude_top_choices(&mut self, xtc: Xtc, protected: &[u32]) {
        let (top, total) = self.top_and_mass();
        let enough = f64::from(xtc.threshold) * total;
        let is_choice = |it: &Candidate| f64::from(exp(it.logit - top)) >= enough;
        let Some(last) = self.kept.iter().copied().filter(is_choice).max_by(by_rank) else { return };
        self.kept.retain(|it| !is_choice(it) || *it == last || protected.contains(&it.id));
    }

    fn top(&self) -> f32 {
        let larger = |best, it: &Candidate| if it.logit > best { it.logit } else { best };
        self.kept.iter().fold(f32::NEG_INFINITY, larger)
    }

    /// Returns the largest logit, and the sum of `exp(x - largest)` in the order of the ids.
    fn top_and_mass(&self) -> (f32, f64) {
        let top = self.top();
        (top, self.kept.iter().map(|it| f64::from(exp(it.logit - top))).sum())
    }

    /// Keeps the shortest prefix of the candidates in `order` with a mass of at least `target`: at least one candidate, or all if the
    /// target is not reached. `weight` is the logarithm of a candidate's mass. Each round partitions only the half that contains the last
    /// candidate, so the total cost is that of a few scans.
    fn cut_at_mass(
        &mut self,
        target: f64,
        order: impl Fn(&Candidate, &Candidate) -> Ordering + Copy,
        weight: impl Fn(&Candidate) -> f32,
    ) {
        let mass_of = |it: &Candidate| f64::from(exp(weight(it)));
        self.ordered.clone_from(&self.kept);
        let (mut range, mut missing) = (0..self.ordered.len(), target);
        while range.len() > 32 {
            let half = range.len() / 2;
            let part = &mut self.ordered[range.clone()];
            part.select_nth_unstable_by(half, order);
            let mass: f64 = part[..half].iter().map(mass_of).sum();
            if mass >= missing {
                range.end = range.start + half;
            } else {
                missing -= mass;
                range.start += half;
            }
        }
        let part = &mut self.ordered[range];
        part.sort_unstable_by(order);
        let reaches = |it: &&Candidate| {
            missing -= mass_of(it);
            missing <= 0.0
        };
        if let Some(last) = part.iter().find(reaches).or(part.last()).copied() {
            self.kept.retain(|it| order(it, &last).is_le());
        }
    }
}

/// Returns the share `p` of a mass. The f32 of a decimal may be half a unit too large, and a set with exactly this share must count:
/// 20 of 200 equal tokens are a share of 0.1.
fn share_of(total: f64, p: f32) -> f64 {
    f64::from(p) * (1.0 - f64::from(f32::EPSILON) / 2.0) * total
}

/// The mass of a row by distance from its top, in quarters of a logit. The last bucket holds all larger distances.
struct MassByDistance([f64; 128]);

impl Default for MassByDistance {
    fn default() -> Self {
        Self([0.0; 128])
    }
}

impl MassByDistance {
    const PER_LOGIT: f32 = 4.0;

    fn add(&mut self, values: &[f32], masses: &[f32], top: f32) {
        for (&value, &mass) in values.iter().zip(masses) {
            let bucket = ((top - value) * Self::PER_LOGIT) as usize;
            self.0[bucket.min(127)] += f64::from(mass);
        }
    }

    /// Returns a floor with at least `target` mass above it. It is not much lower than necessary.
    fn floor(&self, top: f32, target: f64) -> f32 {
        let mut mass = 0.0;
        let reached = self.0[..127].iter().position(|bucket| {
            mass += bucket;
            mass >= target
        });
        // Half a bucket lower than needed, so that rounding cannot matter.
        reached.map_or(f32::NEG_INFINITY, |bucket| top - (bucket as f32 + 1.5) / Self::PER_LOGIT)
    }
}

/// Returns a floor below which no token passes [`Candidates::min_p`].
pub(super) fn min_p_floor(top: f32, p: f32) -> f32 {
    // Slightly below the exact bound. `min_p` decides with its own arithmetic.
    top + p.ln() - 1e-3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(candidates: &[Candidate]) -> Vec<u32> {
        candidates.iter().map(|candidate| candidate.id).collect()
    }

    fn left(shares: &[f32], filter: impl FnOnce(&mut Candidates)) -> Vec<u32> {
        let row: Vec<f32> = shares.iter().map(|share| share.ln()).collect();
        let mut pool = Candidates::default();
        pool.at_least(&row, &scan(&row), f32::NEG_INFINITY);
        filter(&mut pool);
        ids(&pool.kept)
    }

    fn scan(row: &[f32]) -> Scan {
        let mut scan = Scan::default();
        scan.read(row);
        scan
    }

    fn scattered(length: u32) -> Vec<f32> {
        (0..length).map(|place| ((place * 7919) % 4001) as f32 / 400.0).collect()
    }

    #[test]
    fn the_head_is_exact_and_ties_go_to_the_lower_id() {
        let mut pool = Candidates::default();
        let ties = [2.0, 5.0, 2.0, 2.0];
        pool.top_k_of_row(&ties, &scan(&ties), 2);
        assert_eq!(ids(pool.ranked()), [1, 0]);
        let row = scattered(9000);
        let mut sorted: Vec<u32> = (0..9000).collect();
        sorted.sort_by(|&left, &right| {
            row[right as usize].total_cmp(&row[left as usize]).then(left.cmp(&right))
        });
        for count in [0, 1, 7, 64, 140, 141, 500, 9000] {
            pool.top_k_of_row(&row, &scan(&row), count);
            assert_eq!(ids(pool.ranked()), sorted[..count], "{count}");
        }
    }

    #[test]
    fn top_p_takes_the_fewest_that_reach_the_mass() {
        let flat = left(&[0.005; 200], |pool| pool.top_p(0.1));
        assert_eq!(flat, (0..20).collect::<Vec<_>>());
        for (p, kept) in [(0.4, 1), (0.6, 2), (0.8, 3), (0.95, 4), (1e-9, 1), (0.0, 1)] {
            assert_eq!(left(&[0.5, 0.25, 0.15, 0.1], |pool| pool.top_p(p)).len(), kept, "p = {p}");
        }
    }

    /// Compares with a full sort, on rows with the cut among few and among many candidates.
    #[test]
    fn a_nucleus_is_what_a_full_sort_would_leave() {
        let mut pool = Candidates::default();
        for (row, scale) in [(scattered(6000), 1.0), (scattered(6000), 0.01), (vec![0.0; 5000], 1.0)] {
            let row: Vec<f32> = row.iter().map(|logit| logit * scale).collect();
            let mut sorted: Vec<Candidate> =
                (0..).zip(&row).map(|(id, &logit)| Candidate { id, logit }).collect();
            sorted.sort_by(by_rank);
            let total: f64 = sorted.iter().map(|it| f64::from(it.logit).exp()).sum();
            for p in [0.1011, 0.5013, 0.9013, 0.9903, 0.99991] {
                let mut mass = 0.0;
                let kept = sorted.iter().take_while(|it| {
                    let more = mass < f64::from(p) * total;
                    mass += f64::from(it.logit).exp();
                    more
                });
                let mut expected: Vec<u32> = kept.map(|it| it.id).collect();
                expected.sort_unstable();
                pool.top_p_of_row(&row, &scan(&row), p);
                assert_eq!(ids(&pool.kept), expected, "p = {p}, scale {scale}");
            }
        }
    }

    #[test]
    fn min_p_is_a_share_of_the_likeliest() {
        assert_eq!(left(&[1.0, 0.5, 0.05], |pool| pool.min_p(0.1)), [0, 1]);
        assert_eq!(left(&[0.25, 0.25], |pool| pool.min_p(1.0)), [0, 1]);
    }

    #[test]
    fn typical_p_prefers_what_is_as_surprising_as_the_average() {
        // H = 0.90 nats; the surprisals are 0.51, 1.2 and 2.3, so the second is closest, then the first.
        assert_eq!(left(&[0.6, 0.3, 0.1], |pool| pool.typical_p(0.2)), [1]);
        assert_eq!(left(&[0.6, 0.3, 0.1], |pool| pool.typical_p(0.5)), [0, 1]);
    }

    #[test]
    fn xtc_leaves_the_least_likely_choice_and_the_protected() {
        let xtc = Xtc { probability: 1.0, threshold: 0.2 };
        let excluded = |protected: &[u32]| {
            left(&[0.4, 0.25, 0.3, 0.05], |pool| pool.exclude_top_choices(xtc, protected))
        };
        assert_eq!(excluded(&[]), [1, 3]);
        assert_eq!(excluded(&[0]), [0, 1, 3]);
    }
}
