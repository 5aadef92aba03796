//! Keys of config.json that change ropes and heads.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::Fields;
use crate::error::Result;
use crate::model::encoder::{EncoderConfig, read};
use crate::model::rope::{RopeConfig, RopeScaling};

fn config(family: &str, change: &Value) -> Result<EncoderConfig> {
    let mut config = json!({"model_type": family, "num_hidden_layers": 3});
    config.as_object_mut().expect("a map").extend(change.as_object().expect("a map").clone());
    let fields = Fields::of(Path::new("config.json"), config.as_object().expect("a map").clone());
    Ok(read(&fields)?.expect("it is an encoder").1)
}

/// Returns the ropes of the first two layers, which have no window and a window in ModernBERT.
fn ropes(family: &str, change: &Value) -> [RopeConfig; 2] {
    let config = config(family, change).expect("it is read");
    [0, 1].map(|index| config.stack.layers[index].rope.clone().expect("it rotates"))
}

#[test]
fn both_kinds_of_layers_of_modernbert_have_the_scaling_of_rope() {
    let plain = ropes("modernbert", &json!({}));
    assert_eq!(plain.clone().map(|rope| rope.theta as u32), [160_000, 10_000]);
    assert!(plain.iter().all(|rope| rope.scaling == RopeScaling::None));
    // transformers applies `rope_scaling` to both kinds, after the sections of `rope_parameters`.
    let scaled = ropes(
        "modernbert",
        &json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "local_rope_theta": 5000.0}),
    );
    assert_eq!(scaled.clone().map(|rope| rope.theta as u32), [160_000, 5000]);
    assert!(scaled.iter().all(|rope| rope.scaling == RopeScaling::Linear(4.0)));
    let sections = json!({"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0},
        "sliding_attention": {"rope_type": "default"}});
    let [full, sliding] = ropes("modernbert", &json!({ "rope_parameters": sections }));
    assert_eq!((full.theta as u32, full.scaling), (7, RopeScaling::Linear(2.0)));
    assert_eq!((sliding.theta as u32, sliding.scaling), (10_000, RopeScaling::None));
}

#[test]
fn nomic_bert_has_the_heads_of_its_config() {
    assert_eq!(config("nomic_bert", &json!({})).expect("it is read").stack.attention.head_dim, 64);
    let wide = config("nomic_bert", &json!({"head_dim": 96})).expect("it is read").stack;
    assert_eq!((wide.attention.head_dim, wide.attention.num_heads), (96, 12));
    assert_eq!(wide.layers[0].rope.as_ref().map(|rope| rope.dims), Some(96));
}

#[test]
fn keys_that_change_vectors_and_are_not_supported_are_refused_by_name() {
    let long = json!({"type": "longrope", "short_factor": vec![1.0; 32], "long_factor": vec![1.0; 32]});
    for (family, change, key) in [
        ("nomic_bert", json!({"rotary_emb_scale_base": 512}), "rotary_emb_scale_base"),
        ("nomic_bert", json!({"qkv_proj_bias": true}), "qkv_proj_bias"),
        ("nomic_bert", json!({"rope_scaling": long.clone()}), "rope_scaling"),
        ("modernbert", json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}), "rope_parameters"),
        ("modernbert", json!({"rope_scaling": {"rope_type": "spiral"}}), "spiral"),
        ("modernbert", json!({ "rope_scaling": long }), "rope_scaling"),
        ("bert", json!({"num_attention_heads": 7}), "num_attention_heads"),
    ] {
        let refused = config(family, &change).expect_err(key).to_string();
        assert!(refused.starts_with("config.json") && refused.contains(key), "{refused}");
    }
}
