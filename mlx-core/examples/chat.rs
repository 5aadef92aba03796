//! A chat on standard input: `cargo run --example chat -- MODEL`
#![expect(clippy::print_stdout, reason = "an example prints")]

use mlx_core::{ChatSession, Engine, EngineOptions, Error, RequestOptions, Result};

fn main() -> Result<()> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "crates/guide/model".into());
    let engine = Engine::start(&mlx_hub::resolve(model.as_ref())?, &EngineOptions::single(), |_, _| {})?;
    let options = RequestOptions { max_tokens: Some(200), ..RequestOptions::default() };
    let mut session = ChatSession::new(engine, options);
    for line in std::io::stdin().lines() {
        let question = line.map_err(|error| Error::io("standard input", error))?;
        // The answer becomes a message of the session when it is dropped.
        let mut answer = session.ask(&question)?;
        answer.by_ref().for_each(drop);
        println!("{}", answer.text());
    }
    Ok(())
}
