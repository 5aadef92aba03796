//! Images in requests: files in base64. They are decoded when the prompt is built.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chat_format::Image;
use serde_json::json;

use crate::error::ApiError;
use crate::fields::Fields;

/// Returns true for an http or https URL.
pub(crate) fn is_remote(url: &str) -> bool {
    has_scheme(url, "http") || has_scheme(url, "https")
}

fn has_scheme(url: &str, scheme: &str) -> bool {
    url.split_once(':').is_some_and(|(given, _)| given.eq_ignore_ascii_case(scheme))
}

/// Returns the image of a data URL in the field at `path`.
pub(crate) fn image_from_url(url: &str, path: &str) -> Result<Image, ApiError> {
    if is_remote(url) {
        let message = "is on another host, and this server fetches nothing: send the image as a data URL (data:image/png;base64,...), or start the server with --allow-image-urls HOST";
        return Err(ApiError::unsupported(path, message));
    }
    if !has_scheme(url, "data") {
        return Err(ApiError::field(path, "is not a data URL, such as data:image/png;base64,..."));
    }
    let (header, data) = url.split_once(',').unwrap_or((url, ""));
    let header = header["data:".len()..].to_ascii_lowercase();
    let mut parts = header.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default();
    if parts.next_back() != Some("base64") {
        return Err(ApiError::field(path, "is a data URL without ;base64 before its comma"));
    }
    expect_image(media_type, path)?;
    image_from_base64(data, path)
}

/// Returns an image as a data URL; `None` if it is not a file of a supported format.
pub(crate) fn data_url(image: &Image) -> Option<String> {
    let bytes = image.file_bytes()?;
    Some(format!("data:{};base64,{}", Image::media_type(bytes)?, STANDARD.encode(bytes)))
}

/// Rejects media types other than images. The image format itself is detected from the bytes.
pub(crate) fn expect_image(media_type: &str, path: &str) -> Result<(), ApiError> {
    if media_type.is_empty() || media_type.starts_with("image/") {
        return Ok(());
    }
    let mut name = media_type.to_owned();
    name.truncate(name.floor_char_boundary(40));
    Err(ApiError::field(path, format!("has the media type {name:?}; it must be an image")))
}

/// Returns the image with these base64 bytes, from the field at `path`.
pub(crate) fn image_from_base64(data: &str, path: &str) -> Result<Image, ApiError> {
    Image::from_base64(data).map_err(|reason| ApiError::field(path, reason))
}

/// Takes the detail level of an image. Images always have the size that the model uses, so a level that would shrink them is rejected.
pub(crate) fn expect_detail(fields: &mut Fields) -> Result<(), ApiError> {
    let reason =
        "images always have the size that the model uses; give auto, high or original, or leave it out";
    fields.expect_one_of("detail", &[json!("auto"), json!("high"), json!("original")], reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_url_holds_the_bytes_of_a_file() {
        let expected = Image::file(vec![1, 2, 3, 4]);
        for url in [
            "data:image/png;base64,AQIDBA==",
            "data:image/png;base64,AQIDBA",
            "DATA:IMAGE/JPEG;BASE64,AQIDBA==",
            "data:;base64,AQIDBA==",
            "data:image/png;charset=utf-8;base64,AQIDBA==",
            "data:image/png; base64,AQIDBA==",
            "data:image/png;base64,\r\nAQID\r\nBA==\r\n",
        ] {
            assert_eq!(image_from_url(url, "url"), Ok(expected.clone()), "{url}");
        }
    }

    #[test]
    fn what_holds_no_picture_is_refused_with_the_reason() {
        for (url, word) in [
            ("https://example.org/a.png", "fetches nothing"),
            ("HTTP://127.0.0.1/a.png", "fetches nothing"),
            ("file:///etc/passwd", "data URL"),
            ("a.png", "data URL"),
            ("", "data URL"),
            ("data:image/png,AQID", ";base64"),
            ("data:image/png", ";base64"),
            ("data:base64,AQID", ";base64"),
            ("data:text/plain;base64,AQID", "text/plain"),
            ("data:image/png;base64,", "empty"),
            ("data:image/png;base64,A?", "not base64"),
        ] {
            let error = image_from_url(url, "image_url.url").expect_err(url);
            assert_eq!((error.status().as_u16(), error.param()), (400, Some("image_url.url")), "{url}");
            assert!(error.response().error.message.contains(word), "{url}: {error:?}");
        }
    }
}
