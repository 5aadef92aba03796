//! The models with the tokenizers of Whisper models that have none: MLX's conversions contain only the config and the weights.

use crate::Fields;

/// Returns the model on the Hub that has the tokenizer of a Whisper model with this config. `None` for other models.
pub fn tokenizer_lender(config: &Fields) -> Option<&'static str> {
    let is_original = config.has("n_mels") && config.has("n_audio_ctx");
    let key = if is_original { "n_vocab" } else { "vocab_size" };
    if !is_original && config.optional_text("model_type").ok()? != Some("whisper") {
        return None;
    }
    match config.size(key).ok()? {
        51_864 => Some("openai/whisper-base.en"),
        51_865 => Some("openai/whisper-base"),
        51_866 => Some("openai/whisper-large-v3"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_vocabulary_selects_the_tokenizer() {
        let lender = |config: &str| {
            let path = Path::new("config.json");
            tokenizer_lender(&Fields::of(path, crate::object(path, config.as_bytes()).expect("an object")))
        };
        let original = r#"{"n_mels": 80, "n_audio_ctx": 1500, "n_vocab": 51865}"#;
        assert_eq!(lender(original), Some("openai/whisper-base"));
        assert_eq!(lender(&original.replace("51865", "51864")), Some("openai/whisper-base.en"));
        let named = r#"{"model_type": "whisper", "vocab_size": 51866}"#;
        assert_eq!(lender(named), Some("openai/whisper-large-v3"));
        assert_eq!(lender(&named.replace("whisper", "llama")), None);
        assert_eq!(lender(&named.replace("51866", "100")), None);
    }
}
