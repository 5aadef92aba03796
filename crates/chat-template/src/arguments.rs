//! The arguments of calls, and their binding to Python's parameter names.

use super::fault::{Outcome, invalid};
use super::value::Value;

/// The arguments of a call.
#[derive(Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Arguments {
    /// Binds the arguments to parameter names by position or name. A `none` counts as absent.
    pub(super) fn bind<const N: usize>(self, names: [&str; N]) -> Outcome<[Option<Value>; N]> {
        if self.positional.len() > N {
            return Err(invalid(format!(
                "takes at most {N} arguments, but {} were given",
                self.positional.len()
            )));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let place = names.iter().position(|known| *known == name);
            let place = place.ok_or_else(|| invalid(format!("there is no argument \"{name}\"")))?;
            if bound[place].replace(value).is_some() {
                return Err(invalid(format!("the argument \"{name}\" is given twice")));
            }
        }
        Ok(bound.map(|value| value.filter(|value| !matches!(value, Value::None))))
    }

    /// Like [`Self::bind`], for parameters without defaults.
    pub(super) fn require<const N: usize>(self, names: [&str; N]) -> Outcome<[Value; N]> {
        let bound = self.bind(names)?;
        if let Some(place) = bound.iter().position(Option::is_none) {
            return Err(invalid(format!("the argument \"{}\" is missing", names[place])));
        }
        Ok(bound.map(|value| value.unwrap_or(Value::None)))
    }
}

/// Returns the given integer, or the default.
pub(super) fn integer(value: Option<&Value>, default: i64) -> Outcome<i64> {
    let Some(value) = value else { return Ok(default) };
    let number =
        value.as_int().ok_or_else(|| invalid(format!("expected an integer, found {}", value.type_name())))?;
    Ok(number.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

/// Returns the text of an argument.
pub(super) fn text(value: &Value) -> Outcome<&str> {
    value.as_text().ok_or_else(|| invalid(format!("expected a string, found {}", value.type_name())))
}

/// Returns true if a flag is given and true.
pub(super) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}
