//! Tiny checkpoints with as many layers and heads as several machines need.

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::{Dice, model_copy, tensors};

/// Returns a copy of a tiny checkpoint with this many layers, made by repeating its own.
///
/// # Panics
/// If it is not a checkpoint of one file, or cannot be written.
pub fn with_layers(name: &str, layers: usize) -> tempfile::TempDir {
    let folder = model_copy(name);
    let config_path = folder.path().join("config.json");
    let config = std::fs::read(&config_path).expect("a config");
    let mut config: Value = serde_json::from_slice(&config).expect("json");
    let is_nested = config.get("text_config").is_some();
    let text = if is_nested { &mut config["text_config"] } else { &mut config };
    let own = text["num_hidden_layers"].as_u64().expect("a number") as usize;
    text["num_hidden_layers"] = json!(layers);
    if let Some(types) = text.get("layer_types").and_then(Value::as_array).cloned() {
        text["layer_types"] = (0..layers).map(|layer| types[layer % own].clone()).collect();
    }
    if let Some(dense) = text.get("mlp_only_layers").and_then(Value::as_array).cloned() {
        let is_dense = |layer: &usize| dense.contains(&json!(layer % own));
        text["mlp_only_layers"] = (0..layers).filter(is_dense).map(Value::from).collect();
    }
    std::fs::write(&config_path, config.to_string()).expect("it can be written");
    let path = folder.path().join("model.safetensors");
    let mut all = tensors::read(&path);
    let first: Vec<(String, tensors::Tensor)> = all
        .iter()
        .filter(|it| it.0.contains(".layers."))
        .map(|(name, it)| (name.clone(), it.clone()))
        .collect();
    for (name, tensor) in first {
        let (before, rest) = name.split_once(".layers.").expect("the name of a layer's tensor");
        let (layer, part) = rest.split_once('.').expect("the name of a layer's tensor");
        let layer: usize = layer.parse().expect("a number");
        for copy in (layer + own..layers).step_by(own) {
            all.insert(format!("{before}.layers.{copy}.{part}"), tensor.clone());
        }
    }
    tensors::write(&path, &all);
    folder
}

/// Returns a copy of a tiny checkpoint with this many key-value heads, made by repeating its own. It computes the
/// same.
///
/// # Panics
/// If it is not a checkpoint of one file, or cannot be written.
pub fn with_key_heads(name: &str, heads: usize) -> tempfile::TempDir {
    let folder = model_copy(name);
    let config_path = folder.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&config_path).expect("a config")).expect("json");
    let is_nested = config.get("text_config").is_some();
    let text = if is_nested { &mut config["text_config"] } else { &mut config };
    let own = text["num_key_value_heads"].as_u64().expect("a number") as usize;
    text["num_key_value_heads"] = json!(heads);
    std::fs::write(&config_path, config.to_string()).expect("it can be written");
    let path = folder.path().join("model.safetensors");
    let mut all = tensors::read(&path);
    for (name, (_, shape, bytes)) in &mut all {
        if name.contains("self_attn.k_proj.") || name.contains("self_attn.v_proj.") {
            shape[0] = shape[0] / own * heads;
            let of_head = bytes.len() / own;
            *bytes = bytes.chunks(of_head).flat_map(|head| head.repeat(heads / own)).collect();
        }
    }
    tensors::write(&path, &all);
    folder
}

/// Returns a copy of a tiny Kimi Linear with four heads of the delta rule instead of three, made by repeating the first.
///
/// # Panics
/// If it is not a checkpoint of one file, or cannot be written.
pub fn with_four_delta_heads(name: &str) -> tempfile::TempDir {
    const HEADS: usize = 3;
    let folder = model_copy(name);
    let config_path = folder.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&config_path).expect("a config")).expect("json");
    let size = config["linear_attn_config"]["head_dim"].as_u64().expect("a number") as usize;
    config["linear_attn_config"]["num_heads"] = json!(HEADS + 1);
    std::fs::write(&config_path, config.to_string()).expect("it can be written");
    let path = folder.path().join("model.safetensors");
    let mut all = tensors::read(&path);
    let layers: Vec<String> =
        all.keys().filter_map(|name| name.strip_suffix("A_log").map(str::to_owned)).collect();
    for (name, (_, shape, bytes)) in &mut all {
        if !layers.iter().any(|layer| name.starts_with(layer)) {
            continue;
        }
        let Some(axis) = shape.iter().position(|length| [HEADS, HEADS * size].contains(length)) else {
            continue;
        };
        let of_heads = bytes.len() / shape[..axis].iter().product::<usize>();
        let grown = bytes.chunks(of_heads).flat_map(|heads| [heads, &heads[..of_heads / HEADS]].concat());
        *bytes = grown.collect();
        shape[axis] = shape[axis] / HEADS * (HEADS + 1);
    }
    tensors::write(&path, &all);
    folder
}

/// Returns a copy of a tiny llama with this many layers and random weights. Its rows are wide enough to be read in shards.
///
/// # Panics
/// If it cannot be written.
pub fn wide_llama(layers: usize) -> tempfile::TempDir {
    let [hidden, heads, key_heads, head, inner] = [64, 4, 2, 512, 2048];
    let folder = with_layers("llama-f32", layers);
    let config_path = folder.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&config_path).expect("a config")).expect("json");
    for (name, value) in [("hidden_size", hidden), ("head_dim", head), ("intermediate_size", inner)] {
        config[name] = json!(value);
    }
    std::fs::write(&config_path, config.to_string()).expect("it can be written");
    let path = folder.path().join("model.safetensors");
    let mut all = tensors::read(&path);
    let mut dice = Dice::new(3);
    for (name, (_, shape, bytes)) in &mut all {
        let part = name.rsplit('.').nth(1).expect("a name with parts");
        *shape = match part {
            "q_proj" => vec![heads * head, hidden],
            "k_proj" | "v_proj" => vec![key_heads * head, hidden],
            "o_proj" => vec![hidden, heads * head],
            "gate_proj" | "up_proj" => vec![inner, hidden],
            "down_proj" => vec![hidden, inner],
            _ if shape.len() == 2 => vec![shape[0], hidden],
            _ => vec![hidden],
        };
        let values = (0..shape.iter().product()).map(|_| dice.below(1000) as f32 / 10_000.0 - 0.05);
        *bytes = values.flat_map(f32::to_le_bytes).collect();
    }
    tensors::write(&path, &all);
    folder
}

/// Returns a copy of a tiny mixture with random weights in attention and feed-forward blocks. These are 128 wide, so that groups of
/// 32 packed values can be divided among four machines.
///
/// # Panics
/// If it cannot be written.
pub fn wide_mixture(name: &str) -> tempfile::TempDir {
    const WIDTH: usize = 128;
    let folder = model_copy(name);
    let config_path = folder.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&config_path).expect("a config")).expect("json");
    let heads = config["num_attention_heads"].as_u64().expect("a number") as usize;
    config["num_key_value_heads"] = json!(heads);
    config["head_dim"] = json!(WIDTH / heads);
    for key in ["intermediate_size", "moe_intermediate_size"] {
        if config.get(key).is_some() {
            config[key] = json!(WIDTH);
        }
    }
    std::fs::write(&config_path, config.to_string()).expect("it can be written");
    let path = folder.path().join("model.safetensors");
    let mut all = tensors::read(&path);
    let mut dice = Dice::new(5);
    for (name, (_, shape, bytes)) in &mut all {
        let part = name.trim_end_matches(".weight").trim_end_matches(".bias").rsplit('.').next();
        let (from_end, width) = match (part.expect("a name"), shape.len()) {
            ("q_proj" | "k_proj" | "v_proj" | "gate_proj" | "up_proj", dimensions) => (dimensions, WIDTH),
            ("o_proj" | "down_proj", 2) => (1, WIDTH),
            ("down_proj", 3) => (2, WIDTH),
            ("gate_up_proj" | "gate_up_proj_bias", _) => (1, 2 * WIDTH),
            ("q_norm" | "k_norm", _) => (1, WIDTH / heads),
            _ => continue,
        };
        let dimension = shape.len() - from_end;
        shape[dimension] = width;
        let values = (0..shape.iter().product()).map(|_| dice.below(1000) as f32 / 2500.0 - 0.2);
        *bytes = values.flat_map(f32::to_le_bytes).collect();
    }
    tensors::write(&path, &all);
    folder
}

/// Returns a copy of a tiny Qwen 3 VL with random experts in FP8. They have their inputs first, as published; transformers writes outputs
/// first.
///
/// # Panics
/// If it cannot be written.
pub fn experts_in_fp8() -> tempfile::TempDir {
    let (experts, inner, hidden) = (5, 64, 32);
    let mut dice = Dice::new(3);
    let folder = model_copy("qwen3_vl_moe-f32");
    let (config_path, path) = (folder.path().join("config.json"), folder.path().join("model.safetensors"));
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&config_path).expect("a config")).expect("json");
    config["text_config"]["moe_intermediate_size"] = inner.into();
    config["quantization_config"] = json!({"quant_method": "fp8", "activation_scheme": "static"});
    std::fs::write(&config_path, config.to_string()).expect("it can be written");
    let mut all = tensors::read(&path);
    let stacks: Vec<String> = all.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    for name in stacks {
        let is_last = name.ends_with("down_proj");
        let shape = if is_last { [experts, hidden, inner] } else { [experts, 2 * inner, hidden] };
        // All codes below those of NaN.
        let codes = (0..shape.iter().product()).map(|_| (dice.below(0x78) | dice.below(2) << 7) as u8);
        all.insert(name.clone(), (Dtype::F8_E4M3, shape.to_vec(), codes.collect()));
        let scales = (0..experts).flat_map(|expert| (0.001 + 0.0001 * expert as f32).to_le_bytes());
        all.insert(format!("{name}_scale_inv"), (Dtype::F32, vec![experts, 1, 1], scales.collect()));
    }
    tensors::write(&path, &all);
    folder
}
