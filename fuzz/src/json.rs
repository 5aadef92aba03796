//! Nearly valid JSON: valid documents with some of their values replaced.

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

/// Valid documents of one kind, and values to replace theirs.
pub struct Documents {
    all: Vec<Value>,
    /// Every key of the documents; `values` has every value.
    keys: Vec<String>,
    values: Vec<Value>,
}

impl Documents {
    /// Collects the texts that are valid JSON.
    pub fn new<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Self {
        let all: Vec<Value> =
            texts.into_iter().filter_map(|text| serde_json::from_slice(text.as_ref()).ok()).collect();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        all.iter().for_each(|document| collect(document, &mut keys, &mut values));
        keys.sort();
        keys.dedup();
        Self { all, keys, values }
    }

    /// Returns a document. Input that begins like an object is used unchanged; other input describes changes to one of the documents.
    pub fn text(&self, data: &[u8]) -> Vec<u8> {
        if data.starts_with(b"{") || self.all.is_empty() {
            return data.to_vec();
        }
        let mut bytes = Unstructured::new(data);
        // A change fails only at the end of the input. The changes before it count.
        let mut document = bytes.choose(&self.all).cloned().unwrap_or_default();
        while !bytes.is_empty() && self.change(&mut document, &mut bytes).is_ok() {}
        document.to_string().into_bytes()
    }

    /// Changes the value at a random position of the document.
    fn change(&self, value: &mut Value, bytes: &mut Unstructured) -> Result<()> {
        let action = bytes.int_in_range(0..=7)?;
        match value {
            Value::Object(map) if !map.is_empty() && action > 0 => {
                let index = bytes.choose_index(map.len())?;
                let key = map.keys().nth(index).cloned().unwrap_or_default();
                match action {
                    1 => drop(map.remove(&key)),
                    2 => drop(map.insert(bytes.choose(&self.keys)?.clone(), self.value(bytes)?)),
                    _ => self.change(&mut map[&key], bytes)?,
                }
            }
            Value::Array(list) if !list.is_empty() && action > 0 => {
                let index = bytes.choose_index(list.len())?;
                match action {
                    1 => drop(list.remove(index)),
                    2 => list.insert(index, self.value(bytes)?),
                    _ => self.change(&mut list[index], bytes)?,
                }
            }
            Value::Number(number) if action > 4 => {
                let (old, step) = (number.as_f64().unwrap_or_default(), bytes.arbitrary::<i8>()?);
                let moved = (old as i64).wrapping_add(i64::from(step));
                *value = if number.is_f64() { json!(old * f64::from(step)) } else { json!(moved) };
            }
            other => *other = self.value(bytes)?,
        }
        Ok(())
    }

    fn value(&self, bytes: &mut Unstructured) -> Result<Value> {
        Ok(match bytes.int_in_range(0..=11)? {
            0 => Value::Null,
            1 => bytes.arbitrary::<bool>()?.into(),
            2 => bytes.arbitrary::<u8>()?.into(),
            3 => bytes.arbitrary::<i64>()?.into(),
            4 => (1_u64 << bytes.int_in_range(0..=63)?).into(),
            5 => (bytes.arbitrary::<f64>()?).into(),
            6 => json!([]),
            7 => json!({}),
            8 => bytes.arbitrary::<&str>()?.into(),
            9 => json!(vec![bytes.choose(&self.values)?; bytes.int_in_range(0..=4)?]),
            _ => bytes.choose(&self.values)?.clone(),
        })
    }
}

fn collect(value: &Value, keys: &mut Vec<String>, values: &mut Vec<Value>) {
    values.push(value.clone());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                keys.push(key.clone());
                collect(value, keys, values);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, keys, values)),
        _ => {}
    }
}
