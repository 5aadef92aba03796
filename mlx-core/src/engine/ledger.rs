//! Who has been promised how many bytes. Invariant: pure; the promises together never exceed the budget, and what a holder uses
//! never exceeds what it was promised.

use std::collections::BTreeMap;

/// Reservations against a budget, in bytes.
#[derive(Debug)]
pub(super) struct Ledger {
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
    pub(super) fn new(budget: u64) -> Self {
        Self { budget, accounts: BTreeMap::new(), reserved: 0, used: 0 }
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes promised to anybody.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes promised to nobody: what may be kept for later.
    pub(super) fn free(&self) -> u64 {
        self.budget - self.reserved
    }

    /// Bytes in use by anybody.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes promised to `holder`.
    pub(super) fn reserved_by(&self, holder: u64) -> u64 {
        self.accounts.get(&holder).map_or(0, |account| account.reserved)
    }

    /// Whether `bytes` more can be promised now.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        bytes <= self.free()
    }

    /// Promises `bytes` more to `holder`; false, and nothing changes, if there is no room.
    pub(super) fn reserve(&mut self, holder: u64, bytes: u64) -> bool {
        if !self.fits(bytes) {
            return false;
        }
        self.accounts.entry(holder).or_default().reserved += bytes;
        self.reserved += bytes;
        true
    }

    /// Notes what `holder` uses now. More than it was promised is a fault of the estimate: it is counted as what was promised, and
    /// the excess is given back for a log line.
    pub(super) fn note_used(&mut self, holder: u64, bytes: u64) -> u64 {
        let Some(account) = self.accounts.get_mut(&holder) else { return bytes };
        let counted = bytes.min(account.reserved);
        self.used = self.used - account.used + counted;
        account.used = counted;
        bytes - counted
    }

    /// Takes everything back from `holder`.
    pub(super) fn release(&mut self, holder: u64) {
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
        fn promises_hold_and_all_sums_close(budget in 0..1500u64, actions in actions()) {
            let mut ledger = Ledger::new(budget);
            let mut promised: BTreeMap<u64, u64> = BTreeMap::new();
            for action in actions {
                match action {
                    Action::Reserve(holder, bytes) => {
                        let total: u64 = promised.values().sum();
                        let granted = ledger.reserve(holder, bytes);
                        prop_assert_eq!(granted, total + bytes <= budget);
                        if granted {
                            *promised.entry(holder).or_default() += bytes;
                        }
                    }
                    Action::Use(holder, bytes) => {
                        let excess = ledger.note_used(holder, bytes);
                        let limit = promised.get(&holder).copied().unwrap_or(0);
                        prop_assert_eq!(excess, bytes.saturating_sub(limit));
                    }
                    Action::Release(holder) => {
                        ledger.release(holder);
                        promised.remove(&holder);
                    }
                }
                prop_assert_eq!(ledger.reserved(), promised.values().sum::<u64>());
                prop_assert!(ledger.used() <= ledger.reserved() && ledger.reserved() <= budget);
            }
            for holder in 0..6 {
                ledger.release(holder);
            }
            prop_assert_eq!((ledger.reserved(), ledger.used()), (0, 0));
        }
    }
}
