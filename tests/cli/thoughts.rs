//! Chats with a reasoning model: answer and reasoning stay separate, in a pipe and in files.

use mlx_tests::harmony::{self, ANSWER, PRESENCE_PENALTY, THOUGHT};
use mlx_tests::successors::endless_thinker;
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
    // Special tokens, channel names, reasoning and answer are all drawn tokens.
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
    assert!(prompt_tokens(&["--no-think"]) < usual, "the prompt for low must be shorter than for medium");
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

#[test]
fn parse_shows_what_an_output_means() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let write =
        |name: &str, text: &str| std::fs::write(work.path().join(name), text).expect("it can be written");
    let call = "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>";
    write(
        "template.jinja",
        &format!(
            "{{{{ tools }}}}{{% for m in messages %}}{{{{ m.content }}}}{{# </think> #}}{{% for c in m.tool_calls or [] %}}{{% set f = c.function %}}{call}{{% endfor %}}{{% endfor %}}"
        ),
    );
    let schema =
        r#"{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}"#;
    write(
        "tools.json",
        &format!(r#"[{{"type": "function", "function": {{"name": "w", "parameters": {schema}}}}}]"#),
    );
    let output = "Hm</think>\n\nSure.\n<tool_call>\n<function=w>\n<parameter=city>\n75\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call><|im_end|>\n";
    let parse = |arguments: &[&str]| {
        let output = mlx_in(work.path(), &[&["parse"], arguments].concat(), output);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("one JSON object")
    };
    let message =
        parse(&["--template", "template.jinja", "--tools", "tools.json", "--prompt-end", "<think>\n"]);
    let function = serde_json::json!({"name": "w", "arguments": "{\"city\":\"75\",\"days\":3}"});
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&"Sure.".into(), &"Hm".into()),
        "{message}"
    );
    assert_eq!((&message["tool_calls"][0]["function"], &message["role"]), (&function, &"assistant".into()));
    // Without a schema, text that looks like a number is one.
    let message = parse(&["--format", "qwen3-coder"]);
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"city\":75,\"days\":3}");
    let model = model("llama-f32");
    let plain = mlx_in(work.path(), &["parse", "-m", &model], "Hi");
    assert_eq!(stdout(&plain), "{\"role\":\"assistant\",\"content\":\"Hi\"}\n");
    assert!(stderr(&plain).contains("tool calls are passed through as text"), "{}", stderr(&plain));
    let refused = mlx_in(work.path(), &["parse", "--format", "morse"], output);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("hermes"), "{}", stderr(&refused));
}

#[test]
fn a_budget_ends_the_thought_on_the_command_line_and_in_a_chat() {
    let folder = endless_thinker();
    let path = folder.path().to_str().expect("utf-8");
    let with = |command: &'static str, more: &[&'static str]| {
        let flags = ["-m", path, "--temperature", "0", "--max-tokens", "40"].map(str::to_owned);
        let more = more.iter().map(|word| (*word).to_owned());
        [command.to_owned()].into_iter().chain(flags).chain(more).collect::<Vec<_>>()
    };
    let run =
        |words: Vec<String>, input: &str| mlx(&words.iter().map(String::as_str).collect::<Vec<_>>(), input);
    let generated = |budget: &'static str| {
        let output = run(with("generate", &["-p", "Go", "--json", "--think-budget", budget]), "");
        let object: Value = serde_json::from_slice(&output.stdout).expect("json");
        let thought = object["reasoning"].as_str().unwrap_or_default().trim_end().to_owned();
        (
            object["text"].as_str().expect("a text").to_owned(),
            thought,
            object["usage"]["completion_tokens"].clone(),
        )
    };
    assert_eq!(generated("2"), ("Yes.".to_owned(), "Hm Hm".to_owned(), 5.into()));
    assert_eq!(generated("0"), ("Yes.".to_owned(), String::new(), 3.into()));
    let typed = run(with("chat", &["--think-budget", "2"]), "/params\nGo\n/think 0\n/retry\n/think none\n");
    assert_eq!(stdout(&typed), "Yes.\nYes.\n", "{}", stderr(&typed));
    let noted = stderr(&typed);
    assert!(noted.contains("think_budget=2 ") && noted.contains("or a number of tokens"), "{noted}");
    let raw = run(with("generate", &["-p", "Go", "--raw", "--think-budget", "5"]), "");
    assert_eq!(raw.status.code(), Some(2), "{}", stderr(&raw));
    assert!(stderr(&raw).contains("--think-budget"), "{}", stderr(&raw));
    // A record keeps the flag.
    let work = tempfile::tempdir().expect("a temporary folder");
    let record = run(with("generate", &["-p", "Go", "--json", "--think-budget", "2"]), "");
    std::fs::write(work.path().join("record.json"), stdout(&record)).expect("it can be written");
    let replayed = mlx_in(work.path(), &["replay", "record.json"], "");
    assert!(replayed.status.success(), "{}{}", stdout(&replayed), stderr(&replayed));
}
