//! Prompts saved on disk are restored after a restart and change no bit of any answer, whatever happens to the files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mlx_core::cache::{DiskOptions, list_saved, remove_all_saved, remove_saved};
use mlx_core::engine::{Engine, EngineOptions, EngineStats, RequestOptions};
use mlx_tests::{Outcome, device, greedy, model_copy, model_folder, run};

const MODEL: &str = "llama-f32";

/// A change to the bytes of a file.
type Damage = Box<dyn Fn(&mut Vec<u8>)>;

fn start(model: &Path, disk: Option<DiskOptions>, exact: bool) -> Engine {
    let options = EngineOptions { exact, prompt_cache: disk, ..EngineOptions::default() };
    Engine::start(model, &options, |_, _| {}).expect("it loads")
}

fn prompt(salt: u32, length: u32) -> Vec<u32> {
    (0..length).map(|place| (place * 7 + salt * (place / 10 + 1)) % 80 + 5).collect()
}

fn options() -> RequestOptions {
    RequestOptions { logprobs: Some(3), ..greedy(12) }
}

/// Runs one request on a new engine. Everything is on disk when this returns.
fn ask(folder: &Path, prompt: &[u32], exact: bool) -> (Outcome, EngineStats) {
    let engine = start(&model_folder(MODEL), Some(DiskOptions::new(folder.to_owned())), exact);
    let outcome = run(&engine, prompt, &options());
    let stats = engine.stats();
    (outcome, stats)
}

fn cached(outcome: &Outcome) -> usize {
    outcome.finished.usage.cached_tokens
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let under = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    };
    let mut files: Vec<PathBuf> = under(folder).iter().flat_map(|model| under(model)).collect();
    files.sort();
    files
}

#[test]
fn a_beginning_comes_back_after_a_restart() {
    let _turn = device();
    for exact in [true, false] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let prompt = prompt(1, 150);
        let (first, _) = ask(folder.path(), &prompt, exact);
        let (again, stats) = ask(folder.path(), &prompt, exact);
        assert_eq!((cached(&first), cached(&again), stats.prefix_restores), (0, 128, 1));
        if exact {
            assert_eq!(first.tokens, again.tokens, "the answers must be bit-identical");
        }
        assert_eq!(first.ids(), again.ids());
        // Also after a restart, a longer prompt computes only the new tokens.
        let (longer, _) = ask(folder.path(), &[&prompt[..140], &[9; 60]].concat(), exact);
        assert_eq!(cached(&longer), 128);
    }
}

/// These files contain prompts.
#[test]
fn saved_beginnings_are_private() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path().join("new/cache");
    ask(&cache, &prompt(1, 150), false);
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let saved = files(&cache);
    assert!(!saved.is_empty() && saved.iter().all(|file| mode(file) == 0o600), "{saved:?}");
    let model = saved[0].parent().expect("a folder");
    assert_eq!([mode(&cache), mode(model)], [0o700, 0o700]);
}

/// Layers with windows and recurrent layers are restored from their checkpoint, which is a separate file.
#[test]
fn states_that_cannot_be_cut_come_back_after_a_restart() {
    let _turn = device();
    for name in [
        "gemma3_text-f32",
        "gpt_oss-f32",
        "mistral-f32",
        "lfm2-f32",
        "qwen3_5-f32",
        "falcon_h1-f32",
        "mamba2-f32",
    ] {
        for exact in [true, false] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let ask = |prompt: &[u32], tokens: usize| {
                let disk = DiskOptions::new(folder.path().to_owned());
                let engine = start(&model_folder(name), Some(disk), exact);
                run(&engine, prompt, &RequestOptions { logprobs: Some(3), ..greedy(tokens) })
            };
            let prompt = prompt(1, 200);
            let first = ask(&prompt, 12);
            let again = ask(&prompt, 12);
            assert_eq!((cached(&first), again.ids()), (0, first.ids()), "{name}, exact {exact}");
            assert_eq!(cached(&again), 192, "{name}, exact {exact}");
            if exact {
                assert_eq!(first.tokens, again.tokens, "{name}: to the last bit");
            }
            // The prompt of another branch, which diverges after a checkpoint.
            let branch = ask(&[&prompt[..150], &[9; 60]].concat(), 2);
            assert_eq!(cached(&branch), 128, "{name}, exact {exact}");
            let states =
                files(folder.path()).into_iter().filter(|it| it.to_string_lossy().contains(".state."));
            for state in states {
                fs::write(state, b"nothing").expect("it can be written");
            }
            assert_eq!(ask(&prompt, 12).ids(), first.ids(), "{name}: damaged checkpoints are computed again");
        }
    }
}

#[test]
fn what_was_made_by_another_model_or_in_another_way_is_not_taken() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompt = prompt(1, 150);
    let disk = || Some(DiskOptions::new(folder.path().to_owned()));
    let restored = |model: &Path, exact| {
        let engine = start(model, disk(), exact);
        cached(&run(&engine, &prompt, &greedy(2)))
    };
    assert_eq!(restored(&model_folder(MODEL), true), 0);
    assert_eq!(restored(&model_folder(MODEL), true), 128);
    // Ordinary requests reuse exact prefixes; exact requests reuse only exact ones.
    assert_eq!(restored(&model_folder(MODEL), false), 128, "an exact prefix must be reused");
    let copy = model_copy(MODEL);
    assert_eq!(restored(copy.path(), true), 128, "the same model in another folder must reuse the prefix");
    let change = |name: &str, old: &str, new: &str| {
        let path = copy.path().join(name);
        let text = fs::read_to_string(&path).expect("a file");
        assert!(text.contains(old), "{name} holds {old}");
        fs::write(&path, text.replace(old, new)).expect("it can be written");
    };
    change("config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 10001.0");
    assert_eq!(restored(copy.path(), true), 0, "another rope");
    change("config.json", "\"rope_theta\": 10001.0", "\"rope_theta\": 10000.0");
    assert_eq!(restored(copy.path(), true), 128);
    let tokenizer = copy.path().join("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).expect("a file");
    fs::write(&tokenizer, text + "\n").expect("it can be written");
    assert_eq!(restored(copy.path(), true), 0, "another tokenizer");
    let weights = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("a file");
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).expect("it can be written");
    assert_eq!(restored(copy.path(), true), 0, "another weight");
}

/// Covers files after a crash, on a bad disk, or damaged otherwise: each is detected, recomputed and rewritten.
#[test]
fn damaged_files_are_noticed_and_computed_again() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompt = prompt(1, 150);
    let (first, _) = ask(folder.path(), &prompt, true);
    let files = files(folder.path());
    assert_eq!(files.len(), 2);
    let whole: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("a file")).collect();
    let length = whole[0].len();
    let cut = |share: usize| move |bytes: &mut Vec<u8>| bytes.truncate(length * share / 16);
    let mut damages: Vec<Damage> = (0..16).step_by(3).map(|share| Box::new(cut(share)) as _).collect();
    for place in (0..length).step_by(length / 12) {
        damages.push(Box::new(move |bytes| bytes[place] ^= 1 << (place % 8)));
    }
    damages.push(Box::new(Vec::clear));
    damages.push(Box::new(|bytes| bytes.push(0)));
    damages.push(Box::new(|bytes| bytes.fill(0)));
    for (index, damage) in damages.iter().enumerate() {
        let (file, whole) = (&files[index % 2], &whole[index % 2]);
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(file, bytes).expect("it can be written");
        let (again, stats) = ask(folder.path(), &prompt, true);
        assert_eq!(again.tokens, first.tokens, "damage {index}");
        assert_eq!(stats.damaged_blocks, 1, "damage {index} was not detected");
        assert!(cached(&again) <= 64, "damage {index}");
        // The header's fields have no order; its contents and the tensors are the same.
        assert_eq!(fs::metadata(file).expect("it is there again").len(), whole.len() as u64);
        assert_eq!(cached(&ask(folder.path(), &prompt, true).0), 128, "damage {index} was not repaired");
    }
    // An intact file under another file's name counts as damaged.
    fs::copy(&files[0], &files[1]).expect("it can be written");
    let (again, stats) = ask(folder.path(), &prompt, true);
    assert_eq!((again.tokens, stats.damaged_blocks), (first.tokens, 1));
}

#[test]
fn the_folder_keeps_to_its_budgets() {
    let _turn = device();
    let total =
        |folder: &Path| files(folder).iter().map(|it| fs::metadata(it).expect("a file").len()).sum::<u64>();
    let fill = |disk: DiskOptions| {
        let folder = disk.folder.clone();
        let engine = start(&model_folder(MODEL), Some(disk), true);
        for salt in 0..12 {
            run(&engine, &prompt(salt, 150), &greedy(2));
        }
        drop(engine);
        total(&folder)
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let default = DiskOptions::new(folder.path().to_owned());
    let all = fill(default.clone());
    let block = all / 24;
    assert_eq!(files(folder.path()).len(), 24);
    // The most recently used prompt is still saved.
    let max_bytes = 10 * block + block / 2;
    let small = tempfile::tempdir().expect("a temporary folder");
    let left = fill(DiskOptions { folder: small.path().to_owned(), max_bytes, ..default.clone() });
    assert!(left <= max_bytes && left >= max_bytes / 2, "{left} of {max_bytes}");
    let (last, _) = ask(small.path(), &prompt(11, 150), true);
    assert_eq!(cached(&last), 128);
    let slow = tempfile::tempdir().expect("a temporary folder");
    let max_writes_per_hour = 5 * block + block / 2;
    let written = fill(DiskOptions { folder: slow.path().to_owned(), max_writes_per_hour, ..default });
    assert!(written <= max_writes_per_hour + block && written > 0, "{written} of {max_writes_per_hour}");
}

#[test]
fn saved_texts_are_listed_and_removed() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, other) = (prompt(1, 200), [&prompt(1, 64), &vec![9; 80][..]].concat());
    for prompt in [&one, &other] {
        ask(folder.path(), prompt, true);
    }
    let mut saved = list_saved(folder.path()).expect("a list");
    saved.sort_by_key(|text| text.tokens.len());
    let tokens: Vec<&[u32]> = saved.iter().map(|text| text.tokens.as_slice()).collect();
    assert_eq!(tokens, [&other[..128], &one[..192]]);
    // The other text also uses the first block.
    assert_eq!(remove_saved(folder.path(), &saved[1].name).expect("it goes"), 2);
    assert_eq!(list_saved(folder.path()).expect("a list"), saved[..1]);
    assert_eq!(cached(&ask(folder.path(), &other, true).0), 128);
    assert_eq!(remove_all_saved(folder.path()).expect("it goes"), 2);
    assert_eq!(list_saved(folder.path()).expect("a list"), []);
}
