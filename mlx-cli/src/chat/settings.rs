//! `/params` and `/seed`: shows and changes request parameters.

use mlx_core::Error;

use super::Chat;
use super::params::{self, Params};
use crate::exit_code::Failure;
use crate::terminal;

impl Chat {
    pub(super) fn params(&self) -> Params<'_> {
        let checkpoint = &self.session.engine().folder().sampling;
        Params { options: self.session.options(), flags: &self.flags, checkpoint }
    }

    /// Changes parameters and prints the note that `confirm` returns.
    pub(super) fn change_params(
        &mut self,
        text: &str,
        confirm: impl Fn(&Self) -> Result<String, Error>,
    ) -> Result<(), Failure> {
        let mut options = self.session.options().clone();
        match params::change(&mut options, text) {
            Ok(()) => {
                self.session.set_options(options)?;
                terminal::note(&confirm(self)?);
            }
            Err(message) => self.report_error(&message),
        }
        Ok(())
    }

    pub(super) fn seed_in_use(&self) -> String {
        let last = self.session.last_seed().map_or_else(String::new, |seed| format!("; the last was {seed}"));
        match self.session.options().sampling.seed {
            Some(seed) => format!("each answer uses the seed {seed}"),
            None => format!("each answer draws a new seed{last}"),
        }
    }
}
