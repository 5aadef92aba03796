//! Conversations: messages are rendered by the model's template, answers become messages, and failures lose nothing.

use std::os::unix::fs::PermissionsExt;

use chat_format::text::NO_PAUSE;
use chat_format::{ChatEvent, Image, Message, Part, TemplateInput, Tool, Tools};
use mlx_core::chat::{Answer, ChatSession, StreamEvent, chat_prompt};
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_tests::{device, engine, greedy, successors};
use serde_json::json;

/// Reads an answer to its end, which adds it to its session.
fn text(mut answer: Answer) -> String {
    answer.by_ref().for_each(drop);
    answer.text().to_owned()
}

fn prompt(engine: &Engine, messages: &[Message]) -> Vec<u32> {
    let messages = messages.to_vec();
    let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
    chat_prompt(engine, &input, NO_PAUSE).expect("it renders").tokens
}

#[test]
fn an_answer_depends_on_all_messages_before_it() {
    let _turn = device();
    let engine = engine("llama-f32");
    let mut session = ChatSession::new(engine.clone(), greedy(8));
    session.set_system("Be brief.");
    let first = text(session.ask("One?").expect("it starts"));
    let second = text(session.ask("Two?").expect("it starts"));
    let messages = [
        Message::system("Be brief."),
        Message::user("One?"),
        Message::assistant(&first),
        Message::user("Two?"),
        Message::assistant(&second),
    ];
    assert_eq!(session.messages(), messages);
    assert_eq!(second, mlx_tests::run(&engine, &prompt(&engine, &messages[..4]), &greedy(8)).text);
}

#[test]
fn retry_answers_again_and_clear_keeps_the_system_prompt() {
    let _turn = device();
    let mut session = ChatSession::new(engine("llama-f32"), greedy(6));
    assert!(session.retry().is_err());
    session.set_system("Be kind.");
    let answer = text(session.ask("Hello?").expect("it starts"));
    assert_eq!(session.messages().len(), 3);
    assert_eq!(text(session.retry().expect("it starts")), answer);
    assert_eq!(session.messages().len(), 3);
    drop(session.retry().expect("it starts"));
    assert_eq!(session.messages().len(), 2);
    session.clear();
    assert_eq!(session.messages().len(), 1);
}

#[test]
fn a_base_model_continues_the_text_of_the_conversation() {
    let _turn = device();
    let engine = engine("qwen3-f32");
    assert!(engine.folder().template.is_none());
    let mut session = ChatSession::new(engine.clone(), greedy(6));
    let first = text(session.ask("Once").expect("it starts"));
    let second = text(session.ask("Then").expect("it starts"));
    let tokens = engine.folder().tokenizer.encode(&format!("Once{first}\nThen"), true).expect("it is short");
    assert_eq!(second, mlx_tests::run(&engine, &tokens, &greedy(6)).text);
    let input = TemplateInput { messages: vec![Message::user("Once")], ..TemplateInput::default() };
    let refused = chat_prompt(&engine, &input, NO_PAUSE).map(|prompt| prompt.text);
    assert!(refused.is_err_and(|error| error.to_string().contains("no chat template")));
}

#[test]
fn a_message_that_does_not_fit_is_refused_and_forgotten() {
    let _turn = device();
    let mut session = ChatSession::new(engine("llama-f32"), greedy(6));
    assert!(session.ask(&"word ".repeat(500)).is_err());
    assert!(session.messages().is_empty());
    assert!(session.ask("short").is_ok());
}

const CALLING: &str = "\
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{{ tools | tojson if tools else '' }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{\"name\": {{ call.function.name | tojson }}, \"arguments\": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

#[test]
fn calls_wait_for_results_and_those_of_a_broken_off_answer_are_none() {
    let _turn = device();
    let words = ["Well.", "<tool_call>\n{\"name\": \"add\", ", "\"arguments\": {}}\n</tool_call>"];
    let model = successors::chain(CALLING, "<|im_start|>assistant\n", &words);
    let engine = Engine::start(model.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let mut session = ChatSession::new(engine.clone(), RequestOptions { ignore_eos: false, ..greedy(20) });
    let tool = json!({"type": "function", "function": {"name": "add"}});
    session
        .set_tools(Tools::new(vec![Tool::read(tool).expect("a tool")]).expect("one"))
        .expect("it can call");
    // Dropped after the call has ended.
    let mut answer = session.ask("Go").expect("it starts");
    assert!(answer.any(|event| event == StreamEvent::Chat(ChatEvent::CallEnd)));
    drop(answer);
    assert_eq!(session.open_calls(), []);
    assert_eq!(
        (texts(&session), session.messages()[1].tool_calls.len()),
        (vec!["Go".into(), "Well.".into()], 0)
    );
    // A complete answer.
    assert!(session.continue_after_calls(true).is_err());
    text(session.retry().expect("it starts"));
    let calls = session.open_calls();
    assert_eq!((calls.len(), calls[0].name.as_str(), calls[0].arguments.as_str()), (1, "add", "{}"));
    let error = session.ask("And now?").err().expect("the call has no result").to_string();
    assert!(error.contains("messages") && error.contains("without a result"), "{error}");
    // This model reads only text.
    let dot = Image::new(1, 1, vec![0; 3]).expect("a picture");
    let result = vec![Part::Image(dot), Part::Text("3".into())];
    assert!(!session.add_result(&calls[0], result).expect("it waits"));
    let kept = session.messages().last().expect("the result").parts.clone();
    assert!(
        matches!(&kept[..], [Part::Text(text)] if text.contains("a picture was left out") && text.ends_with("\n3")),
        "{kept:?}"
    );
    assert!(session.add_result(&calls[0], vec![Part::Text("4".into())]).is_err());
    let again = session.continue_after_calls(false).expect("it starts");
    assert!(text(again).contains("</tool_call>"), "without tools a call is text");
    assert_eq!(session.open_calls(), []);
    // A token limit cuts the call in the middle.
    session.set_options(RequestOptions { ignore_eos: false, ..greedy(2) }).expect("valid");
    text(session.retry().expect("it starts"));
    assert_eq!(session.open_calls(), []);
    let plain = mlx_tests::engine("llama-f32");
    let error = session.change_model(plain).expect_err("it cannot call").to_string();
    assert!(error.contains("tools"), "{error}");
}

fn texts(session: &ChatSession) -> Vec<String> {
    session.messages().iter().map(Message::text).collect()
}

#[test]
fn only_a_message_with_an_interrupted_answer_is_replaced() {
    let _turn = device();
    let mut session = ChatSession::new(engine("llama-f32"), greedy(6));
    // An answer that the model ends immediately is an answer.
    let mut silent = greedy(6);
    (silent.ignore_eos, silent.sampling.logit_bias) = (false, vec![(4, 100.0)]);
    session.set_options(silent).expect("the token exists");
    assert_eq!(text(session.ask("My name is Ann.").expect("it starts")), "");
    session.set_options(greedy(6)).expect("valid");
    drop(session.ask("What is my nmae?").expect("it starts"));
    let mut answer = session.ask("What is my name?").expect("it starts");
    let begun = answer.find_map(|event| match event {
        StreamEvent::Chat(ChatEvent::Text(text)) => Some(text),
        _ => None,
    });
    let begun = begun.expect("the answer has text");
    assert_eq!(answer.text(), begun);
    drop(answer);
    assert_eq!(texts(&session), ["My name is Ann.", "", "What is my name?", begun.as_str()]);
    // A saved conversation may also end with a question.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    session.undo().expect("there is a message");
    drop(session.ask("Well?").expect("it starts"));
    session.save(file.path()).expect("it can be written");
    session.load(file.path()).expect("it can be read");
    drop(session.ask("Hello?").expect("it starts"));
    assert_eq!(texts(&session), ["My name is Ann.", "", "Well?", "Hello?"]);
}

#[test]
fn a_saved_conversation_continues_and_a_broken_file_changes_nothing() {
    let _turn = device();
    let engine = engine("llama-f32");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (good, bad) = (folder.path().join("new/chat.json"), folder.path().join("broken.json"));
    let mut session = ChatSession::new(engine.clone(), greedy(6));
    session.set_system("Be \"kind\".");
    text(session.ask("Hello?").expect("it starts"));
    session.save(&good).expect("it can be written");
    // Other users cannot read the file.
    let modes = [folder.path().join("new"), good.clone()];
    let modes = modes.map(|path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777);
    assert_eq!(modes, [0o700, 0o600]);
    std::fs::write(&bad, "[{\"role\": \"wizard\"}]").expect("it can be written");
    let mut other = ChatSession::new(engine, greedy(6));
    other.load(&good).expect("it can be read");
    let error = other.load(&bad).expect_err("it must be refused").to_string();
    assert!(error.contains("broken.json"));
    assert_eq!((other.messages(), other.messages().len()), (session.messages(), 3));
}
