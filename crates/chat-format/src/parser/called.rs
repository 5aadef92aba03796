//! A partially parsed call, and the context of its parsers.

use super::events::Events;
use super::input::Input;
use crate::format::CallSyntax;
use crate::tool::Tools;

/// A partially parsed call.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    /// Arguments that wait for the name.
    args: Vec<u8>,
    /// True if the start of the call was emitted.
    pub(super) is_started: bool,
}

impl Call {
    pub(super) fn named(name: String) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// Adds to the arguments without emitting them.
    pub(super) fn hold(&mut self, more: &[u8]) {
        self.args.extend_from_slice(more);
    }

    /// Returns true if any arguments wait.
    pub(super) fn has_arguments(&self) -> bool {
        !self.args.is_empty()
    }

    /// Adds to the arguments, and emits them if the name is known.
    pub(super) fn args(&mut self, more: &[u8], input: &mut Input, events: &mut Events) {
        self.args.extend_from_slice(more);
        self.start(input, events);
    }

    /// Starts the call if its name is known.
    pub(super) fn start(&mut self, input: &mut Input, events: &mut Events) {
        let Some(name) = &self.name else { return };
        if !std::mem::replace(&mut self.is_started, true) {
            events.call_start(self.id.clone(), name.clone());
        }
        events.args(&std::mem::take(&mut self.args));
        input.commit();
    }

    /// Starts the call if it has not started, with empty arguments if there are none.
    pub(super) fn start_whole(&mut self, input: &mut Input, events: &mut Events) {
        if !self.is_started && self.args.is_empty() {
            self.args.extend(*b"{}");
        }
        self.start(input, events);
    }
}

/// The context of argument parsers.
pub(super) struct Context<'a> {
    pub(super) syntax: &'a CallSyntax,
    pub(super) tools: &'a Tools,
}
