//! The JSON files of a model folder, read by key.

/// A JSON object in a file. Its errors name the file and the key.
pub type Fields = mlx_files::Fields<crate::Error>;
