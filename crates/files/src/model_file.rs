//! Reads the small files of a model. A GGUF file counts as the folder of the files that it replaces: `model.gguf/config.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use mlx_gguf::{Error, GgufFolder, Result, TokenizerParts};

/// Reads a file of a model; `None` if it does not exist. Fails if it is larger than `limit` bytes.
pub fn read_model_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.len() > limit => {
            let size = metadata.len();
            return Err(Error::file(
                path,
                format!("has {size} bytes, too many for this file; the limit is {limit}"),
            ));
        }
        Ok(_) => fs::read(path).map(Some),
        Err(error) if error.kind() == ErrorKind::NotADirectory => return of_gguf(path),
        Err(error) => Err(error),
    };
    match bytes {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map_err(|source| Error::io(path, source)),
    }
}

/// Returns the tokenizer of a GGUF file in parts; `None` for a folder.
pub fn tokenizer_parts(model: &Path) -> Result<Option<TokenizerParts>> {
    if mlx_gguf::is_gguf(model) { GgufFolder::open(model)?.tokenizer().map(Some) } else { Ok(None) }
}

/// Returns a file that a GGUF file replaces. Other files have none.
fn of_gguf(path: &Path) -> Result<Option<Vec<u8>>> {
    match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(file), Some(name)) if mlx_gguf::is_gguf(file) => GgufFolder::open(file)?.small_file(name),
        _ => Ok(None),
    }
}
