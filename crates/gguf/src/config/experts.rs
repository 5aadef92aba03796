//! The keys of mixtures of experts.

use serde_json::json;

use super::keys::{Config, set};
use crate::error::Result;
use crate::model::Model;

/// The gating functions, by their stored numbers.
const SOFTMAX: usize = 1;
const SIGMOID: usize = 2;

/// Returns the number of experts; 0 for a dense model. Some dense models have the key, too.
pub(super) fn count(model: &Model) -> Result<usize> {
    if !model.any_has("ffn_gate_inp.weight") {
        return Ok(0);
    }
    model.size("expert_count")
}

/// Returns the number of experts for each token.
pub(super) fn used(model: &Model) -> Result<usize> {
    let used = model.size("expert_used_count")?;
    let all = model.size("expert_count")?;
    if used > all {
        return Err(model.error("expert_used_count", format!("is {used}; there are {all} experts")));
    }
    Ok(used)
}

/// Returns the width of an expert.
pub(super) fn width(model: &Model) -> Result<usize> {
    if let Some(width) = model.largest("expert_feed_forward_length")? {
        return Ok(width);
    }
    let rows = model.rows_of("ffn_up_exps.weight");
    rows.or(model.rows_of("ffn_gate_up_exps.weight").map(|both| both / 2))
        .filter(|&width| width > 0)
        .ok_or_else(|| model.error("expert_feed_forward_length", "is missing"))
}

/// Returns the scoring function; `usual` if the file has none.
pub(super) fn scoring(model: &Model, usual: &'static str) -> Result<&'static str> {
    let name = "expert_gating_func";
    match model.optional_size(name)? {
        None | Some(0) => Ok(usual),
        Some(SOFTMAX) => Ok("softmax"),
        Some(SIGMOID) => Ok("sigmoid"),
        Some(other) => {
            let message = format!("is {other}; supported are {SOFTMAX}, softmax, and {SIGMOID}, sigmoid");
            Err(model.error(name, message))
        }
    }
}

/// Checks that the scoring function is the known one.
pub(super) fn expect_scoring(model: &Model, known: &'static str) -> Result<()> {
    let found = scoring(model, known)?;
    if found == known {
        return Ok(());
    }
    let message = format!("is {found}; this family supports only {known}");
    Err(model.error("expert_gating_func", message))
}

/// Returns true for each layer with experts.
pub(super) fn sparse(model: &Model) -> Vec<bool> {
    (0..model.layers).map(|layer| model.layer_has(layer, "ffn_gate_inp.weight")).collect()
}

/// Returns the number of layers without experts before the first one with them.
pub(super) fn dense_layers(model: &Model) -> Result<usize> {
    let sparse = sparse(model);
    let first = sparse.iter().position(|&sparse| sparse).unwrap_or(sparse.len());
    match sparse[first..].iter().position(|&sparse| !sparse) {
        None => Ok(first),
        Some(after) => {
            let name = format!("blk.{}.ffn_gate_inp.weight", first + after);
            Err(model.tensor_error(&name, "is missing; earlier layers have experts"))
        }
    }
}

/// Returns the number of shared experts.
pub(super) fn shared(model: &Model) -> Result<usize> {
    let rows = model.rows_of("ffn_up_shexp.weight").or(model.rows_of("ffn_gate_shexp.weight"));
    match (rows, model.optional_size("expert_shared_count")?) {
        (None, _) => Ok(0),
        (Some(_), Some(count)) if count > 0 => Ok(count),
        (Some(rows), _) => Ok((rows / width(model)?).max(1)),
    }
}

/// Returns the factor of the experts' sum.
pub(super) fn scale(model: &Model) -> Result<f64> {
    Ok(model.number("expert_weights_scale")?.filter(|&scale| scale > 0.0).unwrap_or(1.0))
}

/// Returns true if the weights of a token's experts sum to 1; `usual` if the file does not say.
pub(super) fn normalizes(model: &Model, usual: bool) -> Result<bool> {
    Ok(model.flag("expert_weights_norm")?.unwrap_or(usual))
}

/// Checks that the model has no experts.
pub(super) fn expect_none(model: &Model) -> Result<()> {
    if count(model)? > 0 {
        return Err(model.error("expert_count", "is above 0; experts are not supported in this family"));
    }
    Ok(())
}

/// Writes the number of experts, the number for each token, and their width.
pub(super) fn write_sizes(model: &Model, config: &mut Config) -> Result<()> {
    set(
        config,
        json!({
            "num_experts": model.size("expert_count")?,
            "num_experts_per_tok": used(model)?,
            "moe_intermediate_size": width(model)?,
        }),
    );
    Ok(())
}

/// Like [`write_sizes`], for families with Mixtral's keys.
pub(super) fn write_local_sizes(model: &Model, config: &mut Config) -> Result<()> {
    set(
        config,
        json!({
            "intermediate_size": width(model)?,
            "num_local_experts": model.size("expert_count")?,
            "num_experts_per_tok": used(model)?,
        }),
    );
    Ok(())
}

/// Writes the keys of Qwen's mixtures.
pub(super) fn write_qwen(model: &Model, config: &mut Config, normalizes: bool) -> Result<()> {
    let dense: Vec<usize> =
        sparse(model).iter().enumerate().filter(|(_, sparse)| !**sparse).map(|(layer, _)| layer).collect();
    write_sizes(model, config)?;
    set(config, json!({"norm_topk_prob": normalizes, "decoder_sparse_step": 1, "mlp_only_layers": dense}));
    if let Some(width) = model.rows_of("ffn_up_shexp.weight") {
        config.insert("shared_expert_intermediate_size".to_owned(), width.into());
    }
    Ok(())
}

/// Writes the keys of DeepSeek's mixtures. `normalizes` is the default of `norm_topk_prob`.
pub(super) fn write_deepseek(model: &Model, config: &mut Config, normalizes: bool) -> Result<()> {
    set(
        config,
        json!({
            "n_routed_experts": model.size("expert_count")?,
            "num_experts_per_tok": used(model)?,
            "moe_intermediate_size": width(model)?,
            "n_shared_experts": shared(model)?,
            "first_k_dense_replace": dense_layers(model)?,
            "norm_topk_prob": self::normalizes(model, normalizes)?,
            "routed_scaling_factor": scale(model)?,
            "n_group": groups(model, "expert_group_count")?,
            "topk_group": groups(model, "expert_group_used_count")?,
            // Draft layers are left out.
            "num_nextn_predict_layers": 0,
        }),
    );
    Ok(())
}

/// Returns a number of groups of experts.
pub(super) fn groups(model: &Model, name: &str) -> Result<usize> {
    Ok(model.positive_size(name)?.unwrap_or(1))
}

/// Returns true if the choice of experts is corrected by a bias for each.
pub(super) fn corrected(model: &Model) -> bool {
    model.any_has("exp_probs_b.bias") || model.any_has("exp_probs_b")
}
