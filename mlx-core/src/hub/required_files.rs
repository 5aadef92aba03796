//! The files that are needed to run a model.

use std::path::Path;

use crate::error::Result;
use crate::weights;

/// Files that every model has.
const MANDATORY: [&str; 2] = ["config.json", "tokenizer.json"];

/// Files that are needed under exactly this name, if the model has them.
const BY_NAME: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "1_Pooling/config.json",
    weights::INDEX,
];

/// Whether `file` is needed besides the weights: configuration, tokenizer, chat templates and how vectors
/// are pooled.
pub fn described(file: &str) -> bool {
    if let Some(template) = file.strip_prefix("additional_chat_templates/") {
        return !template.contains('/') && ends_in(template, "jinja");
    }
    if let Some((folder, name)) = file.split_once('/')
        && is_module(folder)
    {
        return name == "config.json" || name == "model.safetensors";
    }
    BY_NAME.contains(&file) || (!file.contains('/') && file.starts_with("tokenizer") && ends_in(file, "json"))
}

/// Returns true for the folder of a module of sentence-transformers, such as `2_Dense`.
fn is_module(folder: &str) -> bool {
    folder.split_once('_').is_some_and(|(number, _)| number.parse::<u8>().is_ok())
}

fn ends_in(file: &str, extension: &str) -> bool {
    Path::new(file).extension().is_some_and(|own| own == extension)
}

/// The files that the model in `folder` needs and that are missing.
pub fn missing(folder: &Path) -> Result<Vec<String>> {
    let mut files = MANDATORY.map(str::to_owned).to_vec();
    files.extend(weights::files(folder)?);
    files.retain(|file| !folder.join(file).is_file());
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needed_files_are_required() {
        for file in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "1_Pooling/config.json",
        ] {
            assert!(described(file), "{file}");
        }
        assert!(described("additional_chat_templates/tool_use.jinja"));
        for file in [
            "README.md",
            "model.safetensors",
            "pytorch_model.bin",
            "original/config.json",
            "onnx/tokenizer.json",
            "tokenizer.model",
            "additional_chat_templates/../x.jinja",
            "model.gguf",
            "consolidated.safetensors",
        ] {
            assert!(!described(file), "{file}");
        }
    }

    #[test]
    fn every_shard_in_the_index_is_required() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = || missing(folder.path()).expect("readable");
        assert_eq!(missing(), ["config.json", "tokenizer.json", "model.safetensors"]);
        let index =
            r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
        std::fs::write(folder.path().join(weights::INDEX), index).expect("writes");
        std::fs::write(folder.path().join("two.safetensors"), "").expect("writes");
        assert_eq!(missing(), ["config.json", "tokenizer.json", "one.safetensors"]);
    }
}
