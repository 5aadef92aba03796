//! Conversations: messages reach the model through its template, and a failure loses nothing.

use mlx_core::engine::Generation;
use mlx_core::session::{ChatSession, Message, Role, chat_prompt};
use mlx_tests::{collect, device, engine, greedy};

fn text(generation: Generation) -> String {
    collect(generation).text
}

#[test]
fn an_answer_depends_on_all_messages_before_it() {
    let _turn = device();
    let engine = engine("llama-f32");
    let mut session = ChatSession::new(engine.clone(), greedy(8)).expect("a template");
    session.set_system("Be brief.");
    let first = text(session.ask("One?").expect("it starts"));
    session.answered(first.clone());
    let second = text(session.ask("Two?").expect("it starts"));
    let said = |role, content: &str| Message { role, content: content.into() };
    let messages = [
        said(Role::System, "Be brief."),
        said(Role::User, "One?"),
        said(Role::Assistant, &first),
        said(Role::User, "Two?"),
    ];
    assert_eq!(session.messages(), messages);
    let prompt = chat_prompt(&engine, &messages).expect("it renders");
    assert_eq!(second, mlx_tests::run(&engine, &prompt, &greedy(8)).text);
}

#[test]
fn retry_answers_again_and_clear_keeps_the_system_prompt() {
    let _turn = device();
    let mut session = ChatSession::new(engine("llama-f32"), greedy(6)).expect("a template");
    assert!(session.retry().is_err());
    session.set_system("Be kind.");
    let answer = text(session.ask("Hello?").expect("it starts"));
    session.answered(answer.clone());
    assert_eq!(text(session.retry().expect("it starts")), answer);
    assert_eq!(session.messages().len(), 2);
    session.clear();
    assert_eq!(session.messages().len(), 1);
}

#[test]
fn a_message_that_does_not_fit_is_refused_and_forgotten() {
    let _turn = device();
    let mut session = ChatSession::new(engine("llama-f32"), greedy(6)).expect("a template");
    assert!(session.ask(&"word ".repeat(500)).is_err());
    assert!(session.messages().is_empty());
    assert!(session.ask("short").is_ok());
}

#[test]
fn only_a_message_with_an_interrupted_answer_is_replaced() {
    let _turn = device();
    let mut session = ChatSession::new(engine("llama-f32"), greedy(6)).expect("a template");
    let said = |session: &ChatSession| -> Vec<String> {
        session.messages().iter().map(|message| message.content.clone()).collect()
    };
    drop(session.ask("My name is Ann.").expect("it starts"));
    session.answered(String::new());
    drop(session.ask("What is my nmae?").expect("it starts"));
    session.broken_off(String::new());
    drop(session.ask("What is my name?").expect("it starts"));
    session.broken_off("An".into());
    assert_eq!(said(&session), ["My name is Ann.", "", "What is my name?", "An"]);
    // A saved conversation may also end with a question.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    session.undo().expect("there is a message");
    drop(session.ask("Well?").expect("it starts"));
    session.broken_off(String::new());
    session.save(file.path()).expect("it can be written");
    session.load(file.path()).expect("it can be read");
    drop(session.ask("Hello?").expect("it starts"));
    assert_eq!(said(&session), ["My name is Ann.", "", "Well?", "Hello?"]);
}

#[test]
fn a_saved_conversation_continues_and_a_broken_file_changes_nothing() {
    let _turn = device();
    let engine = engine("llama-f32");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (good, bad) = (folder.path().join("chat.json"), folder.path().join("broken.json"));
    let mut session = ChatSession::new(engine.clone(), greedy(6)).expect("a template");
    session.set_system("Be kind.");
    drop(session.ask("Hello?").expect("it starts"));
    session.answered("Hi \"there\".".into());
    session.save(&good).expect("it can be written");
    std::fs::write(&bad, "[{\"role\": \"wizard\"}]").expect("it can be written");
    let mut other = ChatSession::new(engine, greedy(6)).expect("a template");
    other.load(&good).expect("it can be read");
    let error = other.load(&bad).expect_err("it must be refused").to_string();
    assert!(error.contains("broken.json"));
    assert_eq!(other.messages(), session.messages());
}
