//! The quality loss of a conversion: the perplexity of a short text before and after it.

use std::path::{Path, PathBuf};

use crate::engine::{Engine, EngineOptions, Event, FinishReason, RequestOptions, Task};
use crate::error::{Error, Result};
use crate::inspect::inspect;

/// The text: plain prose, speech, numbers and code.
const TEXT: &str = "\
The harbour office opens at seven, but the ferry to the islands leaves at half past six, so most passengers buy their tickets the day \
before. In winter the crossing takes about two hours. If the wind turns north, the captain waits until it drops, and the passengers do not \
complain: most of them know a sailor who once did not wait.

\"Do you have change for twenty?\" asked the girl at the counter. \"I only need one ticket, and my brother travels free because he is \
four.\" The clerk counted 12 coins into her hand, added a receipt, and advised the left side of the deck, where the sea is calmer.

Heat moves from warm bodies to cold ones. Water stores more of it than air does, which is why the coast is mild in January while towns \
100 kilometres inland have snow. The same effect delays spring: the sea is coldest in March, long after the shortest day.

def total(prices, rate=0.2):
    \"\"\"Returns the sum of the prices with tax.\"\"\"
    return sum(price * (1 + rate) for price in prices)
";

/// The maximum number of tokens of the text to score.
const TOKENS: usize = 256;

/// The maximum number of parameters to measure on a CPU. A larger model takes minutes.
const MOST_ON_CPU: u64 = 4_000_000_000;

/// The perplexity of a short text. Lower is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Tokens of the text.
    pub tokens: usize,
    /// The perplexity of the original model.
    pub before: f64,
    /// The perplexity of the converted model.
    pub after: f64,
}

impl Quality {
    /// Measures the model in `source`, then its conversion in `target`. `adapter` was merged into the weights.
    ///
    /// # Errors
    /// [`Error::Option`] if the original model would take too much memory or time; other errors if one of the two fails to run.
    pub fn measure(source: &Path, adapter: Option<&Path>, target: &Path) -> Result<Self> {
        let options = EngineOptions {
            adapters: adapter.into_iter().map(PathBuf::from).collect(),
            ..EngineOptions::single()
        };
        let about = inspect(source, &options)?;
        if let Some(refusal) = about.memory_fit.refusal {
            return Err(Error::option(
                "quality",
                format!("the original does not fit into memory: {refusal}"),
            ));
        }
        if about.device == "cpu" && about.spec.parameters > MOST_ON_CPU {
            let message = "the original has more than 4 billion parameters, which takes minutes on a CPU";
            return Err(Error::option("quality", message));
        }
        let (tokens, before) = perplexity(source, &options)?;
        let (_, after) = perplexity(target, &EngineOptions::single())?;
        Ok(Self { tokens, before, after })
    }

    /// The relative rise of the perplexity.
    pub fn loss(&self) -> f64 {
        self.after / self.before - 1.0
    }
}

/// Returns the number of tokens of the text and the perplexity of all but the first.
fn perplexity(folder: &Path, options: &EngineOptions) -> Result<(usize, f64)> {
    let engine = Engine::start(folder, options, |_, _| {})?;
    let engine = if options.adapters.is_empty() { engine } else { engine.with_adapter(0)? };
    let mut ids = engine.folder().tokenizer.encode(TEXT, true)?;
    ids.truncate(TOKENS.min(engine.spec().context_length));
    let count = ids.len();
    let scoring = RequestOptions { task: Task::Score, ..RequestOptions::default() };
    let (mut sum, mut scored) = (0.0, 0_usize);
    for event in engine.submit(engine.request(ids, &scoring)?)? {
        match event {
            Event::Prompt(token) => {
                if let Some(logprob) = token.logprob {
                    sum += f64::from(logprob.logprob);
                    scored += 1;
                }
            }
            Event::Done(finished) => {
                if let FinishReason::Error(message) = finished.reason {
                    return Err(Error::EngineStopped(message));
                }
            }
            _ => {}
        }
    }
    Ok((count, (-sum / scored.max(1) as f64).exp()))
}
