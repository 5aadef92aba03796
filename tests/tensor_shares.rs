//! The shards of machines that each hold a part of every layer, and models that cannot be sharded.

use mlx_core::distributed::Parallel;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::inspect::divide;
use mlx_tests::divisible::with_key_heads;
use mlx_tests::machines::{self, several};
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{cpu, golden_folder, model_folder};

use crate::tensor::start;
use crate::worker_parts::MLX;

#[test]
fn every_machine_has_its_part_of_every_layer_and_no_more() {
    let _turn = cpu();
    for name in ["llama-nvfp4-f16", "gpt_oss-f32", "qwen3_5-f32"] {
        let folder = with_key_heads(name, 4);
        let alone = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
        let whole = Engine::start(folder.path(), &alone, |_, _| {}).expect("it loads").spec().clone();
        let there = several(MLX, folder.path(), 3);
        let engine = start(folder.path(), &there, &alone);
        let plan = divide(folder.path(), &alone, 4, Parallel::Tensor).expect("it can be shared out").plan;
        let shares = &plan.shares;
        assert_eq!(engine.spec().weight_bytes, shares[0].weight_bytes, "{name}");
        assert!(shares[1..].iter().all(|it| it.weight_bytes == shares[1].weight_bytes), "{shares:?}");
        let pipeline = divide(folder.path(), &alone, 2, Parallel::Pipeline).expect("it has two layers").plan;
        let layers: u64 = whole.weight_bytes - (shares[0].weight_bytes - shares[1].weight_bytes);
        // Every machine has the norms, routers and biases.
        assert!(
            4 * shares[1].weight_bytes < layers * 6 / 5,
            "{name}: {} of {layers}",
            shares[1].weight_bytes
        );
        assert!(
            shares.iter().all(|it| 4 * it.cache_bytes_per_token == whole.footprint.per_token),
            "{shares:?}"
        );
        assert!(plan.crossings > pipeline.crossings && plan.token_bytes > pipeline.token_bytes);
        assert_ne!(engine.spec().fingerprint, whole.fingerprint);
    }
    // A key head on two machines counts on both. The size of recurrent states is proportional to the number of heads.
    let plain = EngineOptions::default();
    let heads =
        divide(&model_folder("llama-f32"), &plain, 4, Parallel::Tensor).expect("it can be shared out");
    let whole = Engine::start(&model_folder("llama-f32"), &plain, |_, _| {}).expect("it loads");
    let per_token = whole.spec().footprint.per_token;
    // From rank to rank, and two sums per layer, each in three steps around the ring.
    assert_eq!(heads.plan.crossings, 3 + 3 * 2 * whole.spec().num_layers);
    assert!(heads.plan.shares.iter().all(|it| 2 * it.cache_bytes_per_token == per_token), "{per_token}");
    let folder = model_folder("qwen3_next-f32");
    let whole = Engine::start(&folder, &plain, |_, _| {}).expect("it loads").spec().footprint;
    let there = several(MLX, &folder, 1);
    let engine = start(&folder, &there, &plain);
    assert_eq!(2 * engine.spec().footprint.fixed, whole.fixed);
    assert_eq!(2 * engine.spec().footprint.per_token, whole.per_token);
    // The machine with the least memory limits what the engine promises.
    let folder = model_folder("llama-f32");
    let flags = ["--port", "0", "--device", "cpu", "--memory-budget", "64MiB"];
    let small = [WorkerProcess::start_with(MLX, &folder, &flags)];
    let engine = start(&folder, &small, &plain);
    let given = engine.stats().budget_bytes;
    assert!(given < 64 << 20, "{given} bytes");
}

/// Kimi's delta rule, short convolutions, and experts without gates.
#[test]
fn the_predicted_weights_are_those_that_are_loaded() {
    let _turn = cpu();
    for name in ["bailing_hybrid-f32", "lfm2_moe-f32", "nemotron_h-f32"] {
        let (folder, options) = (model_folder(name), EngineOptions::default());
        let whole = Engine::start(&folder, &options, |_, _| {}).expect("it loads").spec().weight_bytes;
        let plan = divide(&folder, &options, 2, Parallel::Tensor).expect("it can be shared out").plan;
        let workers = several(MLX, &folder, 1);
        let engine = start(&folder, &workers, &options);
        let [here, there] = [0, 1].map(|rank| plan.shares[rank].weight_bytes);
        assert_eq!(engine.spec().weight_bytes, here, "{name}");
        // Both have the norms and routers; only rank 0 has the embedding and the head.
        assert!(
            there < here && whole < here + there && here + there < whole * 6 / 5,
            "{name}: {whole}, {here}"
        );
    }
}

#[test]
fn what_cannot_be_shared_out_is_refused_with_a_reason() {
    let _turn = cpu();
    let refusal = |name: &str, ranks: usize| {
        let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
        let refused = divide(&model_folder(name), &plain, ranks, Parallel::Tensor);
        refused.map(drop).expect_err(name).to_string()
    };
    for (name, ranks, why) in [
        ("llama-f32", 3, "on 3 machines: num_key_value_heads is 2"),
        ("llama-mha-sharded-f32", 3, "num_key_value_heads is 4"),
        ("gemma-f32", 3, "num_attention_heads is 4"),
        ("qwen3_5-f32", 3, "num_key_value_heads is 2"),
        ("llama-q4-f16", 2, "o_proj.scales has 1 groups of packed numbers"),
        ("deepseek_v3-f32", 3, "on 3 machines: num_"),
        ("mamba2-f32", 3, "the groups of Mamba-2 is "),
        ("kimi_linear-f32", 2, "the heads of Kimi's delta rule is 3"),
    ] {
        let found = refusal(name, ranks);
        assert!(found.starts_with("parallel: cannot be tensor") && found.contains(why), "{name}: {found}");
        assert!(found.contains("use pipeline"), "{found}");
    }
    // An engine reports the same before anything is loaded.
    let folder = model_folder("llama-f32");
    let there = several(MLX, &folder, 2);
    let workers = machines::workers(&there, Parallel::Tensor);
    let error = machines::try_start(MLX, &folder, workers, &EngineOptions::default());
    let error = error.map(drop).expect_err("two heads");
    assert!(error.to_string().contains("num_key_value_heads is 2"), "{error}");
    // Every other family is either sharded or rejected this way.
    let folders = std::fs::read_dir(golden_folder().join("models")).expect("they are there");
    let mut refused = 0;
    for folder in folders.map(|entry| entry.expect("it can be listed").path()) {
        match divide(&folder, &EngineOptions::default(), 2, Parallel::Tensor) {
            Ok(_) => {}
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("cannot be tensor") || error.contains("ranks: "),
                    "{folder:?}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused < 36, "{refused} were refused");
}
