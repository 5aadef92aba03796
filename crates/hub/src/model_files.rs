//! The files of a model that affect answers, which downloads and conversions copy, and the files that are required.

use std::path::Path;

use mlx_files::weight_files;

use crate::error::Result;

/// Files that every model requires.
const MANDATORY: [&str; 2] = ["config.json", TOKENIZER];

/// The tokenizer of a model.
pub const TOKENIZER: &str = "tokenizer.json";

/// The tokenizer of a model without [`TOKENIZER`]: its vocabulary, and the merges of byte-pair encoding.
pub const VOCABULARY: [&str; 2] = ["vocab.json", "merges.txt"];

/// Files in the top folder of a model that affect answers, besides `tokenizer*.json` and `sentence_*_config.json`.
const TOP_LEVEL_FILES: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    // Text: templates and tokens.
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    // Vision.
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    // Embeddings, as sentence-transformers computes them.
    "modules.json",
    "config_sentence_transformers.json",
    weight_files::INDEX,
];

/// Returns true for a file that affects answers, except the model's own weights. `file` is its path in the model's
/// folder, with `/`. Downloads fetch exactly these files, the weights, and [`VOCABULARY`] if there is no [`TOKENIZER`].
pub fn affects_output(file: &str) -> bool {
    match file.split_once('/') {
        None => TOP_LEVEL_FILES.contains(&file) || is_named_config(file),
        Some(("additional_chat_templates", name)) => is_plain(name) && ends_in(name, "jinja"),
        Some((folder, name)) => {
            is_module(folder) && (is_plain(name) && ends_in(name, "json") || name == WEIGHTS)
        }
    }
}

/// The weights file of a sentence-transformers module, such as `2_Dense/model.safetensors`.
const WEIGHTS: &str = "model.safetensors";

/// Returns true for `tokenizer*.json`, and for `sentence_bert_config.json` and its siblings, which are named after the architecture.
fn is_named_config(file: &str) -> bool {
    let is_config = file.starts_with("sentence_") && file.ends_with("_config.json");
    is_config || file.starts_with("tokenizer") && ends_in(file, "json")
}

/// Returns true for the folder of a sentence-transformers module: a number and a type, such as `1_Pooling`.
fn is_module(folder: &str) -> bool {
    let word = |text: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    folder.split_once('_').is_some_and(|(number, kind)| number.parse::<u8>().is_ok() && word(kind))
}

fn is_plain(name: &str) -> bool {
    !name.contains('/') && !name.starts_with('.')
}

fn ends_in(file: &str, extension: &str) -> bool {
    Path::new(file).extension().is_some_and(|own| own == extension)
}

/// Returns the required files that `folder` lacks.
pub fn missing(folder: &Path) -> Result<Vec<String>> {
    let mut files = MANDATORY.map(str::to_owned).to_vec();
    files.extend(weight_files::files(folder)?);
    let has = |file: &str| folder.join(file).is_file();
    let is_replaced = |file: &str| file == TOKENIZER && VOCABULARY.into_iter().all(has);
    files.retain(|file| !has(file) && !is_replaced(file));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_change_an_answer_are_known_by_their_names() {
        for file in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "added_tokens.json",
            "chat_template.jinja",
            "chat_template.json",
            "additional_chat_templates/tool_use.jinja",
            "preprocessor_config.json",
            "processor_config.json",
            "video_preprocessor_config.json",
            "hf_quant_config.json",
            "modules.json",
            "config_sentence_transformers.json",
            "sentence_bert_config.json",
            "sentence_xlm-roberta_config.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "3_Normalize/config.json",
        ] {
            assert!(affects_output(file), "{file}");
        }
        for file in [
            "README.md",
            "model.safetensors",
            "pytorch_model.bin",
            "original/config.json",
            "onnx/tokenizer.json",
            "openvino/config.json",
            "tokenizer.model",
            "additional_chat_templates/../x.jinja",
            "additional_chat_templates/a/x.jinja",
            "2_Dense/pytorch_model.bin",
            "2_Dense/../config.json",
            "2_Dense/..json",
            "2_Dense/deep/config.json",
            "2_/config.json",
            "2_.../config.json",
            "_Dense/config.json",
            "../config.json",
            "/config.json",
            "model.gguf",
            "consolidated.safetensors",
        ] {
            assert!(!affects_output(file), "{file}");
        }
    }

    #[test]
    fn every_shard_in_the_index_is_required() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = || missing(folder.path()).expect("readable");
        assert_eq!(missing(), ["config.json", "tokenizer.json", "model.safetensors"]);
        let index =
            r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
        std::fs::write(folder.path().join(weight_files::INDEX), index).expect("writes");
        std::fs::write(folder.path().join("two.safetensors"), "").expect("writes");
        assert_eq!(missing(), ["config.json", "tokenizer.json", "one.safetensors"]);
    }

    #[test]
    fn a_vocabulary_with_its_merges_replaces_the_tokenizer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let lacks_tokenizer = || missing(folder.path()).expect("readable").contains(&TOKENIZER.to_owned());
        std::fs::write(folder.path().join("vocab.json"), "{}").expect("writes");
        assert!(lacks_tokenizer());
        std::fs::write(folder.path().join("merges.txt"), "").expect("writes");
        assert!(!lacks_tokenizer());
    }
}
