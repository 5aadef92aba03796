//! The sampling fields of a request. docs/sampling.md documents their meanings, ranges and defaults.

use std::collections::BTreeMap;

use mlx_core::sampling::{Kind, PARAMETERS, Parameter, SamplingOptions};
use mlx_json::Number;
use serde_json::{Value, json};
use utoipa::PartialSchema;
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};

use crate::error::ApiError;
use crate::field_value;
use crate::fields::{Fields, field_group};

/// The sampling fields: the table of parameters, and [`OtherFields`].
pub(crate) struct SamplingFields;

field_group! {
    /// The seed, and sampling fields that are not single numbers.
    pub(crate) struct OtherFields {
        /// The random seed. The same seed gives the same tokens. A negative seed is added to 2^64.
        #[schema(value_type = i64, example = 7)]
        pub(crate) seed: Number,
        /// Values to add to the logits of tokens, by token id.
        #[schema(example = json!({"5": -1.5}))]
        pub(crate) logit_bias: BTreeMap<String, f32>,
        /// Strings at which DRY's repeated sequences end.
        #[schema(example = json!(["\n"]))]
        pub(crate) dry_sequence_breakers: Vec<String>,
    }
}

/// Takes all sampling fields of a request.
pub(crate) fn read(fields: &mut Fields) -> Result<SamplingOptions, ApiError> {
    let other = OtherFields::read(fields)?;
    let mut options = SamplingOptions {
        dry_sequence_breakers: other.dry_sequence_breakers,
        logit_bias: bias(other.logit_bias.unwrap_or_default())?,
        seed: other.seed.map(|seed| integer_seed(&seed)).transpose()?,
        ..SamplingOptions::default()
    };
    for parameter in PARAMETERS {
        take(fields, parameter, parameter.name, &mut options)?;
    }
    Ok(options)
}

/// Takes the field `name` and sets it as the value of a parameter.
pub(crate) fn take(
    fields: &mut Fields,
    parameter: &Parameter,
    name: &str,
    options: &mut SamplingOptions,
) -> Result<(), ApiError> {
    let value = match parameter.kind {
        Kind::Float => fields.take::<f32>(name)?.map(f64::from),
        Kind::Count => fields.take::<u32>(name)?.map(f64::from),
        Kind::Whole => fields.take::<i64>(name)?.map(|number| number as f64),
    };
    parameter.set(options, value);
    Ok(())
}

impl PartialSchema for SamplingFields {
    fn schema() -> RefOr<Schema> {
        let mut object = Object::new();
        for parameter in PARAMETERS {
            object.properties.insert(parameter.name.to_owned(), property(parameter).into());
        }
        if let RefOr::T(Schema::Object(other)) = OtherFields::schema() {
            object.properties.extend(other.properties);
        }
        object.into()
    }
}

/// Returns the schema of a parameter's field.
pub(crate) fn property(parameter: &Parameter) -> Object {
    let (kind, format) = match parameter.kind {
        Kind::Float => (Type::Number, KnownFormat::Float),
        Kind::Count => (Type::Integer, KnownFormat::Int32),
        Kind::Whole => (Type::Integer, KnownFormat::Int64),
    };
    ObjectBuilder::new()
        .schema_type(kind)
        .format(Some(SchemaFormat::KnownFormat(format)))
        .description(Some(format!("{}.", parameter.help)))
        .minimum(Some(parameter.range.min()))
        .maximum(parameter.range.max())
        .examples([example(parameter)])
        .build()
}

/// Returns an example value of a parameter, for documentation and tests.
pub(crate) fn example(parameter: &Parameter) -> Value {
    match parameter.kind {
        Kind::Float => json!(parameter.example),
        Kind::Count | Kind::Whole => json!(parameter.example as i64),
    }
}

fn bias(given: BTreeMap<String, f32>) -> Result<Vec<(u32, f32)>, ApiError> {
    let entry = |(id, bias): (String, f32)| {
        let wrong = || ApiError::field("logit_bias", format!("has the key {id:?}; keys must be token ids"));
        id.parse().map(|id| (id, bias)).map_err(|_| wrong())
    };
    given.into_iter().map(entry).collect()
}

pub(super) fn integer_seed(seed: &Number) -> Result<u64, ApiError> {
    let integer = field_value::as_integer(seed);
    let seed_of = |integer: i128| {
        u64::try_from(integer).ok().or_else(|| Some(i64::try_from(integer).ok()?.cast_unsigned()))
    };
    integer
        .and_then(seed_of)
        .ok_or_else(|| ApiError::field("seed", format!("is {seed}; it must be a 64-bit whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_a_field_with_a_schema() {
        let RefOr::T(Schema::Object(schema)) = SamplingFields::schema() else { panic!("it is an object") };
        for parameter in PARAMETERS {
            let body = json!({parameter.name: example(parameter)}).to_string();
            let mut fields = Fields::parse(body.as_bytes()).expect("an object");
            let options = read(&mut fields).expect("valid");
            let value = parameter.get(&options).expect("it was given");
            assert!((value - parameter.example).abs() < 1e-6, "{}", parameter.name);
            fields.end().expect("it was taken");
            assert!(schema.properties.contains_key(parameter.name), "{}", parameter.name);
        }
    }
}
