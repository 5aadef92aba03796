//! The settings of a chat: request parameters, the model, thinking and the system prompt.

use std::path::Path;

use chat_format::{Message, Thinking};
use mlx_core::Error;
use mlx_core::chat::ContextFill;
use mlx_core::engine::RequestOptions;
use mlx_guide as guide;

use super::params::{self, Params};
use super::{Chat, ThoughtView};
use crate::completion::local_models;
use crate::exit_code::Failure;
use crate::model_args::start;
use crate::model_choice;
use crate::terminal;

impl Chat {
    pub(super) fn params(&self) -> Params<'_> {
        let checkpoint = &self.session.engine().folder().sampling;
        Params { options: self.session.options(), flags: &self.flags, initial: &self.initial, checkpoint }
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

    pub(super) fn change_model(&mut self, name: &str) -> Result<(), Failure> {
        let folder = model_choice::resolve(Path::new(name))?;
        model_choice::expect_chat_model(&folder)?;
        let (options, device) = (&self.engine_options, self.device);
        let engine = self.engines.start_by(&folder, options, || start(&folder, options, device))?;
        let (name, previous_thinking) = (engine.folder().name(), self.session.thinking());
        self.session.change_model(engine)?;
        self.last.clear();
        if let Some(note) = model_choice::base_model_note(self.session.engine().folder()) {
            terminal::note(&note);
        }
        terminal::note(&format!("now using {name}; the conversation continues"));
        if self.session.thinking() != previous_thinking {
            terminal::note(
                "this model does not support the previous reasoning setting; try /think on or /think off",
            );
        }
        Ok(())
    }

    /// Lists the models on this machine and the one in use, which may be a folder elsewhere.
    pub(super) fn list_models(&self) -> Result<(), Failure> {
        let path = &self.session.engine().folder().path;
        let name = || mlx_hub::name_of(path).unwrap_or_else(|| path.display().to_string());
        let used = if *path == guide::folder()? { guide::NAME.to_owned() } else { name() };
        let mut names = local_models();
        names.retain(|name| *name != used);
        names.insert(0, format!("{used}  (in use)"));
        terminal::note(&names.join("\n"));
        Ok(())
    }

    pub(super) fn think(&mut self, word: Option<&str>) -> Result<(), Failure> {
        let Some(word) = word else {
            let is_full = self.view == ThoughtView::Full;
            self.view = if is_full { ThoughtView::Folded } else { ThoughtView::Full };
            terminal::note(if is_full { "thoughts are folded" } else { "thoughts are shown" });
            return Ok(());
        };
        let note = match (word.parse(), word.parse::<Thinking>()) {
            (Ok(budget), _) => {
                self.set_think_budget(Some(budget))?;
                let thinks = self.session.engine().folder().format.has_thoughts();
                let when = if thinks { "from the next answer on" } else { "but this model does not think" };
                format!("thoughts end after {budget} tokens, {when}")
            }
            (_, Ok(thinking)) => {
                self.session.set_thinking(thinking)?;
                self.set_think_budget(None)?;
                let is_default = thinking == Thinking::Auto;
                let state = if is_default { "the default of the model" } else { word };
                format!("thinking is {state}, from the next answer on")
            }
            (_, Err(message)) => {
                self.report_error(&format!("{message}, or a number of tokens"));
                return Ok(());
            }
        };
        terminal::note(&note);
        Ok(())
    }

    fn set_think_budget(&mut self, think_budget: Option<usize>) -> Result<(), Error> {
        let options = RequestOptions { think_budget, ..self.session.options().clone() };
        self.session.set_options(options)?;
        if think_budget.is_some() && self.session.thinking() == Thinking::Off {
            self.session.set_thinking(Thinking::Auto)?;
        }
        Ok(())
    }

    pub(super) fn show_context_fill(&self) -> Result<(), Failure> {
        let ContextFill { used, context, messages, dropped } = self.session.fill()?;
        let dropped_note =
            if dropped > 0 { format!(", {dropped} of them no longer seen") } else { String::new() };
        let share = 100 * used / context.max(1);
        terminal::note(&format!("{used} of {context} tokens ({share} %), {messages} messages{dropped_note}"));
        Ok(())
    }

    pub(super) fn show_system(&self) {
        let system = self.session.messages().iter().find(|message| message.role.is_instruction());
        terminal::note(&system.map_or_else(|| "there is no system prompt".to_owned(), Message::text));
    }
}
