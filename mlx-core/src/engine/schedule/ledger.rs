//! The accounts of reserved and used bytes. Invariant: pure; the reservations together never exceed the budget, and the bytes counted
//! as used by a holder never exceed its reservation.

use std::collections::BTreeMap;

/// Reservations against a budget, in bytes.
#[derive(Debug)]
pub(in crate::engine) struct Ledger {
    budget: u64,
    accounts: BTreeMap<u64, Account>,
    reserved: u64,
    used: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    reserved: u64,
    used: u64,
}

impl Ledger {
    /// A ledger over `budget` bytes, all of them free.
    pub(in crate::engine) fn new(budget: u64) -> Self {
        Self { budget, accounts: BTreeMap::new(), reserved: 0, used: 0 }
    }

    /// Bytes reserved by all holders.
    pub(in crate::engine) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes that are not reserved: the prefix cache may use them.
    pub(in crate::engine) fn free(&self) -> u64 {
        self.budget - self.reserved
    }

    /// Bytes in use by all holders.
    pub(in crate::engine) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes reserved by `holder`.
    pub(in crate::engine) fn reserved_by(&self, holder: u64) -> u64 {
        self.accounts.get(&holder).map_or(0, |account| account.reserved)
    }

    /// Whether `bytes` more can be reserved now.
    pub(in crate::engine) fn fits(&self, bytes: u64) -> bool {
        bytes <= self.free()
    }

    /// Reserves `bytes` more for `holder`; false, and nothing changes, without room.
    pub(in crate::engine) fn reserve(&mut self, holder: u64, bytes: u64) -> bool {
        if !self.fits(bytes) {
            return false;
        }
        self.accounts.entry(holder).or_default().reserved += bytes;
        self.reserved += bytes;
        true
    }

    /// Records what `holder` uses now. More than its reservation is a fault of the estimate: the reservation is counted, and the excess
    /// is returned for a log line.
    pub(in crate::engine) fn record_used(&mut self, holder: u64, bytes: u64) -> u64 {
        let Some(account) = self.accounts.get_mut(&holder) else { return bytes };
        let counted = bytes.min(account.reserved);
        self.used = self.used - account.used + counted;
        account.used = counted;
        bytes - counted
    }

    /// Takes everything back from `holder`.
    pub(in crate::engine) fn release(&mut self, holder: u64) {
        if let Some(account) = self.accounts.remove(&holder) {
            self.reserved -= account.reserved;
            self.used -= account.used;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Action {
        Reserve(u64, u64),
        Use(u64, u64),
        Release(u64),
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let action = prop_oneof![
            4 => (0..6u64, 0..400u64).prop_map(|(holder, bytes)| Action::Reserve(holder, bytes)),
            4 => (0..6u64, 0..500u64).prop_map(|(holder, bytes)| Action::Use(holder, bytes)),
            2 => (0..6u64).prop_map(Action::Release),
        ];
        proptest::collection::vec(action, 0..200)
    }

    proptest! {
        #[test]
        fn reservations_hold_and_all_sums_close(budget in 0..1500u64, actions in actions()) {
            let mut ledger = Ledger::new(budget);
            let mut reserved_by_holder: BTreeMap<u64, u64> = BTreeMap::new();
            for action in actions {
                match action {
                    Action::Reserve(holder, bytes) => {
                        let total: u64 = reserved_by_holder.values().sum();
                        let granted = ledger.reserve(holder, bytes);
                        prop_assert_eq!(granted, total + bytes <= budget);
                        if granted {
                            *reserved_by_holder.entry(holder).or_default() += bytes;
                        }
                    }
                    Action::Use(holder, bytes) => {
                        let excess = ledger.record_used(holder, bytes);
                        let limit = reserved_by_holder.get(&holder).copied().unwrap_or(0);
                        prop_assert_eq!(excess, bytes.saturating_sub(limit));
                    }
                    Action::Release(holder) => {
                        ledger.release(holder);
                        reserved_by_holder.remove(&holder);
                    }
                }
                prop_assert_eq!(ledger.reserved(), reserved_by_holder.values().sum::<u64>());
                prop_assert!(ledger.used() <= ledger.reserved() && ledger.reserved() <= budget);
            }
            for holder in 0..6 {
                ledger.release(holder);
            }
            prop_assert_eq!((ledger.reserved(), ledger.used()), (0, 0));
        }
    }
}
