//! Multimodal models with a text part of another family.

use super::{base, hybrid, latent, llama};
use crate::config::Fields;
use crate::error::Result;
use crate::model::config::DecoderConfig;

/// The text part of Mistral 3, which is of another family.
pub(super) fn mistral3(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section(fields)?;
    let mut config = match text.optional_text("model_type")? {
        Some("mistral" | "ministral") | None => llama::mistral(&text),
        Some("ministral3") => llama::ministral3(&text),
        Some("mistral4") => latent::mistral4(&text),
        Some("llama") => llama::llama(&text),
        Some(other) => {
            let message = format_args!(
                "{other:?} is not supported; supported are llama, mistral, ministral, ministral3 and mistral4"
            );
            Err(text.error("model_type", message))
        }
    }?;
    config.tensors.nested = true;
    Ok(config)
}

/// The text of Kimi K2.5.
pub(super) fn kimi_k25(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = latent::deepseek_v3(&base::text_section(fields)?)?;
    config.tensors.nested = true;
    Ok(config)
}

/// The text part of LFM2-VL.
pub(super) fn lfm2_vl(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section(&fields.with_default("tie_word_embeddings", true.into()))?;
    let mut config = match text.optional_text("model_type")? {
        Some("lfm2") | None => hybrid::lfm2(&text),
        Some("lfm2_moe") => hybrid::lfm2_moe(&text),
        Some(other) => {
            let message = format_args!("{other:?} is not supported; supported are lfm2 and lfm2_moe");
            Err(text.error("model_type", message))
        }
    }?;
    config.tensors.nested = true;
    Ok(config)
}
