//! Chats with a model that thinks: the answer is the answer, and a thought is a thought, in a pipe and in files.

use mlx_tests::harmony::{self, ANSWER, PRESENCE_PENALTY, THOUGHT};
use serde_json::Value;

use super::{json, mlx, mlx_in, model, stderr, stdout};

const GREEDY: [&str; 4] = ["--temperature", "0", "--presence-penalty", PRESENCE_PENALTY];

fn with<'a>(command: &'a str, folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command, "-m", folder][..], &GREEDY, more].concat()
}

#[test]
fn a_piped_chat_says_and_keeps_the_answer_without_its_thought() {
    let folder = harmony::model();
    let path = folder.path().to_str().expect("utf-8");
    let work = tempfile::tempdir().expect("a temporary folder");
    let output = mlx_in(work.path(), &with("chat", path, &[]), "Hi\nAgain\n/save kept.json\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), format!("{ANSWER}\n{ANSWER}\n"));
    let saved = std::fs::read(work.path().join("kept.json")).expect("it was saved");
    let messages: Vec<Value> = serde_json::from_slice(&saved).expect("json");
    assert_eq!(messages.len(), 4);
    assert_eq!(
        (&messages[1]["content"], &messages[1]["reasoning_content"]),
        (&ANSWER.into(), &THOUGHT.into())
    );
    let again = mlx_in(work.path(), &with("chat", path, &[]), "/load kept.json\n/think\n/retry\n");
    let shown = stdout(&again);
    assert!(shown.starts_with("Thinking…\nHmm\nThought for ") && shown.ends_with("\n\nHello\n"), "{shown:?}");
}

#[test]
fn a_generated_answer_has_its_thought_beside_it() {
    let folder = harmony::model();
    let path = folder.path().to_str().expect("utf-8");
    assert_eq!(stdout(&mlx(&with("generate", path, &["-p", "Hi"]), "")), format!("{ANSWER}\n"));
    let object = json(&with("generate", path, &["-p", "Hi", "--json"]), "");
    assert_eq!((&object["text"], &object["reasoning"]), (&ANSWER.into(), &THOUGHT.into()));
    // Special tokens, names of channels, thought and answer are all drawn tokens.
    assert_eq!(object["usage"]["completion_tokens"], 12);
}

#[test]
fn a_model_thinks_as_it_is_asked_or_the_flag_is_refused() {
    let folder = harmony::model();
    let path = folder.path().to_str().expect("utf-8");
    let prompt_tokens = |flags: &[&str]| {
        let object = json(&with("generate", path, &[&["-p", "Hi", "--json"], flags].concat()), "");
        object["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    let usual = prompt_tokens(&[]);
    assert_eq!(prompt_tokens(&["--think"]), usual);
    assert!(prompt_tokens(&["--no-think"]) < usual, "low is shorter than medium");
    assert_eq!(prompt_tokens(&["--think=low"]), prompt_tokens(&["--no-think"]));
    let llama = model("llama-f32");
    for flags in
        [&["generate", "-m", &llama, "-p", "Hi", "--think"][..], &["chat", "-m", &llama, "--no-think"]]
    {
        let refused = mlx(flags, "Hi\n");
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("think"), "{}", stderr(&refused));
    }
    let typed = mlx(&with("chat", path, &[]), "/think maybe\n/think high\nHi\n");
    assert_eq!((stdout(&typed), typed.status.code()), (format!("{ANSWER}\n"), Some(1)));
    assert!(stderr(&typed).contains("maybe") && !stderr(&typed).contains("high\""), "{}", stderr(&typed));
}
