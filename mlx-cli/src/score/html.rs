//! An HTML page: the text with backgrounds by log probability, and details on hover or tap. Invariant: text and tokens are escaped, and
//! nothing is loaded from elsewhere.

use std::fmt::Write;

use mlx_core::engine::{Engine, PromptToken};

use super::scored::ScoredText;

/// The log probability below which all tokens look the same.
const MIN_LOGPROB: f32 = -10.0;

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 1rem/1.7 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; }
span { background: rgb(228 74 40 / calc(var(--a) * 1%)); border-radius: 2px; }
span:hover, span:focus { outline: 1px solid currentcolor; }
span[title]:focus::after { content: attr(title); position: fixed; inset: auto 0 0 0; padding: 1rem; white-space: pre; background: Canvas; border-top: 1px solid; }
footer { font-size: .875rem; opacity: .8; }
";

/// Returns the page.
pub(super) fn page(scored: &ScoredText, title: &str, engine: &Engine) -> String {
    let (title, model) = (escaped(title), escaped(&engine.folder().name()));
    let mut text = String::new();
    for token in &scored.tokens {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "<span style=\"--a:{}\" title=\"{}\" tabindex=\"0\">{}</span>",
            strength(token),
            details(token, engine),
            escaped(&token.text)
        );
    }
    let legend: String = [1.0, 0.5, 0.1, 0.01, 0.001, 0.0001].map(sample).concat();
    let (count, summary) = (scored.tokens.len(), scored.summary());
    let windows =
        if scored.windows > 1 { format!(", read in {} windows", scored.windows) } else { String::new() };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}, scored by {model}</title>\n<style>\n{STYLE}</style>\n<h1>{title}</h1>\n<pre>{text}</pre>\n\
         <footer><p>How likely each token is: {legend}</p>\n<p>{model}: {count} tokens{windows}, {summary}</p></footer>\n</html>\n"
    )
}

/// Returns the opacity of the background, in percent.
fn strength(token: &PromptToken) -> u32 {
    token.logprob.as_ref().map_or(0, |it| percent(it.logprob))
}

fn percent(logprob: f32) -> u32 {
    ((logprob / MIN_LOGPROB).clamp(0.0, 1.0) * 70.0).round() as u32
}

fn sample(probability: f32) -> String {
    format!("<span style=\"--a:{}\">&nbsp;{} %&nbsp;</span> ", percent(probability.ln()), probability * 100.0)
}

/// Returns the tooltip: the token, its probability and the alternatives.
fn details(token: &PromptToken, engine: &Engine) -> String {
    let mut lines = vec![format!("{:?}, token {}", token.text, token.id)];
    match &token.logprob {
        None => lines.push("first token: no prediction".to_owned()),
        Some(logprob) => {
            lines.push(likelihood(logprob.logprob));
            let tokenizer = &engine.folder().tokenizer;
            let top = logprob.top.iter();
            lines.extend(top.map(|(id, logprob)| {
                let text = tokenizer.token_bytes(*id);
                format!("{:?}: {}", String::from_utf8_lossy(&text), likelihood(*logprob))
            }));
        }
    }
    escaped(&lines.join("\n")).replace('\n', "&#10;")
}

fn likelihood(logprob: f32) -> String {
    format!("{:.3} % ({logprob:.3})", logprob.exp() * 100.0)
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for symbol in text.chars() {
        match symbol {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(escaped("<b a=\"x\" b='y'> & ☃"), "&lt;b a=&quot;x&quot; b=&#39;y&#39;&gt; &amp; ☃");
    }

    #[test]
    fn the_less_likely_the_stronger() {
        assert_eq!([0.0, -5.0, -10.0, -90.0, f32::NEG_INFINITY].map(percent), [0, 35, 70, 70, 70]);
    }
}
