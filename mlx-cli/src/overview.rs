//! `mlx` alone: what is here and what to type next.

use clap::ColorChoice;
use mlx_core::hub::Cache;

use crate::args;
use crate::exit_code::Failure;
use crate::terminal;

/// Three lines on a terminal; elsewhere the help, as an error.
pub(crate) fn run() -> Result<(), Failure> {
    if !terminal::is_interactive() {
        terminal::note(&args::command().color(ColorChoice::Never).render_help().to_string());
        return Err(Failure::Usage("no command given".to_owned()));
    }
    terminal::show(&text(&Cache::from_env()?.list()?.into_iter().map(|model| model.name).collect::<Vec<_>>()))
}

fn text(models: &[String]) -> String {
    let here = match models {
        [] => "no models here yet".to_owned(),
        [one] => format!("one model here: {one}"),
        [first, others @ ..] => {
            format!("{} models here: {first} and {} more (mlx list)", models.len(), others.len())
        }
    };
    let next = models.first().map_or("ORG/NAME", String::as_str);
    format!("mlx: {here}\n  mlx chat {next}\n  mlx pull ORG/NAME     more: mlx --help\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_lines_say_what_is_here() {
        assert!(text(&[]).starts_with("mlx: no models here yet\n  mlx chat ORG/NAME\n"));
        let text = text(&["a/b".to_owned(), "a/c".to_owned()]);
        assert!(text.contains("2 models here: a/b and 1 more") && text.lines().count() == 3, "{text}");
    }
}
