//! What a rendering starts from: variables, as JSON and as values.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::TemplateInput;
use super::fault::Outcome;
use super::messages::MessageForm;
use super::meter::Meter;
use super::value::{Entries, Key, Value};

/// The variables of a chat, with its messages in this form.
pub(super) fn variables(
    special_tokens: &Map<String, Json>,
    input: &TemplateInput,
    form: MessageForm,
) -> Map<String, Json> {
    let list = |values: &Option<Vec<Json>>| values.clone().map_or(Json::Null, Json::Array);
    let mut variables = special_tokens.clone();
    variables.extend(input.extra.clone());
    variables.insert("messages".into(), input.messages.iter().map(|message| form.write(message)).collect());
    variables.insert("tools".into(), list(&input.tools));
    variables.insert("documents".into(), list(&input.documents));
    variables.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
    variables
}

/// The values of variables.
pub(super) fn values(variables: &Map<String, Json>, meter: &Meter) -> Outcome<Vec<(Arc<str>, Value)>> {
    let mut keys = HashMap::new();
    variables
        .iter()
        .map(|(name, value)| Ok((name.as_str().into(), convert(value, &mut keys, meter)?)))
        .collect()
}

/// Converts JSON; equal keys share their text.
fn convert<'a>(value: &'a Json, keys: &mut HashMap<&'a str, Key>, meter: &Meter) -> Outcome<Value> {
    Ok(match value {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number.into()),
            (None, Some(number)) => Value::Int(number.into()),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::text(meter, text.as_str())?,
        Json::Array(items) => {
            let items = items.iter().map(|item| convert(item, keys, meter)).collect::<Outcome<_>>()?;
            Value::list(meter, items)?
        }
        Json::Object(object) => {
            let mut entries = Entries::with_capacity(object.len());
            for (name, value) in object {
                let key = match keys.get(name.as_str()) {
                    Some(key) => key.clone(),
                    None => Key::new(&Value::text(meter, name.as_str())?)?,
                };
                keys.entry(name).or_insert_with(|| key.clone());
                entries.insert(key, convert(value, keys, meter)?);
            }
            Value::map(meter, entries)?
        }
    })
}
