//! Token probabilities of the last answer: `/tokens` marks them in the text, `/why` shows the alternatives of one token.

use chat_format::text::Tokenizer;
use mlx_core::engine::TokenOutput;
use mlx_options::printable;

use super::style::styled;
use crate::bars;

/// Tokens listed below the text.
const MAX_LISTED: usize = 10;

/// Width of a bar in columns.
const BAR_WIDTH: usize = 10;

/// Returns the answer with its unlikely tokens in color (or with percentages if colors are off) and a list of the least likely.
pub(super) fn heat_map(tokens: &[TokenOutput], tokenizer: &Tokenizer, colors: bool) -> String {
    let text: String = tokens.iter().map(|token| highlighted(token, colors)).collect();
    let mut ranked: Vec<(usize, f32)> =
        tokens.iter().enumerate().filter_map(|(at, token)| Some((at, probability(token)?))).collect();
    ranked.sort_by(|one, other| one.1.total_cmp(&other.1));
    ranked.truncate(MAX_LISTED);
    let width = tokens.len().to_string().len();
    let line = |&(at, share): &(usize, f32)| {
        let token = &tokens[at];
        let other = alternatives(token).first().map_or_else(String::new, |(id, other)| {
            format!("  not {} {}", name(*id, tokenizer), percent(other.exp()).trim_start())
        });
        format!(
            "{:>width$}  {} {}  {}{other}",
            at + 1,
            percent(share),
            bars::share(f64::from(share), BAR_WIDTH),
            name(token.id, tokenizer)
        )
    };
    let lines: Vec<String> = ranked.iter().map(line).collect();
    format!(
        "{}\n\nleast likely:\n{}\n/why N shows more of a token, /branch N answers again from it",
        text.trim_end(),
        lines.join("\n")
    )
}

/// Returns the candidates for one token, the likeliest first.
pub(super) fn alternatives_text(token: &TokenOutput, tokenizer: &Tokenizer) -> String {
    let drawn = probability(token).map(|share| (token.id, share));
    let rest = alternatives(token).into_iter().map(|(id, logprob)| (id, logprob.exp()));
    let mut all: Vec<(u32, f32)> = drawn.into_iter().chain(rest).collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut number = 0;
    let line = |&(id, share): &(u32, f32)| {
        let mark = if id == token.id {
            "*".to_owned()
        } else {
            number += 1;
            number.to_string()
        };
        format!(
            "{mark:>2}  {} {}  {}",
            percent(share),
            bars::share(f64::from(share), BAR_WIDTH),
            name(id, tokenizer)
        )
    };
    let lines: Vec<String> = all.iter().map(line).collect();
    format!("{}\n* was drawn", lines.join("\n"))
}

/// Returns the alternatives of a token with their log probabilities, the likeliest first.
pub(super) fn alternatives(token: &TokenOutput) -> Vec<(u32, f32)> {
    let top = token.logprob.iter().flat_map(|logprob| &logprob.top);
    top.filter(|(id, _)| *id != token.id).copied().collect()
}

fn probability(token: &TokenOutput) -> Option<f32> {
    token.logprob.as_ref().map(|logprob| logprob.logprob.exp())
}

/// Returns a token's text; unlikely tokens are colored or bracketed.
fn highlighted(token: &TokenOutput, colors: bool) -> String {
    let text = printable(&token.text);
    let Some(share) = probability(token).filter(|share| *share < 0.5) else { return text.into_owned() };
    if !colors {
        return if share < 0.1 { format!("[{text}]") } else { text.into_owned() };
    }
    // Color line by line, so that no background reaches the edge.
    let parts: Vec<String> = text.split('\n').map(|part| styled(shade(share), part)).collect();
    parts.join("\n")
}

/// Returns the color of a probability; lower ones stand out more.
fn shade(share: f32) -> &'static str {
    match share {
        share if share >= 0.1 => "\x1b[32m",
        share if share >= 0.01 => "\x1b[33m",
        share if share >= 0.001 => "\x1b[31m",
        _ => "\x1b[97;41m",
    }
}

fn name(id: u32, tokenizer: &Tokenizer) -> String {
    match tokenizer.token(id).filter(|_| tokenizer.is_special(id)) {
        Some(token) => printable(&token).into_owned(),
        None => format!("{:?}", String::from_utf8_lossy(&tokenizer.token_bytes(id))),
    }
}

fn percent(share: f32) -> String {
    format!("{:5.1} %", 100.0 * share)
}
