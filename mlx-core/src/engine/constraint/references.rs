//! Rewrites the references of a schema for the grammar compiler, which splits a pointer at each `/` and decodes nothing.

use std::collections::HashSet;

use indexmap::IndexSet;
use mlx_json::pointer;
use serde_json::{Map, Value};

/// The key of the schemas that references name.
const DEFINITIONS: &str = "$defs";

/// The references of a schema, and their possible targets within it.
pub(super) struct References<'a> {
    root: &'a Value,
    /// The schemas, as JSON pointers.
    schemas: HashSet<String>,
    /// Every reference: its position, its text, and the pointer of its target.
    found: Vec<(String, String, Option<String>)>,
    /// Targets whose pointers the compiler cannot follow. The compiler gets copies of them.
    copied: IndexSet<String>,
    /// A prefix that no definition's name has.
    free_name: String,
}

impl<'a> References<'a> {
    pub(super) fn of(root: &'a Value) -> Self {
        let taken: Vec<&String> = root[DEFINITIONS].as_object().into_iter().flat_map(Map::keys).collect();
        let mut free_name = "copy".to_owned();
        while taken.iter().any(|name| name.starts_with(&free_name)) {
            free_name.push('_');
        }
        Self { root, schemas: HashSet::new(), found: Vec::new(), copied: IndexSet::new(), free_name }
    }

    /// Adds a possible target.
    pub(super) fn add_schema(&mut self, place: &str) {
        self.schemas.insert(place.to_owned());
    }

    /// Rewrites a `$ref` and records it.
    pub(super) fn rewrite(&mut self, reference: &mut String, place: &str) {
        // The compiler interprets `#/` as the root.
        let target = if reference == "#/" { Some("".into()) } else { pointer::target(reference, self.root) };
        let names = target.map(|target| pointer::names(&target).collect::<Vec<_>>());
        let target = names.as_ref().map(|names| names.iter().map(|name| pointer::escaped(name)));
        let target = target.map(|names| names.fold(String::new(), |all, name| format!("{all}/{name}")));
        let written = reference.clone();
        if let (Some(names), Some(target)) = (names, &target) {
            *reference = if names.iter().any(|name| name.contains('/')) {
                let (number, _) = self.copied.insert_full(target.clone());
                format!("#/{DEFINITIONS}/{}{number}", self.free_name)
            } else {
                names.iter().fold("#".to_owned(), |all, name| format!("{all}/{name}"))
            };
        }
        self.found.push((place.to_owned(), written, target));
    }

    /// Adds the copies to a schema after all its references were rewritten. The copies have at most `most` bytes together.
    pub(super) fn finish(self, schema: &mut Value, mut most: usize) -> Result<(), String> {
        let is_known = |target: &Option<String>| {
            target.as_ref().is_some_and(|target| self.schemas.contains(&format!("#{target}")))
        };
        if let Some((place, written, _)) = self.found.iter().find(|(_, _, target)| !is_known(target)) {
            return Err(format!(
                "refers to {written:?} at {place}, which is not a schema within it; use a reference such as #/$defs/NAME"
            ));
        }
        let mut copies = Map::new();
        for (number, target) in self.copied.iter().enumerate() {
            let copy = schema.pointer(target).cloned().unwrap_or_default();
            let bytes = copy.to_string().len();
            most = most
                .checked_sub(bytes)
                .ok_or("has too many references to large schemas with / in their names")?;
            copies.insert(format!("{}{number}", self.free_name), copy);
        }
        if !copies.is_empty() {
            let definitions = schema
                .as_object_mut()
                .map(|schema| schema.entry(DEFINITIONS).or_insert_with(|| Map::new().into()));
            let definitions = definitions.and_then(Value::as_object_mut);
            definitions.ok_or("has $defs that are not an object")?.extend(copies);
        }
        Ok(())
    }
}
