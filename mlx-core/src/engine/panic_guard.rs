//! Records the sequences that a step processes, so that a panic affects no other sequence.

/// The sequences being processed, in case of a panic.
#[derive(Debug, Default)]
pub(super) struct PanicGuard {
    /// The sequence being processed, if there is only one.
    pub(super) single: Option<u64>,
    /// Otherwise, the sequences of the current plan.
    pub(super) pass: Vec<u64>,
    /// The number of consecutive iterations of the loop that panicked.
    pub(super) in_a_row: usize,
}

impl PanicGuard {
    /// Records the sequences of a plan before its pass.
    pub(super) fn begin_pass(&mut self, ids: Vec<u64>) {
        self.pass = ids;
    }

    /// Records a step without a panic.
    pub(super) fn end_pass(&mut self) {
        self.pass.clear();
        self.in_a_row = 0;
    }

    /// Runs `work`, which processes one sequence.
    pub(super) fn single<T>(&mut self, id: u64, work: impl FnOnce() -> T) -> T {
        self.single = Some(id);
        let result = work();
        self.single = None;
        result
    }
}
