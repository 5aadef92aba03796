//! Builds the grammar that is compiled for a constraint.

use chat_format::{Grammar, Preamble};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::regex_to_lark;
use serde_json::Value;

use super::{lark, schema};
use crate::error::{Error, Result};

/// The name of the constraint's own grammar within the whole grammar.
const ANSWER: &str = "answer";

/// Returns the grammar to compile: the constraint's own grammar after an optional preamble.
pub(super) fn whole(grammar: &Grammar, preamble: Option<&Preamble>) -> Result<TopLevelGrammar> {
    let mut own = match grammar {
        Grammar::JsonSchema(value) => {
            let schema = schema::enforceable(value).map_err(|why| Error::request("json_schema", why))?;
            GrammarWithLexer::from_json_schema(schema)
        }
        Grammar::Choices(choices) => {
            let texts: Vec<String> = choices.iter().map(|choice| string(choice)).collect();
            GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
        }
        Grammar::Regex(regex) => {
            GrammarWithLexer::from_lark(format!("start: /{}/", regex_to_lark(regex, "")))
        }
        Grammar::Lark(text) => GrammarWithLexer::from_lark(lark::enforceable(text)?),
    };
    own.name = Some(ANSWER.to_owned());
    let mut whole = TopLevelGrammar::from_grammar(own);
    if let Some(Preamble { start, rules }) = preamble {
        let text = format!("start: {start} @{ANSWER}\n{rules}");
        whole.grammars.insert(0, GrammarWithLexer::from_lark(text));
    }
    Ok(whole)
}

/// Returns a text as a Lark string, which has the syntax of JSON.
fn string(text: &str) -> String {
    Value::from(text).to_string()
}
