//! The result of a call: texts, structured JSON and pictures, within limits.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use crate::clipped::clipped;

/// The maximum length of the text of a result, in bytes. The middle of a longer text is left out.
const MAX_TEXT_LEN: usize = 64 << 10;
/// The maximum number of pictures of a result.
const MAX_PICTURES: usize = 8;

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The texts and pictures, in order. Adjacent texts are one part, and there is at least one part.
    pub parts: Vec<Part>,
    /// True if the server reports a failure.
    pub is_error: bool,
}

/// A part of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// The bytes of an image file.
    Picture(Vec<u8>),
}

impl Output {
    /// Returns the texts, with a line for each picture.
    pub fn text(&self) -> String {
        let line = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Picture(bytes) => format!("[a picture of {} bytes]", bytes.len()),
        };
        self.parts.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Parts under construction.
#[derive(Default)]
struct Parts(Vec<Part>);

impl Parts {
    fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Part::Text(last)) => {
                if !last.is_empty() && !last.ends_with('\n') {
                    last.push('\n');
                }
                last.push_str(text);
            }
            _ => self.0.push(Part::Text(text.to_owned())),
        }
    }

    fn picture(&mut self, kind: &str, data: &str) {
        let count = self.0.iter().filter(|part| matches!(part, Part::Picture(_))).count();
        match STANDARD.decode(data) {
            Ok(bytes) if count < MAX_PICTURES && !bytes.is_empty() => self.0.push(Part::Picture(bytes)),
            Ok(bytes) if !bytes.is_empty() => {
                self.text(&format!("[a picture was left out: a result has at most {MAX_PICTURES}]"));
            }
            _ => self.text(&format!("[a picture of type {kind} was left out: its data is not base64]")),
        }
    }
}

/// Reads a result.
pub(crate) fn read(result: CallToolResult) -> Output {
    let mut parts = Parts::default();
    for block in result.content {
        match block {
            ContentBlock::Text(text) => parts.text(&text.text),
            ContentBlock::Image(image) => parts.picture(&image.mime_type, &image.data),
            ContentBlock::Audio(audio) => {
                parts.text(&format!("[audio of type {} was left out: it is not supported]", audio.mime_type));
            }
            ContentBlock::Resource(resource) => match resource.resource {
                ResourceContents::TextResourceContents { uri, text, .. } => {
                    parts.text(&format!("{uri}:\n{text}"));
                }
                ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => match mime_type {
                    Some(kind) if kind.starts_with("image/") => parts.picture(&kind, &blob),
                    kind => parts.text(&format!(
                        "[{uri}, data of type {}, was left out]",
                        kind.as_deref().unwrap_or("unknown")
                    )),
                },
                _ => parts.text("[a resource of an unknown kind was left out]"),
            },
            ContentBlock::ResourceLink(link) => parts.text(&format!("[{}: {}]", link.name, link.uri)),
            _ => parts.text("[content of an unknown kind was left out]"),
        }
    }
    // Servers repeat structured content as text, for clients of older versions.
    let has_text = parts.0.iter().any(|part| matches!(part, Part::Text(text) if !text.is_empty()));
    if let Some(value) = result.structured_content.filter(|_| !has_text) {
        parts.text(&value.to_string());
    }
    if parts.0.is_empty() {
        parts.text("[no output]");
    }
    Output { parts: within_limit(parts.0), is_error: result.is_error.unwrap_or(false) }
}

/// Shortens the texts to the maximum length of all of them.
fn within_limit(mut parts: Vec<Part>) -> Vec<Part> {
    let mut left = MAX_TEXT_LEN;
    for part in &mut parts {
        let Part::Text(text) = part else { continue };
        let len = text.len();
        if len > left {
            *text = clipped(text, left);
        }
        left = left.saturating_sub(len);
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn output(result: Value) -> Output {
        read(serde_json::from_value(result).expect("a result"))
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    #[test]
    fn content_becomes_text_and_pictures_in_order() {
        let result = output(json!({"isError": true, "content": [
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b"},
            {"type": "image", "data": "AAEC", "mimeType": "image/png"},
            {"type": "image", "data": "?", "mimeType": "image/png"},
            {"type": "audio", "data": "AAEC", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "resource", "resource": {"uri": "file:///y", "text": "y"}},
            {"type": "resource", "resource": {"uri": "file:///z", "blob": "AA=="}},
        ]}));
        assert!(result.is_error);
        let notes = "[a picture of type image/png was left out: its data is not base64]\n[audio of type audio/wav was left out: it is not \
                     supported]\n[x: file:///x]\nfile:///y:\ny\n[file:///z, data of type unknown, was left out]";
        assert_eq!(result.parts, [text("a\nb"), Part::Picture(vec![0, 1, 2]), text(notes)]);
    }

    #[test]
    fn structured_content_is_used_without_text_and_an_empty_result_says_so() {
        let both = json!({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"a": 1}});
        assert_eq!(output(both).parts, [text("{}")]);
        let only = json!({"content": [], "structuredContent": {"a": [1.5]}});
        assert_eq!(output(only).parts, [text("{\"a\":[1.5]}")]);
        assert_eq!(output(json!({"content": []})).parts, [text("[no output]")]);
    }

    #[test]
    fn a_long_text_loses_its_middle() {
        let long = "é".repeat(MAX_TEXT_LEN);
        let result = output(json!({"content": [{"type": "text", "text": long}]}));
        let Part::Text(short) = &result.parts[0] else { panic!("a text") };
        assert!(short.len() < MAX_TEXT_LEN + 100 && short.contains("bytes were left out here"));
    }
}
