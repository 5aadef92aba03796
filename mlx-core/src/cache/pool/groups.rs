//! Decides which sequences of a step share a pool. Invariant: pure. All slots of a pool have the capacity of its longest sequence, and
//! take no more memory together than its sequences were promised.

/// The maximum number of pools of a step, if memory allows. Each pool costs a separate attention call.
const POOLS: usize = 3;

/// Sequences in a pool differ in length by at most this factor, unless there are [`POOLS`] pools.
const RATIO: usize = 4;

/// The memory that one sequence needs in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cache) struct Need {
    /// The capacity of its buffer at the end of the step, in positions.
    pub(in crate::cache) capacity: usize,
    /// The number of positions for which memory was promised; at least `capacity`.
    pub(in crate::cache) promised: usize,
}

/// Sequences that share a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// The indices of the sequences, ascending.
    pub(super) members: Vec<usize>,
    /// The number of positions of each slot.
    pub(super) capacity: usize,
    /// The number of slots.
    pub(super) slots: usize,
}

/// Divides the sequences of a step among as few pools as their lengths and promises allow.
pub(super) fn group(needs: &[Need]) -> Vec<Group> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(needs[index].capacity));
    let mut groups: Vec<Group> = Vec::new();
    for index in order {
        let last = groups.len() == POOLS;
        match groups.last_mut() {
            Some(group) if group.takes(needs, index, last) => group.members.push(index),
            _ => groups.push(Group { members: vec![index], capacity: needs[index].capacity, slots: 0 }),
        }
    }
    for group in &mut groups {
        group.members.sort_unstable();
        group.slots = slots(group.members.iter().map(|&member| needs[member]), group.capacity);
    }
    groups
}

impl Group {
    /// Returns true if this sequence, which is not longer than the others, may share the pool.
    fn takes(&self, needs: &[Need], index: usize, is_last: bool) -> bool {
        let near = is_last || needs[index].capacity * RATIO >= self.capacity;
        let of_all = self.members.iter().chain([&index]).map(|&member| needs[member]);
        near && slots(of_all, self.capacity) > self.members.len()
    }
}

/// Returns the number of slots of this capacity that the promises of these sequences cover, limited to the next power of two.
pub(super) fn slots(needs: impl Iterator<Item = Need>, capacity: usize) -> usize {
    let (count, promised) = needs.fold((0, 0), |(count, sum): (usize, usize), need| {
        (count + 1, sum.saturating_add(need.promised.max(need.capacity)))
    });
    (promised / capacity.max(1)).min(count.next_power_of_two())
}

/// Returns true if a sequence that needs this many positions may join a pool of this capacity.
pub(super) fn is_near(needed: usize, capacity: usize, pools: usize) -> bool {
    needed <= capacity && (pools >= POOLS || needed * RATIO >= capacity)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn needs() -> impl Strategy<Value = Vec<Need>> {
        let need = (1..130usize, 0..200usize)
            .prop_map(|(steps, more)| Need { capacity: steps * 256, promised: (steps + more) * 256 });
        proptest::collection::vec(need, 1..40)
    }

    proptest! {
        #[test]
        fn every_sequence_has_room_and_pools_take_what_was_promised(needs in needs()) {
            let groups = group(&needs);
            let mut members: Vec<usize> = groups.iter().flat_map(|group| group.members.clone()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, (0..needs.len()).collect::<Vec<_>>());
            for group in &groups {
                let promised: usize = group.members.iter().map(|&member| needs[member].promised).sum();
                prop_assert!(group.slots >= group.members.len());
                prop_assert!(group.slots * group.capacity <= promised);
                prop_assert!(group.members.iter().all(|&member| needs[member].capacity <= group.capacity));
            }
        }

        #[test]
        fn with_memory_for_all_there_are_few_pools(needs in needs()) {
            let needs: Vec<Need> = needs.iter().map(|need| Need { promised: 130 * 256, ..*need }).collect();
            prop_assert!(group(&needs).len() <= POOLS);
        }
    }

    #[test]
    fn near_lengths_share_a_pool() {
        let need = |capacity| Need { capacity, promised: 8192 };
        let groups = group(&[need(256), need(8192), need(2048), need(256), need(4096)]);
        let members: Vec<_> = groups.iter().map(|group| group.members.clone()).collect();
        assert_eq!(members, [vec![1, 2, 4], vec![0, 3]]);
        // No more was promised than each sequence already has.
        let exact = |capacity| Need { capacity, promised: capacity };
        assert_eq!(group(&[exact(256), exact(512), exact(512)]).len(), 2);
    }
}
