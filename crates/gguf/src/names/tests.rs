//! Tests of the names, shapes and orders of tensors in the folder.

use serde_json::json;

use crate::placement::{Change, ColumnOrder, RowOrder, Tiles};
use crate::testing::{File, keys};

#[test]
fn rows_of_queries_and_keys_are_permuted_in_llama_only() {
    let layer: &[(&str, &[usize])] = &[
        ("attn_q.weight", &[8, 8]),
        ("attn_q.bias", &[8]),
        ("attn_k.weight", &[4, 8]),
        ("attn_v.weight", &[4, 8]),
    ];
    let llama = File::of("llama", &keys(&json!({})), layer);
    let halves = RowOrder::Halves { head_dim: 4 };
    for (stored, name, rows) in [
        ("attn_q.weight", "self_attn.q_proj.weight", halves),
        ("attn_q.bias", "self_attn.q_proj.bias", halves),
        ("attn_k.weight", "self_attn.k_proj.weight", halves),
        ("attn_v.weight", "self_attn.v_proj.weight", RowOrder::Same),
    ] {
        let placement = llama.placement(&format!("blk.0.{stored}"));
        assert_eq!(placement.name, format!("model.layers.0.{name}"));
        assert_eq!(placement.rows, rows, "{stored}");
    }
    let qwen = File::of("qwen2", &keys(&json!({})), layer);
    assert_eq!(qwen.placement("blk.0.attn_q.weight").rows, RowOrder::Same);
}

#[test]
fn norms_of_gemma_lose_the_added_1() {
    let file =
        File::of("gemma3", &keys(&json!({})), &[("ffn_norm.weight", &[8]), ("ffn_up.weight", &[16, 8])]);
    let norm = file.placement("blk.0.ffn_norm.weight");
    assert_eq!(norm.name, "model.layers.0.pre_feedforward_layernorm.weight");
    assert_eq!(norm.change, Change::MinusOne);
    assert_eq!(file.placement("output_norm.weight").change, Change::MinusOne);
    assert_eq!(file.placement("blk.0.ffn_up.weight").change, Change::Same);
}

#[test]
fn norms_of_nemotron_lose_the_added_1_and_their_biases_stay() {
    let layer: &[(&str, &[usize])] =
        &[("ffn_norm.weight", &[8]), ("ffn_norm.bias", &[8]), ("ffn_up.weight", &[16, 8])];
    let file = File::of("nemotron", &keys(&json!({})), layer);
    let (weight, bias) = (file.placement("blk.0.ffn_norm.weight"), file.placement("blk.0.ffn_norm.bias"));
    assert_eq!(weight.name, "model.layers.0.post_attention_layernorm.weight");
    assert_eq!(bias.name, "model.layers.0.post_attention_layernorm.bias");
    assert_eq!((weight.change, bias.change), (Change::MinusOne, Change::Same));
    assert_eq!(file.placement("output_norm.weight").change, Change::MinusOne);
}

#[test]
fn stacks_of_experts_keep_their_shape_and_fused_ones_are_split() {
    let layer: &[(&str, &[usize])] = &[
        ("ffn_gate_inp.weight", &[4, 8]),
        ("ffn_gate_up_exps.weight", &[4, 6, 8]),
        ("ffn_down_exps.weight", &[4, 8, 3]),
    ];
    let file = File::of("qwen3moe", &keys(&json!({"expert_count": 4})), layer);
    assert_eq!(
        file.placement("blk.0.ffn_down_exps.weight").name,
        "model.layers.0.mlp.switch_mlp.down_proj.weight"
    );
    let placements = file.placements().expect("known tensors");
    let parts: Vec<_> =
        placements.iter().filter(|(name, _)| name.contains("gate_up")).map(|(_, it)| it).collect();
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[1].name, "model.layers.0.mlp.switch_mlp.up_proj.weight");
    assert_eq!(parts[1].shape, Some(vec![4, 3, 8]));
    assert_eq!(parts[1].rows, RowOrder::Part { period: 6, start: 3, count: 3 });
}

#[test]
fn a_tensor_for_each_expert_gets_the_name_of_mixtral() {
    let layer: &[(&str, &[usize])] = &[
        ("ffn_gate_inp.weight", &[12, 8]),
        ("ffn_gate.0.weight", &[16, 8]),
        ("ffn_up.0.weight", &[16, 8]),
        ("ffn_down.11.weight", &[8, 16]),
    ];
    let file = File::of("llama", &keys(&json!({"expert_count": 12, "expert_used_count": 2})), layer);
    for (stored, name) in [("ffn_gate.0", "0.w1"), ("ffn_up.0", "0.w3"), ("ffn_down.11", "11.w2")] {
        let placement = file.placement(&format!("blk.0.{stored}.weight"));
        assert_eq!(placement.name, format!("model.layers.0.block_sparse_moe.experts.{name}.weight"));
    }
    let config = file.config().expect("it is known");
    assert_eq!((&config["model_type"], &config["num_local_experts"]), (&json!("mixtral"), &json!(12)));
    for name in ["ffn_gate.00.weight", "ffn_gate.x.weight", "ffn_gate.0.scale", "ffn_gate.*.weight"] {
        let file = File::of("llama", &keys(&json!({})), &[(name, &[16, 8])]);
        file.placements().expect_err(name);
    }
}

/// NVFP4 has a factor for each matrix.
#[test]
fn a_factor_of_a_matrix_becomes_one_of_each_row() {
    let layer: &[(&str, &[usize])] = &[
        ("attn_q.weight", &[8, 8]),
        ("attn_q.scale", &[1]),
        ("attn_q.input_scale", &[1]),
        ("ffn_gate_inp.weight", &[4, 8]),
        ("ffn_gate_up_exps.weight", &[4, 6, 8]),
        ("ffn_gate_up_exps.scale", &[4]),
    ];
    let file = File::of("qwen3moe", &keys(&json!({"expert_count": 4})), layer);
    let factor = file.placement("blk.0.attn_q.scale");
    assert_eq!(factor.name, "model.layers.0.self_attn.q_proj.row_scales");
    assert_eq!((factor.shape, factor.rows), (Some(vec![8, 1]), RowOrder::Repeated { times: 8 }));
    let placements = file.placements().expect("known tensors");
    let parts = placements.iter().filter(|(name, _)| name == "blk.0.ffn_gate_up_exps.scale");
    let parts: Vec<_> = parts.map(|(_, it)| (it.name.as_str(), it.shape.as_deref(), it.rows)).collect();
    let of = |name| (name, Some(&[4, 3, 1][..]), RowOrder::Repeated { times: 3 });
    let [gate, up] =
        ["gate_proj", "up_proj"].map(|part| format!("model.layers.0.mlp.switch_mlp.{part}.row_scales"));
    assert_eq!(parts, [of(gate.as_str()), of(up.as_str())]);
    assert!(placements.iter().all(|(name, _)| name != "blk.0.attn_q.input_scale"));
    for shape in [vec![3], vec![0], vec![]] {
        let layer: &[(&str, &[usize])] = &[("attn_q.weight", &[8, 8]), ("attn_q.scale", &shape)];
        let message = File::of("llama", &keys(&json!({})), layer).placements().expect_err("a wrong shape");
        assert!(message.to_string().contains("attn_q.scale has shape"), "{message}");
    }
}

#[test]
fn towers_in_the_file_are_left_out() {
    let mut file = File::of("gemma3", &keys(&json!({})), &[("attn_q.weight", &[8, 8])]);
    for name in ["v.blk.0.attn_q.weight", "v.patch_embedding.bias", "mm.mm_input_projection.weight"] {
        file.add(name, &[3, 5]);
    }
    assert_eq!(file.placements().expect("known tensors").len(), 3);
}

#[test]
fn value_heads_of_gated_delta_layers_are_tiled() {
    let sizes = json!({
        "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.state_size": 2, "ssm.inner_size": 8, "ssm.conv_kernel": 4,
    });
    let layer: &[(&str, &[usize])] = &[
        ("attn_qkv.weight", &[16, 8]),
        ("ssm_out.weight", &[8, 8]),
        ("ssm_a", &[4]),
        ("ssm_conv1d.weight", &[16, 4]),
    ];
    let file = File::of("qwen35", &keys(&sizes), layer);
    let heads = |size| Tiles { groups: 2, heads: 2, size };
    assert_eq!(file.placement("blk.0.attn_qkv.weight").rows, RowOrder::Tiled { first: 8, heads: heads(2) });
    assert_eq!(file.placement("blk.0.ssm_out.weight").columns, ColumnOrder::Tiled { heads: heads(2) });
    let conv = file.placement("blk.0.ssm_conv1d.weight");
    assert_eq!(
        (conv.shape, conv.rows),
        (Some(vec![16, 4, 1]), RowOrder::Tiled { first: 8, heads: heads(2) })
    );
    let rate = file.placement("blk.0.ssm_a");
    assert_eq!(
        (rate.name.as_str(), rate.change),
        ("model.layers.0.linear_attn.A_log", Change::LogOfNegative)
    );
    let next =
        File::of("qwen3next", &keys(&sizes), &[("attn_qkv.weight", &[16, 8]), ("ssm_ba.weight", &[8, 8])]);
    assert_eq!(next.placement("blk.0.attn_qkv.weight").rows, RowOrder::Same);
    assert_eq!(next.placement("blk.0.ssm_ba.weight").rows, RowOrder::Part { period: 4, start: 0, count: 2 });
}

#[test]
fn layers_of_mamba_get_flat_vectors() {
    let layer: &[(&str, &[usize])] = &[
        ("ssm_a", &[4, 1]),
        ("ssm_d", &[4, 1]),
        ("ssm_dt.bias", &[4]),
        ("ssm_norm.weight", &[2, 8]),
        ("ssm_conv1d.weight", &[20, 4]),
    ];
    let file = File::of("nemotron_h", &keys(&json!({})), layer);
    let shape = |name: &str| (file.placement(name).name, file.placement(name).shape);
    assert_eq!(shape("blk.0.ssm_a"), ("backbone.layers.0.mixer.A_log".to_owned(), Some(vec![4])));
    assert_eq!(shape("blk.0.ssm_d"), ("backbone.layers.0.mixer.D".to_owned(), Some(vec![4])));
    assert_eq!(shape("blk.0.ssm_dt.bias"), ("backbone.layers.0.mixer.dt_bias".to_owned(), None));
    assert_eq!(
        shape("blk.0.ssm_norm.weight"),
        ("backbone.layers.0.mixer.norm.weight".to_owned(), Some(vec![16]))
    );
    assert_eq!(shape("blk.0.ssm_conv1d.weight").1, Some(vec![20, 1, 4]));
    assert_eq!(shape("token_embd.weight").0, "backbone.embeddings.weight");
}

#[test]
fn factors_and_draft_layers_are_left_out() {
    let mut file = File::of("glm4moe", &keys(&json!({"block_count": 2, "nextn_predict_layers": 1})), &[]);
    file.add("rope_freqs.weight", &[2]);
    file.add("blk.1.nextn.eh_proj.weight", &[8, 16]);
    file.add("blk.1.attn_q.weight", &[8, 8]);
    assert_eq!(file.placements().expect("known tensors").len(), 2);
}

#[test]
fn wrong_tensors_are_named() {
    let error = |name: &str, shape: &[usize]| {
        let file = File::of("llama", &keys(&json!({})), &[(name, shape)]);
        file.placements().expect_err("a wrong tensor").to_string()
    };
    for name in ["attn_strange.weight", "token_embd.weight", "attn_q.scale", "attn_q", "nextn.eh_proj.weight"]
    {
        assert_eq!(
            error(name, &[8, 8]),
            format!("m.gguf: tensor blk.0.{name} is not known for architecture llama")
        );
    }
    for shape in [vec![7, 8], vec![], vec![usize::MAX, usize::MAX, 2]] {
        assert!(
            error("attn_q.weight", &shape).starts_with("m.gguf: tensor blk.0.attn_q.weight "),
            "{shape:?}"
        );
    }
    let mut file = File::of("llama", &keys(&json!({})), &[]);
    file.add("attn_q.weight", &[8, 8]);
    file.placements().expect_err("a tensor outside of layers");
    let mut file = File::of("llama", &keys(&json!({})), &[("attn_v.weight", &[4, 8])]);
    file.add("blk.7.attn_v.weight", &[4, 8]);
    let message = file.placements().expect_err("an eighth layer").to_string();
    assert!(message.contains("blk.7.attn_v.weight is not known"), "{message}");
    let mut file = File::of("llama", &keys(&json!({})), &[("attn_v.weight", &[4, 8])]);
    file.add("blk.00.attn_v.weight", &[4, 8]);
    let message = file.placements().expect_err("a second tensor").to_string();
    assert!(message.contains("is a second tensor for model.layers.0.self_attn.v_proj.weight"), "{message}");
}

#[test]
fn convolutions_lose_outer_axes_of_1() {
    let file = File::of(
        "kimi-linear",
        &keys(&json!({})),
        &[("ssm_conv1d_q.weight", &[1, 8, 1, 4]), ("attn_k_b.weight", &[2, 4, 2])],
    );
    let conv = file.placement("blk.0.ssm_conv1d_q.weight");
    assert_eq!(
        (conv.name.as_str(), conv.shape),
        ("model.layers.0.self_attn.q_conv1d.weight", Some(vec![8, 1, 4]))
    );
    assert_eq!(file.placement("blk.0.attn_k_b.weight").name, "model.layers.0.self_attn.embed_q.weight");
}
