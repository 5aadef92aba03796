//! Models by name on a terminal: offered downloads, the choice in a first run, and the default model.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Regex, Session};
use mlx_tests::hub::Hub;
use mlx_tests::{model_folder, piped};
use tempfile::TempDir;

/// A Hub, an empty cache and an empty home.
struct Setup {
    hub: Hub,
    home: TempDir,
}

impl Setup {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Self { hub: Hub::start(&model_folder("llama-f32")), home }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
        for name in [
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_TOKEN_PATH",
            "HF_TOKEN",
            "HF_HUB_OFFLINE",
            "OLLAMA_MODELS",
        ] {
            command.env_remove(name);
        }
        for name in
            ["MLX_MODEL", "MLX_LOG", "NO_COLOR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"]
        {
            command.env_remove(name);
        }
        let home: &Path = self.home.path();
        command.args(arguments).current_dir(home).env("HOME", home).env("HF_HOME", home.join("hf"));
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("no_proxy", "*").env("TERM", "xterm");
        command
    }

    /// Runs the program in a terminal.
    fn typed(&self, arguments: &[&str]) -> OsSession {
        let mut session = Session::spawn(self.command(arguments)).expect("the program starts");
        session.set_expect_timeout(Some(Duration::from_mins(1)));
        session
    }

    /// Runs the program without a terminal.
    fn run(&self, arguments: &[&str], input: &str) -> Output {
        piped(self.command(arguments), input)
    }

    fn is_downloaded(&self) -> bool {
        self.home.path().join("hf/hub/models--org--tiny/refs/main").exists()
    }
}

#[track_caller]
fn expect(session: &mut OsSession, words: &str) -> String {
    let found = session.expect(Regex(words)).unwrap_or_else(|error| panic!("{words}: {error}"));
    String::from_utf8_lossy(found.as_bytes()).into_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SHORT: [&str; 4] = ["--max-tokens", "4", "--temperature", "0"];

#[test]
fn a_missing_model_is_downloaded_after_a_yes_and_then_chats() {
    let setup = Setup::new();
    let mut session = setup.typed(&["chat", "org/tiny"]);
    expect(&mut session, r"org/tiny is not downloaded. Download it now \([0-9.]+ [kM]B\)\? \[Y/n\]");
    assert!(!setup.is_downloaded(), "nothing must be downloaded before the reply");
    session.send_line("").expect("it can be typed");
    expect(&mut session, "is ready");
    assert!(setup.is_downloaded());
    session.send_line("/quit").expect("it can be typed");
    session.expect(Eof).expect("it ends");
}

/// `mlx convert` and mlx-lm write an index even for a single file. The size counts only files to fetch.
#[test]
fn the_size_in_an_offer_is_that_of_the_files_that_will_be_fetched() {
    let setup = Setup::new();
    let index = r#"{"weight_map": {"a": "model.safetensors"}}"#;
    {
        let mut behavior = setup.hub.behave();
        behavior.files.insert("model.safetensors.index.json".to_owned(), index.into());
        behavior.files.insert("model-00001-of-00002.safetensors".to_owned(), b"left over".to_vec());
        behavior.claimed_size = Some(155_000_000);
    }
    let mut session = setup.typed(&["chat", "org/tiny"]);
    expect(&mut session, r"Download it now \(155 MB\)\? \[Y/n\]");
    assert!(!setup.home.path().join("hf").exists(), "nothing must be stored before the reply");
    session.send_line("n").expect("it can be typed");
    session.expect(Eof).expect("it ends");
}

#[test]
fn one_quantization_of_a_gguf_repository_is_offered() {
    let setup = Setup::new();
    {
        let mut behavior = setup.hub.behave();
        behavior.files.clear();
        for file in ["m-Q8_0.gguf", "m-Q4_0.gguf", "mmproj-F16.gguf"] {
            behavior.files.insert(file.to_owned(), b"GGUF".to_vec());
        }
        behavior.claimed_size = Some(155_000_000);
    }
    for (arguments, label) in [
        (&["chat", "org/tiny"][..], "Q4_0"),
        (&["generate", "hf.co/org/tiny:q8_0", "Hello"], "Q8_0"),
        (&["serve", "org/tiny/m-Q8_0.gguf"], "Q8_0"),
    ] {
        let mut session = setup.typed(arguments);
        expect(
            &mut session,
            &format!(r"org/tiny:{label} is not downloaded. Download it now \(155 MB\)\? \[Y/n\]"),
        );
        session.send_line("n").expect("it can be typed");
        session.expect(Eof).expect("it ends");
    }
}

#[test]
fn a_no_downloads_nothing_and_says_what_would() {
    let setup = Setup::new();
    let mut session = setup.typed(&["generate", "org/tiny", "Hello there"]);
    expect(&mut session, r"\[Y/n\]");
    session.send_line("n").expect("it can be typed");
    expect(&mut session, "mlx pull org/tiny");
    session.expect(Eof).expect("it ends");
    let asked = setup.hub.behave().requests.clone();
    assert!(asked.iter().all(|request| !request.line.contains("resolve")), "{asked:?}");
}

#[test]
fn without_a_terminal_there_is_no_question() {
    let setup = Setup::new();
    let output = setup.run(&["chat", "org/tiny"], "Hello\n");
    assert!(text(&output.stderr).contains("mlx pull org/tiny"), "{}", text(&output.stderr));
    assert_eq!((output.status.code(), setup.hub.behave().requests.len()), (Some(1), 0));
    let first = setup.run(&["chat"], "who are you\n");
    assert!(first.status.success() && text(&first.stderr).contains("guide"), "{}", text(&first.stderr));
}

/// A script must not get the guide's text as an answer.
#[test]
fn without_a_model_commands_fail_with_a_hint_and_print_nothing() {
    let setup = Setup::new();
    for arguments in [
        &["write a commit message"][..],
        &["generate", "-p", "write a commit message"],
        &["generate", "--raw", "-p", "The", "--json"],
        &["score"],
        &["inspect"],
        &["convert", "-o", "small"],
        &["bench"],
    ] {
        let output = setup.run(arguments, "diff --git a/a b/a\n");
        let hint = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(1), ""),
            "{arguments:?}: {hint}"
        );
        assert!(hint.contains("mlx default ORG/NAME") && hint.contains("mlx chat"), "{arguments:?}: {hint}");
    }
    for arguments in [
        &["-m", "guide", "how do I quit"][..],
        &["generate", "guide", "how do I quit"],
        &["ask", "how do I quit"],
    ] {
        let output = setup.run(arguments, "");
        assert!(
            output.status.success() && !text(&output.stdout).trim().is_empty(),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn the_first_run_offers_models_and_the_guide_for_one_key() {
    let setup = Setup::new();
    let mut session = setup.typed(&["chat"]);
    let offer = expect(&mut session, "Enter for 1: ");
    assert!(
        offer.contains("Qwen3-0.6B-4bit") && offer.contains("Apache-2.0") && offer.contains("MB"),
        "{offer}"
    );
    assert!(offer.lines().all(|line| line.chars().count() <= 60), "{offer}");
    session.send_line("99").expect("it can be typed");
    expect(&mut session, "type a number from 1 to");
    session.send_line("g").expect("it can be typed");
    expect(&mut session, "guide is ready");
    session.send_line("/quit").expect("it can be typed");
    session.expect(Eof).expect("it ends");
    let mut session = setup.typed(&["chat"]);
    expect(&mut session, "q to quit");
    session.send_line("q").expect("it can be typed");
    session.expect(Eof).expect("it ends");
}

#[test]
fn a_model_of_lm_studio_is_offered() {
    let setup = Setup::new();
    let folder = setup.home.path().join(".lmstudio/models/org");
    std::fs::create_dir_all(&folder).expect("writes");
    std::os::unix::fs::symlink(model_folder("llama-f32"), folder.join("studio")).expect("links");
    let mut session = setup.typed(&["chat"]);
    let offer = expect(&mut session, "Enter for 1: ");
    assert!(offer.contains("  1  org/studio  (LM Studio)"), "{offer}");
    session.send_line("").expect("it can be typed");
    expect(&mut session, "org/studio");
    session.send_line("/quit").expect("it can be typed");
    session.expect(Eof).expect("it ends");
}

#[test]
fn a_default_model_is_used_until_another_is_named() {
    let setup = Setup::new();
    assert!(setup.run(&["pull", "org/tiny"], "").status.success());
    let model = |output: &Output| text(&output.stdout);
    let named = setup.run(&[&["generate", "org/tiny", "The keeper"][..], &SHORT].concat(), "");
    let guide = setup.run(&[&["-m", "guide", "The keeper"][..], &SHORT].concat(), "");
    assert!(guide.status.success(), "{}", text(&guide.stderr));
    assert_ne!(model(&named), model(&guide));
    assert!(setup.run(&["default", "org/tiny"], "").status.success());
    assert_eq!(text(&setup.run(&["default"], "").stdout), "org/tiny\n");
    assert_eq!(model(&setup.run(&[&["The keeper"][..], &SHORT].concat(), "")), model(&named));
    assert_eq!(
        model(&setup.run(&[&["generate", "guide", "The keeper"][..], &SHORT].concat(), "")),
        model(&guide)
    );
    let mut variable = setup.command(&[&["generate", "-p", "The keeper"][..], &SHORT].concat());
    variable.env("MLX_MODEL", "guide");
    assert_eq!(model(&variable.output().expect("the program starts")), model(&guide));
    assert!(setup.run(&["default", "--none"], "").status.success());
    assert_eq!(setup.run(&["The keeper"], "").status.code(), Some(1));
    assert_eq!(setup.run(&["default", "org/nowhere"], "").status.code(), Some(1));
}

#[test]
fn a_list_without_downloads_names_the_default_folder() {
    let setup = Setup::new();
    let listed = || text(&setup.run(&["list"], "").stderr);
    assert!(listed().contains("No models yet. Try: mlx pull "), "{}", listed());
    let folder = model_folder("llama-f32");
    let folder = folder.to_str().expect("utf-8");
    assert!(setup.run(&["default", folder], "").status.success());
    assert!(listed().contains(&format!("The default model is {folder}")), "{}", listed());
}

#[test]
fn a_prompt_without_a_flag_is_followed_by_what_is_piped_in() {
    let setup = Setup::new();
    let greedy = ["--max-tokens", "12", "--temperature", "0", "--json"];
    let ids = |arguments: &[&str], input: &str| {
        let output = setup.run(&[arguments, &greedy[..]].concat(), input);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        (object["usage"]["prompt_tokens"].clone(), object["tokens"].clone())
    };
    let whole = ids(&["generate", "guide", "-p", "Repeat this:\n\nthe waves\n"], "unused");
    assert_eq!(ids(&["-m", "guide", "Repeat this:"], "the waves\n"), whole);
    assert_eq!(ids(&["generate", "guide", "Repeat this:"], "the waves\n"), whole);
    assert_eq!(ids(&["-m", "guide", "Repeat this:\n\nthe waves\n"], ""), whole);
    assert_eq!(ids(&["generate", "guide"], "Repeat this:\n\nthe waves\n"), whole);
}

#[test]
fn names_that_cannot_be_meant_are_answered_with_ones_that_can() {
    let setup = Setup::new();
    assert!(setup.run(&["download", &format!("{}/org/tiny", setup.hub.endpoint())], "").status.success());
    assert!(setup.is_downloaded(), "the URL of a model's page must work as its name");
    for (model, words) in [
        ("tiny", "did you mean org/tiny?"),
        ("qwen3-0.6b", "did you mean mlx-community/Qwen3-0.6B-4bit"),
        ("nonesuch", "ORG/NAME"),
        ("model.gguf", "does not exist"),
        ("tiny:4b", "did you mean org/tiny?"),
        ("org/tiny:Q4_0", "which has no GGUF file"),
        (".", "has no config.json"),
    ] {
        let output = setup.run(&["generate", "-m", model, "-p", "x"], "");
        assert_eq!(output.status.code(), Some(1), "{model}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    for arguments in [&["inspect", "org/tiny"][..], &["ls"], &["quantize", "org/tiny", "-o", "small"]] {
        let output = setup.run(arguments, "");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_shell_completes_models() {
    let setup = Setup::new();
    assert!(setup.run(&["pull", "org/tiny"], "").status.success());
    let mut command = setup.command(&["--", "mlx", "chat", "-m", "or"]);
    command.env("MLX_COMPLETE", "fish");
    assert_eq!(text(&piped(command, "").stdout).trim(), "org/tiny");
}

#[test]
fn a_download_that_the_disk_cannot_hold_is_refused_before_its_first_byte() {
    let setup = Setup::new();
    setup.hub.behave().claimed_size = Some(1 << 60);
    let output = setup.run(&["pull", "org/tiny"], "");
    let message = text(&output.stderr);
    assert!(message.contains("needs") && message.contains("HF_HOME"), "{message}");
    let asked = setup.hub.behave().requests.clone();
    assert!(asked.iter().all(|request| !request.line.contains("resolve")), "{asked:?}");
}

#[test]
fn the_bar_of_a_download_fits_a_narrow_terminal() {
    let setup = Setup::new();
    setup.hub.behave().pause = Duration::from_millis(20);
    let mut shell = setup.command(&[]);
    let program = shell.get_program().to_owned();
    shell = {
        let mut narrow = Command::new("sh");
        for (name, value) in shell.get_envs() {
            match value {
                Some(value) => narrow.env(name, value),
                None => narrow.env_remove(name),
            };
        }
        narrow.args(["-c", "stty cols 60; exec \"$0\" pull org/tiny"]).arg(program);
        narrow
    };
    let mut session = Session::spawn(shell).expect("the program starts");
    session.set_expect_timeout(Some(Duration::from_mins(1)));
    let shown = expect(&mut session, "next: mlx chat org/tiny");
    let painted: Vec<&str> = shown.split(['\r', '\n']).filter(|line| line.contains(" % ")).collect();
    assert!(painted.iter().any(|line| line.contains("/s") && line.contains("left")), "{shown:?}");
    for line in painted {
        let visible = console::strip_ansi_codes(line);
        assert!(visible.chars().count() <= 60, "{visible:?}");
    }
}
