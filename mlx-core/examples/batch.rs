//! Many requests at once, with log-probabilities: `cargo run --example batch -- MODEL 'Once upon' 'In the end'`
#![expect(clippy::print_stdout, reason = "an example prints")]

use mlx_core::{Engine, EngineOptions, Event, RequestOptions, Result};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "crates/guide/model".into());
    let engine = Engine::start(&mlx_hub::resolve(model.as_ref())?, &EngineOptions::default(), |_, _| {})?;

    let options = RequestOptions { max_tokens: Some(10), logprobs: Some(0), ..RequestOptions::default() };
    let request = |text: String| engine.request(engine.folder().tokenizer.encode(&text, true)?, &options);
    let requests = arguments.map(request).collect::<Result<Vec<_>>>()?;
    // All are queued before the first is read, so that they run as one batch.
    for generation in engine.submit_all(requests)? {
        for event in generation {
            if let Event::Token(token) = event {
                let logprob = token.logprob.map_or(0.0, |it| it.logprob);
                println!("{logprob:8.3} {:?}", token.text);
            }
        }
        println!();
    }
    Ok(())
}
