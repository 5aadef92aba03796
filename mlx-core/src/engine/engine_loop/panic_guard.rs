//! A record of the sequences that a step works on, so that a panic is blamed on no others.

/// The sequences that are being worked on, for the case of a panic.
#[derive(Debug, Default)]
pub(super) struct PanicGuard {
    /// The one sequence that is being worked on, where it is one.
    pub(super) alone: Option<u64>,
    /// Otherwise, those of the plan that is being carried out.
    pub(super) pass: Vec<u64>,
    /// Turns that panicked since a step went well.
    pub(super) in_a_row: usize,
}

impl PanicGuard {
    /// A plan for these sequences is carried out from now on.
    pub(super) fn begin_pass(&mut self, ids: Vec<u64>) {
        self.pass = ids;
    }

    /// A step went well.
    pub(super) fn end_pass(&mut self) {
        self.pass.clear();
        self.in_a_row = 0;
    }
}
