//! `mlx score`: how likely a model finds a text.

use mlx_core::engine::{EngineHandle, PromptToken, RequestOptions};
use mlx_core::sampling::TokenLogprob;
use serde_json::{Value, json};

use crate::answer::{self, Show};
use crate::args::ScoreArgs;
use crate::exit_code::Failure;
use crate::generate::top_to_json;
use crate::input;
use crate::interrupt::Interrupt;
use crate::terminal;

/// Runs the command.
pub(crate) fn run(args: &ScoreArgs) -> Result<(), Failure> {
    let text = match args.prompt_ids {
        Some(_) => String::new(),
        None => input::read_text(args.text.as_deref(), None, "--text")?,
    };
    let interrupt = Interrupt::install();
    let engine =
        EngineHandle::start(&args.model.folder()?, &args.model.engine_options()?, terminal::load_bar())?;
    let tokens = match &args.prompt_ids {
        Some(ids) => ids.clone(),
        None => engine.folder().tokenizer.encode(&text, true)?,
    };
    let options = RequestOptions {
        max_tokens: Some(0),
        prompt_logprobs: Some(args.logprobs.unwrap_or(0)),
        ..RequestOptions::default()
    };
    let request = engine.request(tokens, &options)?;
    let answer = answer::read(engine.submit(request)?, &interrupt, Show::Nothing)?;
    if let Some(failure) = answer.failure() {
        return Err(failure);
    }
    let score = Score::of(&answer.prompt);
    let output =
        if args.json { format!("{}\n", score.json(&answer.prompt)) } else { score.table(&answer.prompt) };
    terminal::show(&output)?;
    if args.model.verbose {
        terminal::note(&answer.timings());
    }
    Ok(())
}

/// The sum over a text.
struct Score {
    total: f64,
    /// `exp(-total / tokens that have a log-probability)`; none for a text of one token.
    perplexity: Option<f64>,
}

impl Score {
    fn of(tokens: &[PromptToken]) -> Self {
        let logprobs = || tokens.iter().filter_map(|token| token.logprob.as_ref());
        let (count, total) =
            (logprobs().count(), logprobs().fold(0.0, |sum, it| sum + f64::from(it.logprob)));
        Self { total, perplexity: (count > 0).then(|| (-total / count as f64).exp()) }
    }

    fn json(&self, tokens: &[PromptToken]) -> Value {
        let token = |PromptToken { id, text, logprob }: &PromptToken| {
            let empty = TokenLogprob::default();
            let top = top_to_json(&logprob.as_ref().unwrap_or(&empty).top);
            json!({ "id": id, "text": text, "logprob": logprob.as_ref().map(|it| it.logprob), "top": top })
        };
        json!({
            "tokens": tokens.iter().map(token).collect::<Vec<_>>(),
            "total_logprob": self.total,
            "perplexity": self.perplexity,
        })
    }

    fn table(&self, tokens: &[PromptToken]) -> String {
        let line = |PromptToken { id, text, logprob }: &PromptToken| {
            let logprob = logprob.as_ref().map_or_else(|| "-".to_owned(), |it| format!("{:.4}", it.logprob));
            format!("{logprob:>10} {id:>8}  {text:?}\n")
        };
        let perplexity = self.perplexity.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
        let total = self.total;
        tokens.iter().map(line).chain([format!("total {total:.4}, perplexity {perplexity}\n")]).collect()
    }
}
