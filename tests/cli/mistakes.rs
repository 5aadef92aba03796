//! Mistakes on the command line and broken models: one line that names the mistake, and an exit code.

use serde_json::Value;

use super::{mlx, model, stderr, stdout};

#[test]
fn failures_print_one_line_and_have_an_exit_code() {
    let folder = model("llama-f32");
    let run = |arguments: &[&str]| {
        let output = mlx(&[&["generate", "-m"], arguments].concat(), "");
        assert_eq!(stdout(&output), "");
        (output.status.code(), stderr(&output))
    };
    let (code, message) = run(&["no-such-folder", "-p", "x"]);
    assert_eq!((code, message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.starts_with("error: no-such-folder"), "{message}");
    for (arguments, word) in [
        (&["--temperature", "-1"][..], "temperature"),
        (&["--top-p", "1.5"], "--top-p"),
        (&["--repetition-penalty", "0"], "--repetition-penalty"),
        (&["--penalty-last-n", "-2"], "--penalty-last-n"),
        (&["--dry-base", "0.5"], "--dry-base"),
        (&["--xtc-probability", "7"], "--xtc-probability"),
        (&["--logit-bias", "5:1"], "logit-bias"),
        (&["--logit-bias", "5=1e9"], "--logit-bias"),
        (&["--logit-bias", "999999=5"], "--logit-bias"),
        (&["--stop", ""], "stop"),
        (&["--logprobs", "21", "--json"], "logprobs"),
        (&["--max-tokens", "many"], "max-tokens"),
        (&["--no-such-flag"], "no-such-flag"),
    ] {
        let (code, message) = run(&[&[folder.as_str(), "-p", "x"], arguments].concat());
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains(word), "{message}");
    }
    let (code, message) = run(&[&folder, "--prompt-ids", "1,99999"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("99999"), "{message}");
}

#[test]
fn flags_without_effect_are_refused() {
    let folder = model("llama-f32");
    for (arguments, word) in [
        (&["bench", "-m", &folder, "--prompt-cache-dir", "x"][..], "--prompt-cache-dir"),
        (&["cache", "list", "--prompt-cache-dir", "no-such-folder"], "no-such-folder"),
        (&["score", "-m", "no-such-folder", "-t", "x", "--json", "--logprobs", "21"], "--logprobs"),
        (&["generate", "-m", "no-such-folder", "-p", "x", "--top-p", "2"], "--top-p is 2"),
    ] {
        let output = mlx(arguments, "");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

/// Fields exist in HTTP requests; errors on the command line name flags.
#[test]
fn errors_name_the_flag_that_was_given() {
    let folder = model("llama-f32");
    let long = "word ".repeat(400);
    for (arguments, start) in [
        (&["generate", "-m", &folder, "-p", "x", "--no-think"][..], "--no-think "),
        (&["generate", "-m", &folder, "-p", "x", "--think"], "--think "),
        (&["chat", "-m", &folder, "--no-think"], "--no-think "),
        (&["score", "-m", &folder, "--prompt-ids", "99999"], "--prompt-ids holds token id 99999"),
        (&["generate", "-m", &folder, "-p", &long], "the prompt has "),
        (&["compare", &folder, &folder, &long], "the messages have "),
        (&["rm", "a b"], "ORG/NAME is \"a b\""),
    ] {
        let output = mlx(arguments, "x");
        let message = stderr(&output);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(message.starts_with(&format!("error: {start}")), "{arguments:?}: {message}");
    }
}

/// A failed generation prints one line to standard error, which may be closed.
#[test]
fn invalid_logits_are_reported_in_one_line() {
    let copy = mlx_tests::model_copy("llama-f32");
    let config = copy.path().join("config.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&config).expect("a file")).expect("json");
    value["rms_norm_eps"] = 3e38.into();
    value["rope_scaling"] = serde_json::json!({"type": "linear", "factor": 1e-38});
    std::fs::write(&config, value.to_string()).expect("it can be written");
    let folder = copy.path().to_str().expect("utf-8");
    let output = mlx(&["generate", "-m", folder, "--prompt-ids", "1,2,3,4,5", "--max-tokens", "3"], "");
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
}

/// The tokenizer library panics on these files; the user sees a one-line error.
#[test]
fn an_inconsistent_tokenizer_is_reported_in_one_line() {
    let broken = [
        ("normalizer", serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("normalizer", serde_json::json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
        ("decoder", serde_json::json!({"type": "Nonesuch"})),
    ];
    let mut refused = 0;
    for (key, value) in broken {
        let copy = mlx_tests::model_copy("llama-f32");
        let path = copy.path().join("tokenizer.json");
        let mut object: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
        object[key] = value;
        std::fs::write(&path, object.to_string()).expect("it can be written");
        let folder = copy.path().to_str().expect("utf-8");
        let output = mlx(&["generate", "-m", folder, "--prompt-ids", "1", "--max-tokens", "1"], "");
        // The library may accept a file that looks broken; only the form of the error matters.
        if !output.status.success() {
            assert_eq!(
                (output.status.code(), stderr(&output).lines().count()),
                (Some(1), 1),
                "{}",
                stderr(&output)
            );
            assert!(stderr(&output).contains("tokenizer.json"), "{}", stderr(&output));
            refused += 1;
        }
    }
    assert!(refused >= 2, "{refused} of three were refused");
}
