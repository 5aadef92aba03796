//! The field `reasoning` of a response's request.

use mlx_json::Value;
use serde_json::json;

use crate::chat_request::ThinkingRequest;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::protocol::openai::thinking::read_budget;

/// Reads the field. Also returns the object that the response repeats.
pub(super) fn read(
    reasoning: Option<Value>,
    request: &mut Fields,
) -> Result<(ThinkingRequest, Value), ApiError> {
    let Some(reasoning) = reasoning else {
        let echoed = Value::object([("effort", Value::Null), ("summary", Value::Null)]);
        return Ok((ThinkingRequest::default(), echoed));
    };
    let mut fields = Fields::nested("reasoning", reasoning)?;
    let effort: Option<String> = fields.take("effort")?;
    let max_tokens = fields.take::<i64>("max_tokens")?;
    let summary = fields.read_unused(|fields| fields.take::<String>("summary"))?;
    fields.read_unused(|fields| fields.take::<String>("generate_summary"))?;
    request.add_unused(fields.finish()?);
    let mut echoed = Value::from(json!({"effort": effort, "summary": summary}));
    if let Some(tokens) = max_tokens {
        echoed.insert("max_tokens", tokens.into());
    }
    let budget = max_tokens.map_or(Ok(None), |tokens| read_budget("reasoning.max_tokens", tokens))?;
    let thinking = ThinkingRequest::required_effort(effort.as_deref(), "reasoning.effort")?;
    Ok((ThinkingRequest { budget, gives_budget: max_tokens.is_some(), ..thinking }, echoed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value;

    #[test]
    fn a_budget_is_read_and_repeated() {
        let (thinking, echoed) =
            read(Some(value!({"max_tokens": 9})), &mut Fields::default()).expect("valid");
        assert_eq!(thinking.budget, Some(9));
        assert_eq!(echoed, json!({"effort": null, "summary": null, "max_tokens": 9}));
        let (unlimited, _) = read(Some(value!({"max_tokens": -1})), &mut Fields::default()).expect("valid");
        assert_eq!(unlimited.budget, None);
    }
}
