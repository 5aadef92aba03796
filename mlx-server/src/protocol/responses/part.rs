//! Reads the parts of items: text, images and audio. Errors name the path.

use chat_format::{Image, Part};
use mlx_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::protocol::content::{PathNotation, joined};
use crate::protocol::image::{expect_detail, image_from_url};
use crate::protocol::input_audio::input_audio;

/// Reads text, images and audio. Adjacent text parts are joined by line breaks, so that a list of texts equals one string.
pub(super) fn content(content: Option<Value>, path: &str) -> Result<Vec<Part>, ApiError> {
    let parts = PathNotation::Brackets.content(content, path, Part::Text, read_part)?;
    match parts {
        Some(parts) if parts.is_empty() => Ok(vec![Part::Text(String::new())]),
        Some(parts) => Ok(joined(parts)),
        None => Err(ApiError::field(path, "is missing; give a string or a list of parts")),
    }
}

fn read_part(part: Value, path: &str) -> Result<Part, ApiError> {
    let mut fields = Fields::nested(path, part)?;
    let kind: Option<String> = fields.take("type")?;
    let part = match kind.as_deref() {
        Some("input_text" | "output_text" | "reasoning_text" | "summary_text" | "text") => {
            // Parts of an earlier answer that the server wrote next to the text.
            fields.take::<Vec<Value>>("annotations")?;
            fields.take::<Vec<Value>>("logprobs")?;
            Part::Text(required_string(&mut fields, "text")?)
        }
        Some("refusal") => Part::Text(required_string(&mut fields, "refusal")?),
        Some("input_image") => Part::Image(image(&mut fields)?),
        Some("input_audio") => Part::Audio(input_audio(&mut fields)?),
        Some(other) => {
            let message = format!("is {other:?}; only text, images and audio are supported");
            return Err(ApiError::unsupported(fields.name("type"), message));
        }
        None => return Err(ApiError::field(fields.name("type"), "is missing")),
    };
    fields.end()?;
    Ok(part)
}

fn image(fields: &mut Fields) -> Result<Image, ApiError> {
    expect_detail(fields)?;
    fields.reject(&[("file_id", "this server stores no files; send image_url with a data URL")])?;
    let path = fields.name("image_url");
    image_from_url(&required_string(fields, "image_url")?, &path)
}

/// Takes a string that must be given.
pub(super) fn required_string(fields: &mut Fields, field: &str) -> Result<String, ApiError> {
    let value = fields.take(field)?;
    value.ok_or_else(|| ApiError::field(fields.name(field), "is missing; give a string"))
}
