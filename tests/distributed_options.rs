//! MTP heads, adapters and the prompt cache on disk do not change the answers of a model that is divided among processes.

use std::path::{Path, PathBuf};

use mlx_core::cache::DiskOptions;
use mlx_core::distributed::Parallel;
use mlx_core::engine::{Engine, EngineOptions, Speculate};
use mlx_core::inspect::divide;
use mlx_tests::deadly::wait_until;
use mlx_tests::divisible::with_layers;
use mlx_tests::machines::{self, several};
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{at_rest, collect, copied, cpu, golden_folder, greedy, model_folder, run};

use crate::distributed::{check_company, exact, prompt};
use crate::tensor::compare;
use crate::worker_parts::MLX;

/// Both layouts of heads, with the number of workers for each way to divide the model.
const HEADS: [(&str, [(Parallel, usize); 2]); 2] = [
    ("qwen3_5-mtp-f32", [(Parallel::Pipeline, 3), (Parallel::Tensor, 1)]),
    ("glm4_moe_lite-mtp-f32", [(Parallel::Pipeline, 1), (Parallel::Tensor, 3)]),
];

#[test]
fn a_head_drafts_on_rank_0_and_changes_no_token() {
    let _turn = cpu();
    for (name, ways) in HEADS {
        let folder = model_folder(name);
        let off = EngineOptions { speculate: Speculate::Off, ..exact() };
        let drafting = EngineOptions { speculate: Speculate::Mtp, force_drafts: true, ..exact() };
        let alone = Engine::start(&folder, &off, |_, _| {}).expect("the model loads");
        let expected = run(&alone, &prompt(60, 1), &greedy(60)).ids();
        drop(alone);
        for (parallel, count) in ways {
            let there = several(MLX, &folder, count);
            let engine = machines::start(MLX, &folder, &there, parallel, &drafting);
            let what = format!("{name}, {parallel:?}, {count} workers");
            assert_eq!(run(&engine, &prompt(60, 1), &greedy(60)).ids(), expected, "{what}");
            let stats = at_rest(&engine);
            assert!(stats.drafted_tokens > stats.accepted_tokens, "{what}: {stats:?}");
            if count == 1 {
                check_company(&engine, &what, count);
            }
        }
    }
}

#[test]
fn a_head_counts_on_rank_0() {
    let _turn = cpu();
    let folder = model_folder("qwen3_5-mtp-f32");
    let [with, without] = [Speculate::Mtp, Speculate::Off].map(|speculate| {
        let options = EngineOptions { speculate, ..EngineOptions::default() };
        divide(&folder, &options, 2, Parallel::Tensor).expect("it can be divided").room.shared
    });
    assert!(with < without, "{with} and {without}");
    let asked = EngineOptions { speculate: Speculate::Mtp, ..EngineOptions::default() };
    let folder = model_folder("llama-f32");
    let there = several(MLX, &folder, 1);
    let workers = machines::workers(&there, Parallel::Tensor);
    let refused = machines::try_start(MLX, &folder, workers, &asked).map(drop).expect_err("it has no head");
    assert!(refused.to_string().contains("speculate: is mtp"), "{refused}");
}

/// Adapters that a model has at the same time, and the number of workers for each way to divide the model; 0 for none. Between them, all kinds
/// of adapters change whole projections, stacked ones, experts, recurrent layers, and the ends.
const ADAPTED: [(&str, &[&str], usize, usize); 5] = [
    ("llama-f32", &["lora", "dora", "full", "lora-head"], 1, 1),
    ("qwen3_moe-f32", &["lora-moe"], 1, 3),
    ("qwen3_5-q4-f32", &["lora-delta"], 1, 1),
    ("glm4-f32", &["lora-glm4"], 0, 1),
    ("llama-tied-f32", &["lora-embed"], 1, 1),
];

fn adapters(names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| golden_folder().join("adapters").join(name)).collect()
}

/// Starts workers with these adapters. Their order need not be that of rank 0.
fn with_adapters(folder: &Path, adapters: &[PathBuf], count: usize) -> Vec<WorkerProcess> {
    let given = adapters.iter().rev().flat_map(|path| ["--adapter", path.to_str().expect("UTF-8")]);
    let flags: Vec<&str> = ["--port", "0", "--device", "cpu"].into_iter().chain(given).collect();
    (0..count).map(|_| WorkerProcess::start_with(MLX, folder, &flags)).collect()
}

/// Compares the model without and with each adapter on several machines to the same on one.
fn compare_adapted(folder: &Path, names: &[&str], (parallel, count): (Parallel, usize)) {
    let adapters = adapters(names);
    let options = EngineOptions { adapters: adapters.clone(), ..exact() };
    let alone = Engine::start(folder, &options, |_, _| {}).expect("the model loads");
    let there = with_adapters(folder, &adapters, count);
    let engine = machines::start(MLX, folder, &there, parallel, &options);
    let versions = |engine: &Engine| -> Vec<Engine> {
        let adapted = (0..names.len()).map(|place| engine.with_adapter(place).expect("there is one"));
        [engine.clone()].into_iter().chain(adapted).collect()
    };
    let (alone, divided) = (versions(&alone), versions(&engine));
    for (place, (one, other)) in alone.iter().zip(&divided).enumerate() {
        let what = format!("{names:?}, version {place}, {parallel:?}, {count} workers");
        let compared = compare(one, other, &what);
        assert!(compared > 40, "{what}: {compared} tokens were compared");
    }
    // In flight at the same time, they do not mix.
    let submit = |engine: &Engine| {
        let request = engine.request(prompt(60, 5), &greedy(24)).expect("it fits");
        engine.submit(request).expect("there is room")
    };
    let expected: Vec<Vec<u32>> = divided.iter().map(|engine| collect(submit(engine)).ids()).collect();
    let running: Vec<_> = divided.iter().map(submit).collect();
    let found: Vec<Vec<u32>> = running.into_iter().map(|it| collect(it).ids()).collect();
    assert_eq!(found, expected, "{names:?}, {parallel:?}");
    assert!(
        expected[1..].iter().all(|adapted| *adapted != expected[0]),
        "{names:?}: an adapter changes nothing"
    );
    assert_ne!(engine.spec().fingerprint, divided[1].spec().fingerprint);
}

#[test]
fn adapters_change_every_machines_part() {
    let _turn = cpu();
    for (name, adapters, by_layers, by_tensors) in ADAPTED {
        for way in [(Parallel::Pipeline, by_layers), (Parallel::Tensor, by_tensors)] {
            if way.1 > 0 {
                compare_adapted(&model_folder(name), adapters, way);
            }
        }
    }
    compare_adapted(with_layers("llama-f32", 4).path(), &["lora"], (Parallel::Pipeline, 3));
}

#[test]
fn a_worker_without_the_files_of_an_adapter_is_refused() {
    let _turn = cpu();
    let folder = model_folder("llama-f32");
    let options = EngineOptions { adapters: adapters(&["lora"]), ..EngineOptions::default() };
    // A change of the same shape with other numbers.
    let other = copied(&adapters(&["lora"])[0]);
    let file = other.path().join("adapters.safetensors");
    let mut bytes = std::fs::read(&file).expect("it is there");
    let end = bytes.len();
    bytes[end - 4096..].fill(0);
    std::fs::write(&file, bytes).expect("it can be written");
    for given in [Vec::new(), vec![other.path().to_path_buf()]] {
        let there = with_adapters(&folder, &given, 1);
        let workers = machines::workers(&there, Parallel::Pipeline);
        let refused =
            machines::try_start(MLX, &folder, workers, &options).map(drop).expect_err("it lacks one");
        let refused = refused.to_string();
        assert!(refused.contains("rank 1 (") && refused.contains("lack the files of adapter 1"), "{refused}");
    }
}

/// Models with layers that are saved in blocks, and some with others that are saved as checkpoints: the number of layers of the copy, that of
/// the workers, and that of the files.
const SAVED: [(&str, usize, (usize, Parallel), usize); 5] = [
    ("llama-f32", 4, (3, Parallel::Pipeline), 3),
    ("qwen3_5-f32", 8, (1, Parallel::Pipeline), 4),
    ("gemma3_text-f32", 6, (1, Parallel::Pipeline), 4),
    ("qwen3_5-f32", 4, (1, Parallel::Tensor), 4),
    ("llama-f32", 2, (3, Parallel::Tensor), 3),
];

/// Returns the files of saved prefixes.
fn saved_files(disk: &Path) -> Vec<PathBuf> {
    let under =
        |folder: &Path| std::fs::read_dir(folder).expect("a folder").map(|it| it.expect("an entry").path());
    let files = under(disk).flat_map(|model| under(&model).collect::<Vec<_>>());
    files.filter(|file| file.extension().is_some_and(|end| end != "tmp")).collect()
}

/// Runs one request on a new engine with new workers, which save to `disk`. Returns the tokens, the number of cached ones, and the number of
/// damaged files. All files are complete when this returns.
fn ask_anew(
    folder: &Path,
    disk: &Path,
    (count, parallel): (usize, Parallel),
    files: usize,
) -> (Vec<u32>, usize, u64) {
    let there = several(MLX, folder, count);
    let options = EngineOptions { prompt_cache: Some(DiskOptions::new(disk.to_owned())), ..exact() };
    let engine = machines::start(MLX, folder, &there, parallel, &options);
    let outcome = run(&engine, &prompt(200, 7), &greedy(12));
    wait_until(|| saved_files(disk).len() >= files, || format!("{:?} are saved", saved_files(disk)));
    let damaged = at_rest(&engine).damaged_blocks;
    (outcome.ids(), outcome.finished.usage.cached_tokens, damaged)
}

#[test]
fn prefixes_of_all_machines_come_back_after_a_restart() {
    let _turn = cpu();
    for (name, layers, way, files) in SAVED {
        let (folder, disk) = (with_layers(name, layers), tempfile::tempdir().expect("a temporary folder"));
        let what = format!("{name}, {way:?}");
        let (first, cached, _) = ask_anew(folder.path(), disk.path(), way, files);
        assert_eq!(cached, 0, "{what}");
        let (again, cached, damaged) = ask_anew(folder.path(), disk.path(), way, files);
        assert_eq!((&again, damaged), (&first, 0), "{what}");
        assert!(cached >= 128, "{what}: {cached} tokens were restored");
        // Without its end, a file lacks the layers of the last machine. The prefix is computed again.
        for file in saved_files(disk.path()) {
            let bytes = std::fs::read(&file).expect("it is there");
            std::fs::write(&file, &bytes[..bytes.len() - 64]).expect("it can be written");
        }
        let (damaged, cached, count) = ask_anew(folder.path(), disk.path(), way, files);
        assert_eq!((damaged, cached), (first, 0), "{what}");
        assert!(count > 0, "{what}");
    }
}
