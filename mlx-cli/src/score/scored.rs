//! A scored text: its tokens with log-probabilities, as JSON and as a table.

use mlx_core::engine::PromptToken;
use mlx_core::sampling::TokenLogprob;
use mlx_options::printable;
use serde_json::{Value, json};

use crate::generate::top_to_json;

/// A text with log probabilities for all tokens but the first.
pub(super) struct ScoredText {
    pub(super) tokens: Vec<PromptToken>,
    /// The number of windows.
    pub(super) windows: usize,
}

impl ScoredText {
    /// Returns the scored text with control characters escaped for a terminal.
    pub(super) fn printable(mut self) -> Self {
        for token in &mut self.tokens {
            token.text = printable(&token.text).into_owned();
        }
        self
    }

    /// Returns the sum of the log probabilities.
    fn total(&self) -> f64 {
        self.logprobs().sum()
    }

    /// Returns `exp(-total / count)` over the tokens with a log probability; `None` for a text of one token.
    fn perplexity(&self) -> Option<f64> {
        let count = self.logprobs().count();
        (count > 0).then(|| (-self.total() / count as f64).exp())
    }

    /// Returns the log probabilities of all tokens but the first.
    fn logprobs(&self) -> impl Iterator<Item = f64> {
        self.tokens.iter().filter_map(|token| token.logprob.as_ref()).map(|it| f64::from(it.logprob))
    }

    /// The object that `--json` prints. Scripts rely on it: fields may be added, never changed.
    pub(super) fn json(&self) -> Value {
        let token = |PromptToken { id, text, logprob }: &PromptToken| {
            let empty = TokenLogprob::default();
            let top = top_to_json(&logprob.as_ref().unwrap_or(&empty).top);
            json!({ "id": id, "text": text, "logprob": logprob.as_ref().map(|it| it.logprob), "top": top })
        };
        json!({
            "tokens": self.tokens.iter().map(token).collect::<Vec<_>>(),
            "total_logprob": self.total(),
            "perplexity": self.perplexity(),
            "windows": self.windows,
        })
    }

    /// Returns one line per token, and the summary.
    pub(super) fn table(&self) -> String {
        let line = |PromptToken { id, text, logprob }: &PromptToken| {
            let logprob = logprob.as_ref().map_or_else(|| "-".to_owned(), |it| format!("{:.4}", it.logprob));
            format!("{logprob:>10} {id:>8}  {text:?}\n")
        };
        self.tokens.iter().map(line).chain([format!("{}\n", self.summary())]).collect()
    }

    /// Returns the total log probability and the perplexity on one line.
    pub(super) fn summary(&self) -> String {
        let perplexity = self.perplexity().map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
        format!("total {:.4}, perplexity {perplexity}", self.total())
    }
}
