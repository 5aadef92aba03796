//! `mlx` without a command: shows the local models and the next command.

use clap::ColorChoice;

use crate::exit_code::Failure;
use crate::{args, model_choice, terminal};

/// Prints three lines on a terminal. Otherwise fails with the help.
pub(crate) fn run() -> Result<(), Failure> {
    if !terminal::is_interactive() {
        terminal::note(&args::command().color(ColorChoice::Never).render_help().to_string());
        return Err(Failure::Usage("no command given".to_owned()));
    }
    terminal::show(&text(&model_choice::local_names()))
}

fn text(models: &[String]) -> String {
    let here = match models {
        [] => "no models here yet; the first chat offers some".to_owned(),
        [one] => format!("one model here: {one}"),
        [first, others @ ..] => {
            format!("{} models here: {first} and {} more (mlx list)", models.len(), others.len())
        }
    };
    format!("mlx: {here}\nStart here: mlx chat\nAll commands: mlx --help\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_lines_name_the_models_and_the_next_command() {
        let two = ["a/b".to_owned(), "a/c".to_owned()];
        for (models, here) in
            [(&[][..], "no models here yet"), (&two[..1], "here: a/b"), (&two, "a/b and 1 more")]
        {
            let text = text(models);
            assert!(text.contains(here) && text.contains("\nStart here: mlx chat\n"), "{text}");
            assert!(text.lines().count() == 3 && !text.contains("ORG/NAME"), "{text}");
        }
    }
}
