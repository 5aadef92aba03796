//! Prompts saved on disk: listed, reused, removed, and usable after a program was killed.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{GREEDY, json, mlx, model, stderr, stdout};

#[test]
fn saved_prompts_are_listed_reused_and_removed() {
    let (folder, cache) = (model("llama-f32"), tempfile::tempdir().expect("a temporary folder"));
    let cache = cache.path().to_str().expect("utf-8");
    let text = "The keeper counts the waves. ".repeat(6);
    let save = ["cache", "save", "-m", &folder, "--prompt-cache-dir", cache, "-p", &text];
    assert!(mlx(&save, "").status.success());
    let list = || stdout(&mlx(&["cache", "list", "--prompt-cache-dir", cache], ""));
    let listed = list();
    let name = listed.split_whitespace().next().expect("a name").to_owned();
    assert_eq!((listed.lines().count(), name.len()), (1, 16), "{listed}");
    let generate = ["generate", "-m", &folder, "--raw", "--json", "-p", &text];
    let cold = json(&[&generate[..], &GREEDY[..]].concat(), "");
    let warm = json(&[&generate[..], &GREEDY[..], &["--prompt-cache-dir", cache]].concat(), "");
    assert_eq!(cold["tokens"], warm["tokens"]);
    let cached = |answer: &Value| answer["usage"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached(&cold) == 0 && cached(&warm) >= 64, "{warm}");
    let rm = |name: &str| mlx(&["cache", "rm", "--prompt-cache-dir", cache, name], "");
    assert!(stderr(&rm("nonsense")).contains("nonsense is not saved"));
    assert!(rm(&name[..8]).status.success());
    assert_eq!(list(), "");
    let both =
        mlx(&["generate", "-m", &folder, "-p", "x", "--prompt-cache-dir", cache, "--prefix-cache", "0"], "");
    assert!(stderr(&both).contains("--prefix-cache"), "{}", stderr(&both));
}

/// A program killed at any moment leaves a cache folder that the next run can use.
#[test]
fn a_killed_program_leaves_a_usable_cache() {
    let (folder, cache) = (model("llama-f32"), tempfile::tempdir().expect("a temporary folder"));
    let cache = cache.path().to_str().expect("utf-8");
    let ids = |salt: usize| {
        (0..200).map(|index| ((index * 7 + salt) % 80 + 5).to_string()).collect::<Vec<_>>().join(",")
    };
    let arguments = |ids: &str| {
        let fixed = ["generate", "-m", &folder, "--json", "--prompt-ids", ids, "--prompt-cache-dir", cache];
        [&fixed[..], &GREEDY[..]].concat().into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let mut cut_short = 0;
    for salt in 0..12 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mlx"))
            .args(arguments(&ids(salt)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // Kill it while it writes: after the first file, and a little later in each round.
        let before = files(cache);
        while files(cache) == before && child.try_wait().expect("it is our child").is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(150 * salt as u64));
        cut_short += usize::from(child.try_wait().expect("it is our child").is_none());
        child.kill().ok();
        child.wait().expect("it ends");
    }
    assert!(cut_short > 0, "no run was killed while it worked");
    for salt in 0..12 {
        let ids = ids(salt);
        let owned = arguments(&ids);
        let warm = json(&owned.iter().map(String::as_str).collect::<Vec<_>>(), "");
        let cold = json(
            &[&["generate", "-m", &folder, "--json", "--prompt-ids", &ids][..], &GREEDY[..]].concat(),
            "",
        );
        assert_eq!(warm["tokens"], cold["tokens"], "run {salt}");
    }
}

/// Returns the number of files in the folder, including temporary ones.
fn files(folder: &str) -> usize {
    let models = std::fs::read_dir(folder).into_iter().flatten().flatten();
    models.map(|model| std::fs::read_dir(model.path()).into_iter().flatten().count()).sum()
}
