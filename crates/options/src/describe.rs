//! Engine errors for users of the programs: fields become flags, and remedies become commands.

use mlx_core::Error;

/// Returns the message of an error for the user of a command line.
pub fn describe(error: &Error) -> String {
    match error {
        Error::Request { field: name, message }
        | Error::ContextLength { field: name, message, .. }
        | Error::Option { name, message } => {
            format!("{} {message}", flag(name))
        }
        Error::Environment { variable, message } => format!("{variable} {message}"),
        Error::NotDownloaded { name, .. } if name.contains('/') => {
            format!("{error}; `mlx pull {name}` downloads it")
        }
        Error::NotDownloaded { .. } => {
            format!(
                "{error}; `mlx list` lists the models on this machine; a model of the Hub is named ORG/NAME"
            )
        }
        Error::NoChatTemplate { .. } => format!("{error}; `mlx generate --raw` needs no template"),
        Error::NotEmpty { .. } => format!("{error}; give another folder, or --force to write into this one"),
        Error::NotFinite(_) => format!("{error} (--dtype)"),
        other => other.to_string(),
    }
}

/// Returns the flag that sets a field, or a description of a field without a flag.
fn flag(field: &str) -> String {
    match field {
        "prompt" => "the prompt".to_owned(),
        "messages" => "the messages".to_owned(),
        "content" => "the message".to_owned(),
        "name" => "ORG/NAME".to_owned(),
        "image" | "images" => "--image".to_owned(),
        "input_audio" => "the audio".to_owned(),
        "adapters" => "--adapter".to_owned(),
        "prompt_cache" => "--prompt-cache-dir".to_owned(),
        "dry_sequence_breakers" => "--dry-sequence-breaker".to_owned(),
        other => format!("--{}", other.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags_and_remedies_commands() {
        for (error, text) in [
            (Error::request("top_p", "is 2; it must be from 0 to 1"), "--top-p is 2; it must be from 0 to 1"),
            (Error::request("prompt", "is empty"), "the prompt is empty"),
            (Error::request("images", "cannot be given to llama"), "--image cannot be given to llama"),
            (Error::request("content", "holds an image"), "the message holds an image"),
            (Error::option("memory_budget", "is 1 MiB"), "--memory-budget is 1 MiB"),
            (Error::environment("HF_HOME", "is not set"), "HF_HOME is not set"),
            (
                Error::NotDownloaded { name: "org/tiny".into(), message: "is not in the cache".into() },
                "org/tiny: is not in the cache; `mlx pull org/tiny` downloads it",
            ),
            (
                Error::NotDownloaded { name: "tiny".into(), message: "is not in the cache".into() },
                "tiny: is not in the cache; `mlx list` lists the models on this machine; a model of the Hub is named ORG/NAME",
            ),
            (
                Error::NotDownloaded { name: "org/tiny:Q4_0".into(), message: "is not here".into() },
                "org/tiny:Q4_0: is not here; `mlx pull org/tiny:Q4_0` downloads it",
            ),
            (Error::Mlx("out of memory".into()), "mlx: out of memory"),
        ] {
            assert_eq!(describe(&error), text);
        }
    }
}
