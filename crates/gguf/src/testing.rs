//! Metadata and tensors by hand.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use crate::error::Result;
use crate::metadata::{List, Metadata, Value};
use crate::model::Stored;
use crate::placement::Placement;

/// A file without data: metadata, and names and shapes of tensors.
pub(crate) struct File {
    metadata: Metadata,
    tensors: Vec<(String, Vec<usize>)>,
    floats: Vec<f32>,
}

impl File {
    /// Returns a file with the keys of `architecture`, and with the tensors of one layer in addition to the embedding and its norm.
    pub(crate) fn of(architecture: &str, keys: &Json, layer: &[(&str, &[usize])]) -> Self {
        let mut values = BTreeMap::new();
        values.insert("general.architecture".to_owned(), Value::Text(architecture.to_owned()));
        for (key, json) in keys.as_object().expect("an object") {
            let is_full = key.contains("general.") || key.starts_with("prism.");
            let key = if is_full { key.clone() } else { format!("{architecture}.{key}") };
            values.insert(key, value(json));
        }
        let mut file =
            Self { metadata: Metadata::of(Path::new("m.gguf"), values), tensors: vec![], floats: vec![] };
        file.add("token_embd.weight", &[32, 8]);
        file.add("output_norm.weight", &[8]);
        for (name, shape) in layer {
            file.add(&format!("blk.0.{name}"), shape);
        }
        file
    }

    pub(crate) fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push((name.to_owned(), shape.to_vec()));
    }

    /// Adds a tensor with numbers.
    pub(crate) fn add_floats(&mut self, name: &str, floats: Vec<f32>) {
        self.add(name, &[floats.len()]);
        self.floats = floats;
    }

    fn stored(&self) -> Vec<Stored<'_>> {
        self.tensors.iter().map(|(name, shape)| Stored { name, shape }).collect()
    }

    pub(crate) fn config(&self) -> Result<Json> {
        crate::family::config(&self.metadata, &self.stored(), &|_| Ok(self.floats.clone()))
    }

    /// Returns the placements by the names of the stored tensors.
    pub(crate) fn placements(&self) -> Result<Vec<(String, Placement)>> {
        let placements = crate::family::placements(&self.metadata, &self.stored())?;
        Ok(placements.into_iter().map(|(index, it)| (self.tensors[index].0.clone(), it)).collect())
    }

    /// Returns the only placement of a stored tensor.
    pub(crate) fn placement(&self, name: &str) -> Placement {
        let all = self.placements().expect("known tensors");
        all.into_iter().find(|(stored, _)| stored == name).expect("a placement").1
    }
}

fn value(json: &Json) -> Value {
    match json {
        Json::Bool(flag) => Value::Bool(*flag),
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) if number.is_f64() => Value::Float(number.as_f64().expect("a float")),
        Json::Number(number) => Value::Integer(number.as_i64().expect("an integer").into()),
        Json::Array(list) if list.iter().all(Json::is_boolean) => {
            Value::List(List::Bools(list.iter().map(|flag| flag == &Json::Bool(true)).collect()))
        }
        Json::Array(list) => Value::List(List::Integers(
            list.iter().map(|number| number.as_i64().expect("integers")).collect(),
        )),
        Json::Null | Json::Object(_) => panic!("no value of metadata"),
    }
}

/// Returns the keys of a small decoder with one layer, and the additional ones.
pub(crate) fn keys(more: &Json) -> Json {
    let mut keys = serde_json::json!({
        "block_count": 1,
        "embedding_length": 8,
        "feed_forward_length": 16,
        "context_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": f64::from(1e-5_f32),
    });
    let all = keys.as_object_mut().expect("an object");
    all.extend(more.as_object().expect("an object").clone());
    keys
}
