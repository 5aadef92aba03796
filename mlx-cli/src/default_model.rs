//! `mlx default`: shows and sets the default model.

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::Error;

use crate::exit_code::Failure;
use crate::{default_file, model_choice, terminal};

/// Examples shown after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx default mlx-community/Qwen3-4B-4bit
  mlx default              # show it
  mlx default --none

A model on the command line or in MLX_MODEL overrides it. Without any of them, `mlx chat` offers a choice, and other commands fail.";

#[derive(Debug, Args)]
pub(crate) struct DefaultArgs {
    /// The model: a name that `mlx list` shows, a folder, or guide; if omitted, the current default is shown
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Remove the default model
    #[arg(long, conflicts_with = "model")]
    none: bool,
}

/// Runs the command.
pub(crate) fn run(args: &DefaultArgs) -> Result<(), Failure> {
    match (&args.model, default_file::read()?) {
        _ if args.none => {
            default_file::remove()?;
            terminal::note("there is no default model now");
        }
        (Some(model), _) => {
            let name = checked(model)?;
            default_file::write(&name)?;
            terminal::note(&format!("{name} is now the default model"));
        }
        (None, Some(model)) => terminal::show(&format!("{}\n", model.display()))?,
        (None, None) => terminal::note("there is no default model; `mlx default MODEL` chooses one"),
    }
    Ok(())
}

/// Returns the name to store once the model is found. A path is stored as an absolute one.
fn checked(model: &Path) -> Result<String, Failure> {
    model_choice::resolve(model)?;
    let name = match model {
        guide if model_choice::is_guide(guide) => guide.to_path_buf(),
        // A link to a GGUF file has its name; the file in the Hub cache has none.
        file if file.is_file() => std::path::absolute(file).map_err(|error| Error::io(file, error))?,
        folder if folder.exists() => folder.canonicalize().map_err(|error| Error::io(folder, error))?,
        name => name.to_path_buf(),
    };
    let name = name.to_str().ok_or_else(|| Failure::usage("MODEL", "is not UTF-8"))?;
    if name.contains('\n') {
        Err(Failure::usage("MODEL", "contains a line break"))
    } else {
        Ok(name.to_owned())
    }
}
