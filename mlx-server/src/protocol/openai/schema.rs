//! The schemas of requests: merges groups of fields into one object. Other fields are allowed; they are not used, and a response header lists
//! them.

use serde_json::Value;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, Object, ObjectBuilder, SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A field that supports only neutral values: its name, the values, and the reason.
pub(crate) type Fixed = (&'static str, Vec<Value>, &'static str);

/// A builder for the schema of an object.
pub(crate) struct Merged(Object);

/// Merges the properties of these objects and the fixed fields.
pub(crate) fn merged(groups: impl IntoIterator<Item = RefOr<Schema>>, fixed: &[Fixed]) -> Merged {
    let mut object = Object::new();
    for group in groups {
        if let RefOr::T(Schema::Object(group)) = group {
            object.properties.extend(group.properties);
        }
    }
    for (field, allowed, reason) in fixed {
        let property = ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .enum_values(Some(allowed.clone()))
            .description(Some(*reason));
        object.properties.insert((*field).to_owned(), RefOr::T(Schema::Object(property.build())));
    }
    Merged(object)
}

impl Merged {
    /// Adds a property that is a list of another documented object.
    pub(crate) fn list<T: ToSchema>(mut self, field: &str, description: &str) -> Self {
        let items = Ref::from_schema_name(T::name());
        let list =
            ArrayBuilder::new().items(RefOr::Ref(items)).min_items(Some(1)).description(Some(description));
        self.0.properties.insert(field.to_owned(), RefOr::T(Schema::Array(list.build())));
        self
    }

    /// Returns the finished object.
    pub(crate) fn build(self, required: &[&str]) -> RefOr<Schema> {
        let Self(mut object) = self;
        object.required = required.iter().map(ToString::to_string).collect();
        allow_null(&mut object);
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(true)));
        RefOr::T(Schema::Object(object))
    }
}

/// Allows null for every optional field, with the same meaning as an absent field.
fn allow_null(object: &mut Object) {
    let properties = std::mem::take(&mut object.properties).into_iter();
    let required = &object.required;
    let change = |(name, property): (String, RefOr<Schema>)| {
        let changed = if required.contains(&name) { property } else { or_null(property) };
        (name, changed)
    };
    object.properties = properties.map(change).collect();
}

fn or_null(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            if let Some(values) = object.enum_values.as_mut().filter(|values| !values.contains(&Value::Null))
            {
                values.push(Value::Null);
            }
            object.schema_type = with_null(object.schema_type);
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::Array(mut array)) => {
            array.schema_type = with_null(array.schema_type);
            RefOr::T(Schema::Array(array))
        }
        other => {
            let null = ObjectBuilder::new().schema_type(Type::Null);
            RefOr::T(Schema::AnyOf(AnyOfBuilder::new().item(other).item(null).build()))
        }
    }
}

fn with_null(schema_type: SchemaType) -> SchemaType {
    let types = match schema_type {
        SchemaType::AnyValue => return SchemaType::AnyValue,
        SchemaType::Type(one) => vec![one],
        SchemaType::Array(types) => types,
    };
    let others = types.into_iter().filter(|one| *one != Type::Null);
    SchemaType::Array(others.chain([Type::Null]).collect())
}

/// Adds an object to the document's components, with the objects that it refers to.
pub(crate) fn register<T: ToSchema + PartialSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    let mut schema = T::schema();
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        allow_null(object);
    }
    schemas.push((T::name().into_owned(), schema));
    T::schemas(schemas);
}
