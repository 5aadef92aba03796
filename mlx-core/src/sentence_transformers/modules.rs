//! `modules.json`: the modules that a text passes through.

use std::path::Path;

use mlx_files::{bytes, expect_utf8_json};
use serde_json::Value;

use crate::error::{Error, Result};

/// The file name.
pub(super) const FILE: &str = "modules.json";

/// The maximum number of modules.
const MAX_MODULES: usize = 16;

/// The supported module types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Transformer,
    Pooling,
    Dense,
    Normalize,
    /// Changes nothing outside of training.
    Dropout,
}

/// A module and its folder, relative to the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) kind: Kind,
    pub(super) path: String,
}

/// Reads the modules of the model in `folder`: a transformer, its pooling, and any others. `None` without modules.json.
pub(super) fn read(folder: &Path) -> Result<Option<Vec<Module>>> {
    let path = folder.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = bytes(&path)?;
    expect_utf8_json(&path, &bytes)?;
    let fail = |message: String| Error::file(&path, message);
    let list: Value =
        serde_json::from_slice(&bytes).map_err(|error| fail(format!("is not valid JSON: {error}")))?;
    let list = list.as_array().filter(|list| (1..=MAX_MODULES).contains(&list.len()));
    let list = list.ok_or_else(|| fail(format!("must be a list of 1 to {MAX_MODULES} modules")))?;
    let modules = list.iter().enumerate().map(|(index, module)| read_one(&path, index, module));
    let modules = modules.collect::<Result<Vec<_>>>()?;
    let kinds: Vec<Kind> = modules.iter().map(|module| module.kind).collect();
    let after = kinds.iter().skip(2).all(|kind| !matches!(kind, Kind::Transformer | Kind::Pooling));
    if !kinds.starts_with(&[Kind::Transformer, Kind::Pooling]) || !after {
        let message = "must begin with one Transformer and one Pooling; other orders are not supported";
        return Err(fail(message.to_owned()));
    }
    Ok(Some(modules))
}

fn read_one(file: &Path, index: usize, module: &Value) -> Result<Module> {
    let text = |key: &str| {
        let value = module.get(key).and_then(Value::as_str);
        value.ok_or_else(|| Error::file(file, format!("[{index}].{key} must be a string")))
    };
    let (name, path) = (text("type")?, text("path")?);
    let own = name.strip_prefix("sentence_transformers.").and_then(|rest| rest.rsplit('.').next());
    let kind = match own {
        Some("Transformer") => Kind::Transformer,
        Some("Pooling") => Kind::Pooling,
        Some("Dense") => Kind::Dense,
        Some("Normalize") => Kind::Normalize,
        Some("Dropout") => Kind::Dropout,
        _ => {
            let message = format!(
                "[{index}].type is {name:?}; supported are Transformer, Pooling, Dense, Normalize and Dropout of sentence_transformers"
            );
            return Err(Error::file(file, message));
        }
    };
    // The file is untrusted: a path must not leave the model's folder.
    let is_plain = Path::new(path).file_name() == Some(path.as_ref());
    let fits = if kind == Kind::Transformer { path.is_empty() } else { is_plain || path.is_empty() };
    if !fits {
        let allowed = if kind == Kind::Transformer {
            "the model's own folder, \"\""
        } else {
            "a folder in the model's"
        };
        return Err(Error::file(file, format!("[{index}].path is {path:?}; it must be {allowed}")));
    }
    Ok(Module { kind, path: path.to_owned() })
}
