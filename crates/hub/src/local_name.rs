//! A model as the user names it: with the name of any store, and for GGUF files with a quantization.

use std::fmt;

use super::name::ModelName;

/// The name of a model in any store.
#[derive(Debug)]
pub(crate) struct LocalName<'a> {
    /// The name as given. Ollama's names have this form.
    pub text: &'a str,
    /// The name on the Hub, if the text has its form. LM Studio uses the same names.
    pub hub: Option<ModelName>,
    /// The quantization or the name of a GGUF file: `ORG/NAME:QUANTIZATION` or `ORG/NAME/FILE.gguf`.
    pub file: Option<&'a str>,
}

impl<'a> LocalName<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let (name, file) = split(text);
        Self { text, hub: name.parse().ok(), file }
    }
}

impl fmt::Display for LocalName<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.hub, self.file) {
            (Some(name), Some(file)) => write!(out, "{name}:{file}"),
            (Some(name), None) => write!(out, "{name}"),
            (None, _) => write!(out, "{}", self.text),
        }
    }
}

/// Splits off the quantization or the file.
fn split(text: &str) -> (&str, Option<&str>) {
    // A colon before a slash belongs to the scheme or the port of an address.
    if let Some((name, file)) = text.rsplit_once(':').filter(|(_, file)| !file.contains('/')) {
        return (name, Some(file));
    }
    let is_path = text.matches('/').count() == 2 && text.to_ascii_lowercase().ends_with(".gguf");
    match text.rsplit_once('/') {
        Some((name, file)) if is_path => (name, Some(file)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_stores_are_split() {
        for (text, hub, file) in [
            ("org/name", Some("org/name"), None),
            ("org/name@main", Some("org/name@main"), None),
            ("org/name:Q4_K_M", Some("org/name"), Some("Q4_K_M")),
            ("org/name/file-Q4_0.gguf", Some("org/name"), Some("file-Q4_0.gguf")),
            ("hf.co/org/name:Q8_0", Some("org/name"), Some("Q8_0")),
            ("https://huggingface.co/org/name", Some("org/name"), None),
            ("http://127.0.0.1:8000/org/name", Some("org/name"), None),
            ("llama3.2", Some("llama3.2"), None),
            ("llama3.2:3b", Some("llama3.2"), Some("3b")),
            ("registry.ollama.ai/library/llama3.2:3b", None, Some("3b")),
            ("../org/name", None, None),
            ("../name:Q4_0", None, Some("Q4_0")),
            ("/org/name/file.gguf", None, None),
            (":", None, Some("")),
            ("", None, None),
        ] {
            let name = LocalName::new(text);
            let found = name.hub.as_ref().map(ToString::to_string);
            assert_eq!((found.as_deref(), name.file), (hub, file), "{text}");
        }
    }
}
