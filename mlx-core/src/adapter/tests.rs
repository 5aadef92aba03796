//! Tests of tensor names and of the checks of adapter configs.

use super::config::{AdapterConfig, AdapterKind};
use super::names::{FactorRole, canonical, in_layer, parse};

fn read(text: &str) -> Result<AdapterConfig, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("adapter_config.json"), text).expect("it can be written");
    AdapterConfig::read(folder.path()).map_err(|error| error.to_string())
}

#[test]
fn names_of_both_tools_mean_the_same_modules() {
    let module = "model.layers.1.self_attn.q_proj".to_owned();
    assert_eq!(parse(&format!("{module}.lora_a"), false), Some((module.clone(), FactorRole::First)));
    assert_eq!(
        parse(&format!("language_model.{module}.m"), false),
        Some((module.clone(), FactorRole::Magnitude))
    );
    let peft = format!("base_model.model.{module}.lora_B.weight");
    assert_eq!(parse(&peft, true), Some((module.clone(), FactorRole::Second)));
    assert_eq!(parse(&peft, false), None);
    assert_eq!(parse("model.norm.weight", false), None);
    assert_eq!(canonical("model.language_model.layers.0.mlp"), "model.layers.0.mlp");
    assert_eq!(in_layer(&module), Some((1, "self_attn.q_proj")));
    assert_eq!(in_layer("lm_head"), None);
}

#[test]
fn configs_of_both_tools_give_rank_and_scale() {
    let mlx = r#"{"fine_tune_type": "dora", "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.0, "keys": ["mlp.down_proj"]}, "iters": 5}"#;
    let config = read(mlx).expect("mlx-lm's form");
    assert_eq!((config.kind, config.rank, config.scale), (AdapterKind::Dora, 4, 20.0));
    let peft = r#"{"peft_type": "LORA", "r": 16, "lora_alpha": 32, "use_rslora": true, "rank_pattern": {},
        "bias": "none", "modules_to_save": null, "target_modules": ["q_proj"]}"#;
    let config = read(peft).expect("PEFT's form");
    assert_eq!((config.kind, config.rank, config.scale), (AdapterKind::Lora, 16, 8.0));
}

#[test]
fn what_would_change_the_result_is_refused_by_name() {
    let lora =
        |parameters: &str| read(&format!(r#"{{"num_layers": 2, "lora_parameters": {{{parameters}}}}}"#));
    let peft = |more: &str| read(&format!(r#"{{"peft_type": "LORA", "r": 8, "lora_alpha": 8, {more}}}"#));
    let cases = [
        (read(r#"{"fine_tune_type": "qlora"}"#), "fine_tune_type is \"qlora\""),
        (read(r#"{"num_layers": 2}"#), "lora_parameters is missing"),
        (lora(r#""rank": 8, "alpha": 16"#), "scale is missing"),
        (lora(r#""rank": 8, "scale": 2, "offset": 1"#), "lora_parameters.offset is not known"),
        (lora(r#""rank": 0, "scale": 2"#), "lora_parameters.rank is 0"),
        (lora(r#""rank": 8, "scale": 1e300"#), "lora_parameters.scale does not fit"),
        (peft(r#""alpha_pattern": {"q_proj": 4}"#), "alpha_pattern is set"),
        (peft(r#""modules_to_save": ["lm_head"]"#), "modules_to_save is set"),
        (peft(r#""bias": "all""#), "bias is \"all\""),
        (peft(r#""init_lora_weights": "pissa_niter_4""#), "init_lora_weights is \"pissa_niter_4\""),
        (read(r#"{"peft_type": "IA3"}"#), "peft_type is \"IA3\""),
    ];
    for (outcome, expected) in cases {
        let error = outcome.expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_module_is_where_the_config_says_it_is() {
    let config = read(
        r#"{"num_layers": 2, "lora_parameters": {"rank": 4, "scale": 1, "keys": ["self_attn.q_proj", "lm_head"]}}"#,
    );
    let config = config.expect("a config");
    assert_eq!(config.check_module("model.layers.3.self_attn.q_proj", 4), Ok(()));
    assert_eq!(config.check_module("lm_head", 4), Ok(()));
    for (module, expected) in [
        ("model.layers.1.self_attn.q_proj", "the last 2 layers"),
        ("model.layers.3.self_attn.k_proj", "keys"),
        ("model.layers.4.self_attn.q_proj", "has 4 layers"),
        ("model.embed_tokens", "keys"),
    ] {
        let error = config.check_module(module, 4).expect_err(module);
        assert!(error.contains(expected), "{error}");
    }
}
