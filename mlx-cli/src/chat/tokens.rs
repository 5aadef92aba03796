//! `/tokens`: the probability of each token of the last answer, and its alternatives.

use mlx_core::engine::TokenOutput;
use mlx_core::text::Tokenizer;
use mlx_options::printable;

use super::style::styled;

/// One line a token: its probability, its text, and the likeliest others with theirs.
pub(super) fn table(tokens: &[TokenOutput], tokenizer: &Tokenizer, colors: bool) -> String {
    let quoted = |id: u32| format!("{:?}", String::from_utf8_lossy(&tokenizer.token_bytes(id)));
    let special = |id: u32| tokenizer.token(id).filter(|_| tokenizer.is_special(id));
    let name = |id: u32| special(id).map_or_else(|| quoted(id), |token| printable(&token).into_owned());
    let line = |token: &TokenOutput| {
        let Some(logprob) = &token.logprob else { return name(token.id) };
        let share = percent(logprob.logprob);
        let others = logprob.top.iter().filter(|(id, _)| *id != token.id);
        let others: Vec<String> =
            others.map(|&(id, logprob)| format!("{} {}", name(id), percent(logprob).trim_start())).collect();
        let text = format!("{share} {:<16}", name(token.id));
        let text = if colors { styled(shade(logprob.logprob), &text) } else { text };
        format!("{text} {}", others.join("  "))
    };
    tokens.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn percent(logprob: f32) -> String {
    format!("{:5.1} %", 100.0 * logprob.exp())
}

/// Green for likely tokens, red for unlikely ones.
fn shade(logprob: f32) -> &'static str {
    match logprob.exp() {
        share if share >= 0.8 => "\x1b[32m",
        share if share >= 0.3 => "\x1b[33m",
        _ => "\x1b[31m",
    }
}
