//! What a chat saves by what was computed for its earlier turns: `cargo bench -p mlx-core --bench prefixes -- MODEL`.

use std::path::Path;
use std::time::Instant;

use mlx_core::engine::{EngineHandle, EngineOptions, Event, RequestOptions};
use mlx_core::sampling::SamplingOptions;

const TURNS: usize = 12;
/// Tokens of a message, and of an answer.
const MESSAGE: usize = 150;
const ANSWER: usize = 60;

struct Answer {
    tokens: Vec<u32>,
    cached: usize,
    /// Milliseconds until the first token.
    first: f64,
}

fn answer(engine: &EngineHandle, prompt: &[u32]) -> Answer {
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(ANSWER),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let request = engine.request(prompt.to_vec(), &options).expect("a valid request");
    let begin = Instant::now();
    let (mut tokens, mut cached, mut first) = (Vec::new(), 0, None);
    for event in engine.submit(request).expect("room in the queue") {
        match event {
            Event::Token(token) => {
                first.get_or_insert_with(|| begin.elapsed().as_secs_f64() * 1e3);
                tokens.push(token.id);
            }
            Event::Done(end) => cached = end.usage.cached_tokens,
            _ => {}
        }
    }
    Answer { tokens, cached, first: first.expect("a first token") }
}

#[expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
fn main() {
    let model = std::env::args().skip(1).find(|it| it != "--bench").expect("a model folder");
    let start = |prefix_cache| {
        let options = EngineOptions { prefix_cache, ..EngineOptions::default() };
        EngineHandle::start(Path::new(&model), &options, |_, _| {}).expect("the model loads")
    };
    let (warm, cold) = (start(None), start(Some(0)));
    let range = warm.spec().vocabulary - 10;
    let word = |place: usize| ((place * 7919 + 11) % range + 5) as u32;
    let mut text: Vec<u32> = Vec::new();
    println!("turn  prompt  cached   first token, ms: kept  cold  ratio");
    for turn in 0..TURNS {
        text.extend((turn * MESSAGE..(turn + 1) * MESSAGE).map(word));
        let (kept, anew) = (answer(&warm, &text), answer(&cold, &text));
        assert_eq!(kept.tokens, anew.tokens, "what is kept changes nothing");
        let ratio = kept.first / anew.first;
        let (prompt, cached) = (text.len(), kept.cached);
        println!("{turn:4} {prompt:7} {cached:7} {:21.1} {:5.0} {ratio:6.2}", kept.first, anew.first);
        text.extend(kept.tokens);
    }
}
