//! Constraints on the generated text that follow from a request's tools.

use serde_json::Value;

use super::format::CallFormat;
use super::format::preamble::in_constraint;
use super::tool::{Tool, ToolChoice, Tools};
use super::tool_support::ToolSupport;
use crate::error::{Error, Result};
use crate::text::Tokenizer;
use crate::{ConstraintSpec, Grammar, Scope};

impl ToolSupport {
    /// Returns the constraint for calls of these tools. It requires at least one call if the choice does, and makes the
    /// arguments of strict tools follow their schemas. `is_single` allows at most one call. `answer` is the schema of
    /// an answer without calls.
    pub fn constraint(
        &self,
        tools: &Tools,
        choice: &ToolChoice,
        is_single: bool,
        answer: Option<&Value>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ConstraintSpec>> {
        let named =
            |names: &[String]| -> Vec<&Tool> { names.iter().filter_map(|name| tools.get(name)).collect() };
        let all: Vec<&Tool> = tools.list().iter().collect();
        let is_single = is_single || !self.is_parallel();
        let calls = self.calls();
        match choice {
            ToolChoice::Required => must_call(calls, &all, is_single, tokenizer).map(Some),
            ToolChoice::Named(name) => {
                must_call(calls, &named(std::slice::from_ref(name)), true, tokenizer).map(Some)
            }
            ToolChoice::Allowed { names, is_required: true } => {
                must_call(calls, &named(names), is_single, tokenizer).map(Some)
            }
            ToolChoice::Allowed { names, is_required: false } => {
                may_call(calls, &named(names), is_single, answer, tokenizer).map(Some)
            }
            ToolChoice::Auto if answer.is_some() || all.iter().any(|tool| tool.is_strict) => {
                may_call(calls, &all, is_single, answer, tokenizer).map(Some)
            }
            ToolChoice::Auto | ToolChoice::None => Ok(None),
        }
    }
}

fn must_call(
    format: &CallFormat,
    tools: &[&Tool],
    is_single: bool,
    tokenizer: &Tokenizer,
) -> Result<ConstraintSpec> {
    let text = format.grammar(tools, is_single, tokenizer).map_err(|why| refused(&why))?;
    Ok(ConstraintSpec { grammar: Grammar::Lark(text), scope: Scope::AfterThoughts })
}

/// Returns the constraint for optional calls. With a schema of the answer, the text is either such an answer or calls.
/// Otherwise it is free text with calls.
fn may_call(
    format: &CallFormat,
    tools: &[&Tool],
    is_single: bool,
    answer: Option<&Value>,
    tokenizer: &Tokenizer,
) -> Result<ConstraintSpec> {
    if let Some(schema) = answer {
        if format.is_on_channels() {
            return Err(Error::request("tools", "cannot be combined with an answer schema on this model"));
        }
        let calls = format.grammar(tools, is_single, tokenizer).map_err(|why| refused(&why))?;
        let calls = calls.replacen("start:", "calls_alone:", 1);
        let text = format!("start: calls_alone | answer_alone\nanswer_alone: %json {schema}\n{calls}");
        return Ok(ConstraintSpec { grammar: Grammar::Lark(text), scope: Scope::AfterThoughts });
    }
    let Some((trigger, text)) = format.triggered(tools, is_single, tokenizer).map_err(|why| refused(&why))?
    else {
        let message = "cannot be enforced while calls are optional: this model's calls have no marker; set tool_choice to required, \
                       or strict to false";
        return Err(Error::request("tools", message));
    };
    let scope = Scope::Triggered(vec![in_constraint(&trigger)]);
    Ok(ConstraintSpec { grammar: Grammar::Lark(text), scope })
}

fn refused(why: &str) -> Error {
    Error::request("tools", format!("contain a tool whose schema cannot be enforced: {why}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};
    use serde_json::json;

    use super::*;
    use crate::format::{Ids, Piece, WrittenCall};
    fn tokenizer() -> Tokenizer {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
        Tokenizer::load(&models.join("llama-f32")).expect("the fixture loads")
    }

    /// Returns the text from the first position that a grammar rejects; `None` if the grammar accepts the whole text.
    fn refused_at<'a>(text: &'a str, grammar: &str) -> Option<&'a str> {
        let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).expect("a factory");
        let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()));
        let mut matcher = Matcher::new(parser);
        let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
        let taken = matcher.try_consume_tokens(&bytes).expect("a valid grammar");
        let is_whole = taken == bytes.len() && matcher.is_accepting().expect("a valid grammar");
        (!is_whole).then(|| &text[..text.floor_char_boundary(taken)])
    }

    fn tools(is_strict: bool) -> Tools {
        let properties =
            json!({"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}});
        let parameters = json!({"type": "object", "properties": properties, "required": ["city"], "additionalProperties": false});
        let tool = |name: &str| {
            let function = json!({"name": name, "parameters": parameters, "strict": is_strict});
            Tool::read(json!({"type": "function", "function": function})).expect("a tool")
        };
        Tools::new(vec![tool("first"), tool("second")]).expect("names differ")
    }

    #[test]
    fn what_the_writer_writes_is_allowed() {
        let tokenizer = tokenizer();
        let object = |value: Value| mlx_json::Value::from(value).into_object().unwrap_or_default();
        let some: mlx_json::Map = object(json!({"city": "Brest 'a' <b>\nc", "exact": true}));
        let all = object(json!({"city": "x", "days": 3, "exact": false}));
        for format in CallFormat::all() {
            let is_parallel = !format.syntax().family.only_first && !format.is_on_channels();
            for is_strict in [true, false] {
                let tools = tools(is_strict);
                let listed: Vec<&Tool> = tools.list().iter().collect();
                let Ok(grammar) = format.grammar(&listed, !is_parallel, &tokenizer) else {
                    assert!(is_strict && format.name() == "minimax-m3", "{}", format.name());
                    continue;
                };
                // Without a schema, tags contain texts.
                let has_tags = grammar.contains("KEY") && !grammar.contains("%json");
                let some = if has_tags { object(json!({"city": "x"})) } else { some.clone() };
                let all = if has_tags { some.clone() } else { all.clone() };
                let ids = match format.ids() {
                    Ids::NameAndIndex => ["functions.first:0", "functions.second:1"],
                    _ => ["123456789", "abcdefghi"],
                };
                let calls = [
                    WrittenCall { id: ids[0], name: "first", arguments: &some },
                    WrittenCall { id: ids[1], name: "second", arguments: &all },
                ];
                let text = format.write(if is_parallel { &calls } else { &calls[..1] });
                let refused = refused_at(&text, &grammar);
                assert_eq!(refused, None, "{} {is_strict}: {text}\n{grammar}", format.name());
            }
        }
    }

    #[test]
    fn what_follows_the_marker_of_a_call_is_allowed() {
        let tokenizer = tokenizer();
        let tools = tools(true);
        let listed: Vec<&Tool> = tools.list().iter().collect();
        let arguments =
            mlx_json::Value::from(json!({"city": "x", "days": 3})).into_object().unwrap_or_default();
        for format in CallFormat::all() {
            let triggered = format.triggered(&listed, true, &tokenizer);
            let Ok(Some((trigger, grammar))) = triggered else {
                assert!(
                    ["llama-3", "minimax-m3"].contains(&format.name()),
                    "{}: {triggered:?}",
                    format.name()
                );
                continue;
            };
            let [Piece::Text(marker)] = trigger.as_slice() else { panic!("the fixture has no such token") };
            let id = if format.ids() == Ids::NameAndIndex { "functions.first:0" } else { "123456789" };
            let written = format.write(&[WrittenCall { id, name: "first", arguments: &arguments }]);
            let (_, rest) = written.split_once(marker.as_str()).expect("a call begins with its marker");
            assert_eq!(refused_at(rest, &grammar), None, "{}: {rest}\n{grammar}", format.name());
        }
    }

    #[test]
    fn what_a_grammar_of_tags_cannot_hold_is_refused_by_name() {
        let tokenizer = tokenizer();
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}});
        let function = json!({"name": "f", "parameters": schema, "strict": true});
        let tool = Tool::read(json!({"type": "function", "function": function})).expect("a tool");
        let tags = CallFormat::named("qwen3-coder").expect("a format");
        let why = tags.grammar(&[&tool], true, &tokenizer).expect_err("a pattern within a tag");
        assert!(why.contains("pattern") && why.contains("\"f\"") && why.contains("\"a\""), "{why}");
        let json = CallFormat::named("hermes").expect("a format");
        assert!(json.grammar(&[&tool], true, &tokenizer).is_ok());
    }
}
