//! Accounts of reserved and used bytes. Invariant: pure. The reservations together never exceed the budget, and the bytes counted as used
//! by a holder never exceed its reservation.

use std::collections::BTreeMap;

/// The memory that a sequence needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct Need {
    /// Bytes for the sequence only.
    pub(in crate::engine) own: u64,
    /// Bytes of its widest pass. Passes run one after the other, so all sequences share the largest of these.
    pub(in crate::engine) pass: u64,
}

impl Need {
    /// Returns the bytes that it needs if no other sequence runs.
    pub(in crate::engine) fn total(self) -> u64 {
        self.own + self.pass
    }
}

/// Reservations against a budget, in bytes.
#[derive(Debug)]
pub(in crate::engine) struct Ledger {
    budget: u64,
    accounts: BTreeMap<u64, Account>,
    /// Own bytes reserved by all holders.
    own: u64,
    /// The number of holders for each size of a widest pass.
    passes: BTreeMap<u64, usize>,
    used: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    reserved: Need,
    used: u64,
}

impl Ledger {
    /// Creates a ledger with `budget` free bytes.
    pub(in crate::engine) fn new(budget: u64) -> Self {
        Self { budget, accounts: BTreeMap::new(), own: 0, passes: BTreeMap::new(), used: 0 }
    }

    /// Returns the bytes reserved by all holders.
    pub(in crate::engine) fn reserved(&self) -> u64 {
        self.own + self.widest_pass()
    }

    /// Returns the bytes of the widest pass of all holders.
    pub(in crate::engine) fn widest_pass(&self) -> u64 {
        self.passes.last_key_value().map_or(0, |(&bytes, _)| bytes)
    }

    /// Returns the unreserved bytes, which the prefix cache may use.
    pub(in crate::engine) fn free(&self) -> u64 {
        self.budget - self.reserved()
    }

    /// Returns the bytes used by all holders.
    pub(in crate::engine) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the reservation of `holder`.
    pub(in crate::engine) fn reserved_by(&self, holder: u64) -> Need {
        self.accounts.get(&holder).map_or(Need::default(), |account| account.reserved)
    }

    /// Reserves `need.own` more bytes for `holder`, and a pass of at least `need.pass`. Returns false and changes nothing if they do not
    /// fit.
    pub(in crate::engine) fn reserve(&mut self, holder: u64, need: Need) -> bool {
        let own = self.own + need.own;
        if own + self.widest_pass().max(need.pass) > self.budget {
            return false;
        }
        let reserved = &mut self.accounts.entry(holder).or_default().reserved;
        let before = reserved.pass;
        reserved.own += need.own;
        reserved.pass = before.max(need.pass);
        let after = reserved.pass;
        self.own = own;
        self.remove_pass(before);
        if after > 0 {
            *self.passes.entry(after).or_default() += 1;
        }
        true
    }

    /// Records the bytes that `holder` uses now. A value above its reservation is an error of the estimate; then the reservation is
    /// counted, and the excess is returned for a log message.
    pub(in crate::engine) fn record_used(&mut self, holder: u64, bytes: u64) -> u64 {
        let Some(account) = self.accounts.get_mut(&holder) else { return bytes };
        let counted = bytes.min(account.reserved.own);
        self.used = self.used - account.used + counted;
        account.used = counted;
        bytes - counted
    }

    /// Releases the reservation of `holder`.
    pub(in crate::engine) fn release(&mut self, holder: u64) {
        if let Some(account) = self.accounts.remove(&holder) {
            self.own -= account.reserved.own;
            self.used -= account.used;
            self.remove_pass(account.reserved.pass);
        }
    }

    fn remove_pass(&mut self, bytes: u64) {
        if let Some(count) = self.passes.get_mut(&bytes) {
            *count -= 1;
            if *count == 0 {
                self.passes.remove(&bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Action {
        Reserve(u64, Need),
        Use(u64, u64),
        Release(u64),
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let action = prop_oneof![
            4 => (0..6u64, 0..400u64, 0..300u64)
                .prop_map(|(holder, own, pass)| Action::Reserve(holder, Need { own, pass })),
            4 => (0..6u64, 0..500u64).prop_map(|(holder, bytes)| Action::Use(holder, bytes)),
            2 => (0..6u64).prop_map(Action::Release),
        ];
        proptest::collection::vec(action, 0..200)
    }

    proptest! {
        #[test]
        fn reservations_hold_and_all_sums_close(budget in 0..1500u64, actions in actions()) {
            let mut ledger = Ledger::new(budget);
            let mut reserved_by_holder: BTreeMap<u64, Need> = BTreeMap::new();
            let sum = |holders: &BTreeMap<u64, Need>| -> u64 {
                holders.values().map(|it| it.own).sum::<u64>() + holders.values().map(|it| it.pass).max().unwrap_or(0)
            };
            for action in actions {
                match action {
                    Action::Reserve(holder, need) => {
                        let mut after = reserved_by_holder.clone();
                        let account = after.entry(holder).or_default();
                        *account = Need { own: account.own + need.own, pass: account.pass.max(need.pass) };
                        let granted = ledger.reserve(holder, need);
                        prop_assert_eq!(granted, sum(&after) <= budget);
                        if granted {
                            reserved_by_holder = after;
                        }
                    }
                    Action::Use(holder, bytes) => {
                        let excess = ledger.record_used(holder, bytes);
                        let limit = reserved_by_holder.get(&holder).map_or(0, |it| it.own);
                        prop_assert_eq!(excess, bytes.saturating_sub(limit));
                    }
                    Action::Release(holder) => {
                        ledger.release(holder);
                        reserved_by_holder.remove(&holder);
                    }
                }
                prop_assert_eq!(ledger.reserved(), sum(&reserved_by_holder));
                let expected = |holder| reserved_by_holder.get(&holder).copied().unwrap_or_default();
                prop_assert!((0..6).all(|holder| ledger.reserved_by(holder) == expected(holder)));
                prop_assert!(ledger.used() <= ledger.reserved() && ledger.reserved() <= budget);
            }
            for holder in 0..6 {
                ledger.release(holder);
            }
            prop_assert_eq!((ledger.reserved(), ledger.used()), (0, 0));
        }
    }
}
