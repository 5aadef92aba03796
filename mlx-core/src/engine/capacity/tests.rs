//! Checks the reservations of published models against expected figures.

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::backend::Backend;
use crate::model;
use crate::weights::WeightPolicy;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns the spec of a model with this config.json on a backend, with negligible weights.
fn spec(config: &Value, backend: Backend) -> ModelSpec {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), config.to_string()).expect("it can be written");
    let header = json!({"model.norm.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}});
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 16]].concat();
    fs::write(folder.path().join("model.safetensors"), file).expect("it can be written");
    model::inspect(folder.path(), WeightPolicy::new(backend, true)).expect("it can be read").0
}

fn llama_3_1_8b() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14_336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "hidden_act": "silu", "tie_word_embeddings": false,
    })
}

fn gemma_2_9b() -> Value {
    json!({
        "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "intermediate_size": 14_336, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256_000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    })
}

fn gemma_3_12b() -> Value {
    json!({
        "model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48, "intermediate_size": 15_360, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262_208, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "query_pre_attn_scalar": 256, "sliding_window": 1024, "sliding_window_pattern": 6,
    })
}

fn mistral_7b() -> Value {
    json!({
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14_336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32_000, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "hidden_act": "silu", "sliding_window": 4096, "tie_word_embeddings": false,
    })
}

fn deepseek_v2_lite() -> Value {
    json!({
        "model_type": "deepseek_v3", "hidden_size": 2048, "num_hidden_layers": 27, "intermediate_size": 10_944, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 102_400, "max_position_embeddings": 163_840, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1408,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "tie_word_embeddings": false,
    })
}

fn capacity(config: &Value, backend: Backend) -> Capacity {
    let spec = spec(config, backend);
    let kernels = backend.attention_kernels;
    let chunks = Chunks::new(kernels, spec.footprint.attention.row_scores());
    let passes = Passes { kernels, chunks, rows: 8, running: 8 };
    Capacity::new(&spec, None, passes, 0, 64 * GIB).expect("there is room")
}

fn state(capacity: &Capacity, tokens: usize) -> u64 {
    capacity.spec.footprint.state(tokens, capacity.passes.chunks.longest())
}

/// Returns pairs of rows and depth: for each chunk length of a prompt of `length` tokens, the deepest chunk.
fn chunks(capacity: &Capacity, length: usize) -> Vec<(usize, usize)> {
    capacity.passes.chunks.deepest(length).collect()
}

#[test]
fn llama_8b_reserves_its_states_and_no_scores() {
    // Eight rows of verification: partial sums on Metal, and a numeric mask for each head on CUDA.
    let (sums, masks) = (8 * 4 * 512 * 32 * (128 * 2 + 8), 8 * 32_768 * 32 * 12);
    // Both have the mask of the step, a byte for each row, head and position.
    let step = 8 * 32_768 * 32;
    for (backend, pass) in [(Backend::GPU, sums + step), (Backend::CUDA, masks + step)] {
        let capacity = capacity(&llama_3_1_8b(), backend);
        let need = capacity.sequence(32_768);
        let whole = state(&capacity, 32_768);
        // 128 KiB a token, plus two layers that are copied when they grow.
        assert_eq!(whole, 4 * GIB + 4 * GIB / 16);
        assert!(need.own - whole < 50 * MIB, "{} MiB beside the state", (need.own - whole) / MIB);
        assert_eq!(need.pass, pass);
        assert_eq!(chunks(&capacity, 32_768), [(512, 32_768)]);
    }
}

#[test]
fn eight_chats_reserve_little_more_than_their_states() {
    let capacity = capacity(&llama_3_1_8b(), Backend::GPU);
    let mut ledger = crate::engine::schedule::Ledger::new(capacity.shared());
    for id in 0..8 {
        assert!(ledger.reserve(id, capacity.sequence(8192)));
    }
    let (states, reserved) = (8 * state(&capacity, 8192), ledger.reserved());
    assert!(reserved > states && reserved < states + states / 20, "{reserved} for {states}");
}

#[test]
fn latents_and_soft_caps_reserve_the_scores_of_a_pass() {
    // Scores of 16 heads in bf16, in four arrays of two layers; soft caps take three more.
    let latent = capacity(&deepseek_v2_lite(), Backend::GPU);
    let rows = [(512, 4096), (256, 8192), (128, 16_384), (64, 32_768)];
    assert_eq!(chunks(&latent, 32_768), rows);
    assert_eq!(latent.sequence(32_768).pass, 512 * 4096 * 16 * 16);
    let deeper = latent.sequence(163_840).pass;
    assert_eq!(deeper, 32 * 163_840 * 16 * 16, "the shortest chunks have 32 rows");

    let capped = capacity(&gemma_2_9b(), Backend::GPU);
    assert_eq!(chunks(&capped, 8192), [(512, 2048), (256, 4096), (128, 8192)]);
    let (scores, masks) = (512 * 2048 * 16 * 28, 2 * 512 * 2048);
    assert_eq!(capped.sequence(8192).pass, scores + masks);
    // Decode rows have scores too, separate for each sequence.
    let own = capped.sequence(8192).own - state(&capped, 8192);
    assert!((8192 * 16 * 28..8 * MIB).contains(&own), "{own}");
}

#[test]
fn wide_heads_are_written_out_in_prompts_on_metal_and_everywhere_on_cuda() {
    let wide = capacity(&gemma_3_12b(), Backend::GPU);
    let attention = wide.spec.footprint.attention;
    assert_eq!(attention.row_scores(), 16 * 16);
    let mask = 16 * (131_072 + 1025);
    let sums = 4 * 1024 * 16 * (256 * 2 + 8);
    assert_eq!(attention.span(1, 131_072), mask + sums, "steps have a kernel");
    assert_eq!(chunks(&wide, 16_384), [(512, 4096), (256, 8192), (128, 16_384)]);
    let cuda = capacity(&gemma_3_12b(), Backend::CUDA).spec.footprint.attention;
    assert_eq!(cuda.span(1, 131_072), mask + 131_072 * 16 * 16);
}

#[test]
fn masks_of_windows_are_reserved_once() {
    let metal = capacity(&mistral_7b(), Backend::GPU);
    // All 32 layers share a mask with a byte for every row and position of the window and the chunk. It is made from another.
    let masks = 2 * 512 * (4096 + 512);
    // Or the partial sums and the mask of eight rows of verification, for each of 32 heads.
    let sums = 8 * 4 * 512 * 32 * (128 * 2 + 8);
    assert_eq!(metal.sequence(32_768).pass, masks.max(sums + 8 * 32 * (4096 + 8)));
    assert_eq!(chunks(&metal, 32_768), [(512, 32_768)]);
    // CUDA converts them to numbers for each head: three arrays in two layers.
    let cuda = capacity(&mistral_7b(), Backend::CUDA);
    let numbers = 512 * (4096 + 512) * 32 * 12;
    assert_eq!(cuda.sequence(32_768).pass, masks + numbers);
    assert_eq!(cuda.sequence(131_072).pass, masks + numbers, "depth adds nothing");
}

#[test]
fn a_cpu_reserves_scores_for_each_sequence() {
    let capacity = capacity(&llama_3_1_8b(), Backend::CPU);
    let need = capacity.sequence(4096);
    let scores = 32 * 16 * (64 * 512 + 4096);
    assert_eq!(need, Need { own: state(&capacity, 4096) + scores + 4096 * 256, pass: 0 });
}
