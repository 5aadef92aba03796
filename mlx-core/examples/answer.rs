//! One answer: `cargo run --example answer -- MODEL 'Why is the sky blue?'`
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::io::Write;

use chat_format::ChatEvent;
use mlx_core::chat::StreamEvent;
use mlx_core::{ChatSession, Engine, EngineOptions, RequestOptions, Result};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "crates/guide/model".into());
    let question = arguments.next().unwrap_or_else(|| "How do I get a real model?".into());

    let engine = Engine::start(&mlx_hub::resolve(model.as_ref())?, &EngineOptions::single(), |_, _| {})?;
    let options = RequestOptions { max_tokens: Some(200), ..RequestOptions::default() };
    let mut session = ChatSession::new(engine, options);
    for event in session.ask(&question)? {
        if let StreamEvent::Chat(ChatEvent::Text(text)) = event {
            print!("{text}");
            std::io::stdout().flush().ok();
        }
    }
    println!();
    Ok(())
}
