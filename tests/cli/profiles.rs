//! `-P`: the settings of a profile in `mlx chat` and `mlx generate`, flags that win over them, replayed records, and mistakes.

use std::path::Path;
use std::process::{Command, Output};

use mlx_tests::harmony;
use mlx_tests::{golden_folder, piped};
use serde_json::Value;

use super::{mlx, model, stderr, stdout};

/// Writes a file of profiles on a model. Returns its path.
fn file(folder: &Path, text: &str) -> String {
    let path = folder.join("profiles.toml");
    std::fs::write(&path, text).expect("it can be written");
    path.to_str().expect("utf-8").to_owned()
}

fn profiles() -> String {
    let folder = model("llama-f32");
    format!(
        "[[profile]]\nname = 'review'\nmodel = '{folder}'\nsystem = 'Be strict.'\ntemperature = 0.7\nseed = 5\n\
         max-tokens = 9\nstop = ['zzz']\nlogit-bias = {{ 7 = 1.5, 8 = -inf }}\n\n\
         [[profile]]\nname = 'poet'\nmodel = '{folder}'\nadapter = '{}'\ntemperature = 0\nmax-tokens = 5\n",
        golden_folder().join("adapters/lora").display()
    )
}

/// Runs the program with this folder of settings.
fn with_settings(settings: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command
        .args(arguments)
        .env("XDG_CONFIG_HOME", settings)
        .env_remove("MLX_PROFILES")
        .env_remove("MLX_MODEL");
    piped(command, input)
}

fn record(arguments: &[&str]) -> Value {
    let output = mlx(arguments, "");
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[test]
fn a_profile_generates_like_its_flags_and_flags_win() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let file = file(work.path(), &profiles());
    let folder = model("llama-f32");
    let of_profile = |more: &[&str]| {
        record(&[&["generate", "-P", "review", "--profiles", &file, "A word", "--json"], more].concat())
    };
    let bias = ["--logit-bias", "7=1.5", "--logit-bias", "8=-inf"];
    let spelled = |more: &[&str]| {
        let words = ["generate", "-m", &folder, "A word", "--json", "--system"];
        record(&[&words, more, &bias].concat())
    };
    let flags = ["--temperature", "0.7", "--seed", "5", "-n", "9", "--stop", "zzz"];
    assert_eq!(of_profile(&[])["tokens"], spelled(&[&["Be strict."][..], &flags].concat())["tokens"]);
    for (own, all) in [
        (&["--temperature", "0"][..], &["Be strict.", "--temperature", "0", "--seed", "5", "-n", "9"][..]),
        (&["-n", "3"], &["Be strict.", "--temperature", "0.7", "--seed", "5", "-n", "3"]),
        (&["--system", "Sing."], &["Sing.", "--temperature", "0.7", "--seed", "5", "-n", "9"]),
        (&["--seed", "6"], &["Be strict.", "--temperature", "0.7", "--seed", "6", "-n", "9"]),
    ] {
        assert_eq!(of_profile(own)["tokens"], spelled(all)["tokens"], "{own:?}");
    }
    let other = model("llama-rope3-f32");
    let words = ["generate", "-P", "review", "--profiles", &file, "-m", &other, "A word", "--json"];
    assert_eq!(record(&words)["request"]["model"].as_str(), Some(other.as_str()));
}

#[test]
fn a_record_of_a_profile_is_replayed_after_its_file_has_changed() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let file = file(work.path(), &profiles());
    let words = |name| ["generate", "-P", name, "--profiles", &file, "A word", "--json", "--logprobs", "0"];
    let (review, poet) = (record(&words("review")), record(&words("poet")));
    assert_eq!(review["request"]["profile"]["name"], "review");
    assert_eq!(review["request"]["profile"]["system"], "Be strict.");
    std::fs::write(&file, "[[profile]]\nname = 'review'\nmodel = 'x'\ntemperature = 1.5\n")
        .expect("it can be written");
    let replayed = mlx(&["replay"], &review.to_string());
    assert!(stdout(&replayed).contains("identical: 9 tokens, bit for bit"), "{}", stderr(&replayed));
    // A record may come from another person, so its adapter is given again.
    let refused = mlx(&["replay"], &poet.to_string());
    assert_eq!((refused.status.code(), stderr(&refused).contains("--adapter")), (Some(2), true));
    let adapter = golden_folder().join("adapters/lora").display().to_string();
    let replayed = mlx(&["replay", "--adapter", &adapter], &poet.to_string());
    assert!(stdout(&replayed).contains("bit for bit"), "{}", stderr(&replayed));
    let mut damaged = review;
    damaged["request"]["profile"]["top-p"] = 2.into();
    let refused = mlx(&["replay"], &damaged.to_string());
    assert!(stderr(&refused).contains("top-p is 2; it must be from 0 to 1"), "{}", stderr(&refused));
}

#[test]
fn a_chat_has_the_settings_of_a_profile() {
    let settings = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir(settings.path().join("mlx")).expect("a folder");
    file(&settings.path().join("mlx"), &profiles());
    let work = tempfile::tempdir().expect("a temporary folder");
    let session = work.path().join("talk.json").to_str().expect("utf-8").to_owned();
    let chat = ["chat", "-P", "review", "--session", &session, "--top-k", "30"];
    let output = with_settings(settings.path(), &chat, "/params\nOne?\n");
    assert!(output.status.success(), "{}", stderr(&output));
    let shown: Vec<String> =
        stderr(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in ["temperature=0.7 profile", "max_tokens=9 profile", "seed=5 profile", "top_k=30 flag"] {
        assert!(shown.iter().any(|line| line == row), "{row}: {shown:?}");
    }
    let saved = std::fs::read_to_string(&session).expect("it was saved");
    assert!(saved.contains("Be strict."), "{saved}");
    // The server has the same default file, and a flag wins.
    let config = |more: &[&str]| {
        let words = [&["serve", "--print-config"], more].concat();
        stdout(&with_settings(settings.path(), &words, ""))
    };
    let default = settings.path().join("mlx/profiles.toml").display().to_string();
    assert!(config(&[]).contains(&format!("profiles = \"{default}\"")), "{}", config(&[]));
    assert!(config(&["--profiles", "other.toml"]).contains("profiles = \"other.toml\""));
    // A conversation keeps its system prompt.
    let again = with_settings(settings.path(), &["chat", "-P", "poet", "--session", &session], "/retry\n");
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(std::fs::read_to_string(&session).expect("it was saved").contains("Be strict."));
}

#[test]
fn mistakes_name_the_profile_and_the_file() {
    let settings = tempfile::tempdir().expect("a temporary folder");
    let chat = |arguments: &[&str]| {
        let output = with_settings(settings.path(), &[&["chat"], arguments].concat(), "");
        (output.status.code(), stderr(&output))
    };
    let (code, text) = chat(&["-P", "review"]);
    assert!(code == Some(2) && text.contains("mlx/profiles.toml: does not exist"), "{text}");
    std::fs::create_dir(settings.path().join("mlx")).expect("a folder");
    file(&settings.path().join("mlx"), &profiles());
    for (arguments, expected) in [
        (&["-P", "reveiw"][..], "did you mean review?"),
        (&["-P", "zebra"], "there are: review, poet"),
        (&["--profiles", "x"], "--profile <NAME>"),
        (&["-P", "a", "--profiles", "no-such.toml"], "no-such.toml: does not exist"),
    ] {
        let (code, text) = chat(arguments);
        assert!(code == Some(2) && text.contains(expected), "{arguments:?}: {text}");
    }
    file(&settings.path().join("mlx"), "[[profile]]\nname = 'a'\nmodel = 'b'\ntemprature = 1\n");
    let (code, text) = chat(&["-P", "a"]);
    let expected = "profiles.toml: line 4: temprature is no key of a profile; did you mean temperature?";
    assert!(code == Some(2) && text.contains(expected), "{text}");
    let text = format!("[[profile]]\nname = 'a'\nmodel = '{}'\nthink = 'low'\n", model("llama-f32"));
    file(&settings.path().join("mlx"), &text);
    let (code, text) = chat(&["-P", "a"]);
    assert!(code == Some(2) && text.contains("-P a sets think: "), "{text}");
}

#[test]
fn a_profile_sets_the_thinking_and_a_flag_wins() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let folder = harmony::model();
    let text = format!("[[profile]]\nname = 'a'\nmodel = '{}'\nthink = 'low'\n", folder.path().display());
    let file = file(work.path(), &text);
    let tokens = |more: &[&str]| {
        let words = ["generate", "-P", "a", "--profiles", &file, "-p", "Hi", "--json", "-n", "1"];
        record(&[&words, more].concat())["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    assert!(tokens(&[]) < tokens(&["--think=medium"]));
    assert_eq!(tokens(&[]), tokens(&["--think=low"]));
    let raw = record(&["generate", "-P", "a", "--profiles", &file, "--raw", "-p", "Hi", "--json", "-n", "1"]);
    assert_eq!(raw["request"]["is_message"], false, "the reasoning belongs to chats");
}
