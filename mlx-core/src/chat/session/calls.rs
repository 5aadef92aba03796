//! Calls in a conversation: those that wait for a result, how an answer is read, and what it is held to. Invariant: pure.

use chat_format::{
    ConstraintSpec, Grammar, Message, OutputParser, Role, ToolCall, ToolChoice, ToolSupport, Tools,
};

use crate::engine::{Engine, RequestOptions};
use crate::error::{Error, Result};

/// The parser of the answer to this prompt.
pub(super) fn parser(
    engine: &Engine,
    tools: &Tools,
    choice: &ToolChoice,
    prompt: &str,
) -> Result<OutputParser> {
    let parser = OutputParser::new(&engine.folder().format, prompt);
    if !tools.are_shown(choice) {
        return Ok(parser);
    }
    Ok(support(engine)?.reading_calls(parser, tools.clone(), false, prompt))
}

/// The calls of the latest answer that have no result yet.
pub(super) fn open(messages: &[Message]) -> Vec<ToolCall> {
    let results = messages.iter().rev().take_while(|message| message.role == Role::Tool);
    let answered: Vec<_> = results.map(|result| &result.tool_call_id).collect();
    let answer = messages.iter().rev().find(|message| message.role != Role::Tool);
    let calls = answer.map_or(&[][..], |answer| answer.tool_calls.as_slice());
    calls.iter().filter(|call| !answered.contains(&&call.id)).cloned().collect()
}

/// Refuses tools that the model cannot call, or not in the demanded form.
pub(super) fn check(engine: &Engine, tools: &Tools, options: &RequestOptions) -> Result<()> {
    if tools.list().is_empty() {
        return Ok(());
    }
    let constraint = constraint(engine, tools, &ToolChoice::Auto, options)?;
    engine.request(vec![0], &RequestOptions { constraint, ..options.clone() })?;
    Ok(())
}

/// What an answer is held to: the constraint of the options, and the schemas of strict tools.
pub(super) fn constraint(
    engine: &Engine,
    tools: &Tools,
    choice: &ToolChoice,
    options: &RequestOptions,
) -> Result<Option<ConstraintSpec>> {
    let given = options.constraint.clone();
    if !tools.are_shown(choice) {
        return Ok(given);
    }
    let support = support(engine)?;
    let answer = match &given {
        None => None,
        Some(ConstraintSpec { grammar: Grammar::JsonSchema(schema), .. }) => Some(schema),
        Some(_) => {
            let message = "cannot be offered beside a constraint of the answer, but for a JSON schema";
            return Err(Error::request("tools", message));
        }
    };
    let of_calls = support.constraint(tools, choice, false, answer, &engine.folder().tokenizer)?;
    Ok(of_calls.or(given))
}

fn support(engine: &Engine) -> Result<&ToolSupport> {
    let support = engine.folder().tools.as_ref();
    support.map_err(|why| Error::request("tools", format!("cannot be used: {why}")))
}
