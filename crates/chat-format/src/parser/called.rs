//! A call as far as it was read, and what its readers look at.

use super::events::Events;
use super::input::Input;
use crate::format::CallSyntax;
use crate::tool::Tools;

/// A call as far as it was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    /// Arguments that wait for the name.
    args: Vec<u8>,
    /// The call is an event.
    pub(super) is_started: bool,
}

impl Call {
    pub(super) fn named(name: String) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// More of the arguments, once the call has begun.
    pub(super) fn hold(&mut self, more: &[u8]) {
        self.args.extend_from_slice(more);
    }

    /// Whether any of the arguments wait.
    pub(super) fn has_arguments(&self) -> bool {
        !self.args.is_empty()
    }

    /// More of the arguments.
    pub(super) fn args(&mut self, more: &[u8], input: &mut Input, events: &mut Events) {
        self.args.extend_from_slice(more);
        self.start(input, events);
    }

    /// Begins the call if its name is known.
    pub(super) fn start(&mut self, input: &mut Input, events: &mut Events) {
        let Some(name) = &self.name else { return };
        if !std::mem::replace(&mut self.is_started, true) {
            events.call_start(self.id.clone(), name.clone());
        }
        events.args(&std::mem::take(&mut self.args));
        input.commit();
    }

    /// Begins the call if it has not begun, with no arguments if none came.
    pub(super) fn start_whole(&mut self, input: &mut Input, events: &mut Events) {
        if !self.is_started && self.args.is_empty() {
            self.args.extend(*b"{}");
        }
        self.start(input, events);
    }
}

/// What a reader of arguments may look at.
pub(super) struct Context<'a> {
    pub(super) syntax: &'a CallSyntax,
    pub(super) tools: &'a Tools,
}
