//! Meta's Muse Glimmer: normalized embeddings, gates on the output of attention, and layers without rope.

use super::base::{self, Defaults, LLAMA, nullable, positive, refuse};
use super::gemma::BLOCK;
use super::layers;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{OutputGate, QkNormConfig, QkNormScope};
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::head::LogitScale;
use crate::model::norm::{NormConfig, NormKind};

const MUSE: Defaults = Defaults {
    num_kv_heads: Some(2),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    eps: ("rms_norm_eps", 1e-5),
    norm: NormKind::RmsPlusOne,
    activation: ("hidden_activation", "silu"),
    ..LLAMA
};

/// The text part of Muse Glimmer.
pub(super) fn muse_glimmer(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &base::text_section(fields)?;
    refuse(fields, "attention_bias")?;
    let mut config = base::read(fields, &MUSE)?;
    config.tensors.nested = true;
    let plain = NormConfig { kind: NormKind::RmsWithoutWeight, ..config.norm };
    config.embedding_norm = Some(plain);
    config.last_norm = Some(NormConfig { kind: NormKind::Rms, ..config.norm });
    let eps = positive(fields, "post_norm_eps", 1e-8)? as f32;
    config.block = BlockConfig { post_norm_eps: Some(eps), ..BLOCK };
    config.attention.norm = Some(QkNormConfig { scope: QkNormScope::Head, after_rope: false, norm: plain });
    config.attention.scale *= positive(fields, "qk_scale_factor", 3.87)? as f32;
    config.attention.output_gate = Some(OutputGate::Apart);
    let scale = positive(fields, "output_multiplier", 0.196_116_135_138_184_04)?;
    config.head.scale = Some(LogitScale::Times(scale as f32));
    config.head.softcap = nullable(fields, "final_logit_softcapping", Some(20.0))?;
    let count = config.layers.len();
    let is_upper = |layer: usize| (count - 1 - layer).is_multiple_of(4);
    let sliding = layers::kinds(fields, count, |layer| !is_upper(layer))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(2048))?)?;
    let thetas = layers::rope_thetas(fields, count)?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        // The list only turns rope off; all other layers rotate by `rope_parameters`.
        let rotates = thetas.as_ref().map_or(!is_upper(index), |thetas| thetas[index] > 0.0);
        layer.rope = layer.rope.take().filter(|_| rotates);
    }
    Ok(config)
}
