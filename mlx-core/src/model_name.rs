//! The name of a model by the path of its folder.

use std::path::Path;

/// Returns the display name of the model: its name in its store, else the name of the folder, or of the GGUF file without its suffix.
pub(crate) fn display_name(path: &Path) -> String {
    if let Some(name) = mlx_hub::name_of(path).or_else(|| mlx_hub::gguf_name(path)) {
        return name;
    }
    let name = path.file_name().or_else(|| path.parent().and_then(Path::file_name));
    name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
