//! Measures the time that the prefix cache saves in a chat: `prefixes MODEL`. Asserts that the answers are the same.

use std::time::Instant;

use mlx_core::Result;
use mlx_core::engine::{Engine, EngineOptions, Event};

use crate::figures::Figures;
use crate::load::{argument, engine_options, engine_with, greedy, milliseconds};

const TURNS: usize = 12;
/// Tokens per message; `ANSWER` is per answer.
const MESSAGE: usize = 150;
const ANSWER: usize = 60;

struct Answer {
    tokens: Vec<u32>,
    cached: usize,
    /// Milliseconds until the first token.
    first: f64,
}

fn answer(engine: &Engine, prompt: &[u32]) -> Result<Answer> {
    let request = engine.request(prompt.to_vec(), &greedy(ANSWER))?;
    let begin = Instant::now();
    let (mut tokens, mut cached, mut first) = (Vec::new(), 0, None);
    for event in engine.submit(request)? {
        match event {
            Event::Token(token) => {
                first.get_or_insert_with(|| milliseconds(begin, Instant::now()));
                tokens.push(token.id);
            }
            Event::Done(end) => cached = end.usage.cached_tokens,
            _ => {}
        }
    }
    Ok(Answer { tokens, cached, first: first.expect("a first token") })
}

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let start = |prefix_cache| engine_with(&model, &EngineOptions { prefix_cache, ..engine_options() });
    let (warm, cold) = (start(None)?, start(Some(0))?);
    let range = warm.spec().vocab_size - 10;
    let word = |place: usize| ((place * 7919 + 11) % range + 5) as u32;
    let (mut text, mut figures): (Vec<u32>, _) = (Vec::new(), Figures::default());
    for turn in 0..TURNS {
        text.extend((turn * MESSAGE..(turn + 1) * MESSAGE).map(word));
        let (kept, anew) = (answer(&warm, &text)?, answer(&cold, &text)?);
        assert_eq!(kept.tokens, anew.tokens, "what is kept changes nothing");
        let turn = turn + 1;
        figures.add(format!("turn {turn}, tokens taken over of {}", text.len()), kept.cached as f64);
        figures.add(format!("turn {turn}, first token with, ms"), kept.first);
        figures.add(format!("turn {turn}, first token without, ms"), anew.first);
        figures.add(format!("turn {turn}, with / without"), kept.first / anew.first);
        text.extend(kept.tokens);
    }
    Ok(figures)
}
