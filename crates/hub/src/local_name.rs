//! A model as the user names it: with the name of any store, and for GGUF files with a quantization.

use std::fmt;
use std::str::FromStr;

use super::gguf_files::has_gguf_extension;
use super::name::ModelName;
use crate::error::Error;

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

/// A model of the Hub, or one of its GGUF files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// The name of the repository.
    pub model: ModelName,
    /// The quantization or the name of a GGUF file, if given.
    pub file: Option<String>,
}

impl FromStr for HubName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, file) = split(text);
        // An error names the whole text.
        let model = name.parse().ok().filter(|_| file != Some("")).map_or_else(|| text.parse(), Ok)?;
        Ok(Self { model, file: file.map(str::to_owned) })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(out, "{}:{file}", self.model),
            None => write!(out, "{}", self.model),
        }
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
    // The page of a file on the Hub, as copied from a browser.
    let path = text.split(['?', '#']).next().unwrap_or_default();
    let is_page = path.contains("/blob/") || path.contains("/resolve/");
    let is_path = text.matches('/').count() == 2;
    match path.rsplit_once('/') {
        Some((name, file)) if has_gguf_extension(file.as_ref()) && (is_path || is_page) => {
            (if is_page { path } else { name }, Some(file))
        }
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
            ("https://huggingface.co/org/name:Q8_0", Some("org/name"), Some("Q8_0")),
            ("https://huggingface.co/org/name/blob/main/f.gguf", Some("org/name@main"), Some("f.gguf")),
            ("hf.co/org/name/resolve/v1/Q8_0/f.gguf?download=true", Some("org/name@v1"), Some("f.gguf")),
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
    #[test]
    fn a_file_of_the_hub_is_named_by_its_quantization() {
        for (text, expected) in [
            ("org/name", "org/name"),
            ("org/name:q8_0", "org/name:q8_0"),
            ("hf.co/org/name@v1:Q8_0", "org/name@v1:Q8_0"),
            ("org/name/f.gguf", "org/name:f.gguf"),
        ] {
            assert_eq!(text.parse::<HubName>().expect(text).to_string(), expected);
        }
        for wrong in
            ["", ":Q8_0", "org/name:", "org/name:a/b", "../f.gguf", "a/../f.gguf", "/org/name/f.gguf"]
        {
            let message = wrong.parse::<HubName>().expect_err(wrong).to_string();
            assert!(message.contains(&format!("{wrong:?}")), "{message}");
        }
    }
}
