//! Audio in requests: files in base64. They are decoded when the prompt is built.

use chat_format::Audio;
use mlx_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// The names of the supported formats. The format itself is detected from the bytes.
const FORMATS: [&str; 9] = ["wav", "mp3", "flac", "m4a", "mp4", "aac", "ogg", "opus", "webm"];

/// Takes `input_audio`, an object with the file and its format.
pub(crate) fn input_audio(fields: &mut Fields) -> Result<Audio, ApiError> {
    let path = fields.name("input_audio");
    let audio: Option<Value> = fields.value("input_audio");
    let audio = audio.ok_or_else(|| ApiError::field(path.as_str(), "is missing; give data and format"))?;
    let mut fields = Fields::nested(&path, audio)?;
    let format: Option<String> = fields.take("format")?;
    if format.is_some_and(|format| !FORMATS.contains(&format.as_str())) {
        let message = format!("must be one of {}", FORMATS.join(", "));
        return Err(ApiError::field(fields.name("format"), message));
    }
    let path = fields.name("data");
    let data: Option<String> = fields.take("data")?;
    let data = data.ok_or_else(|| ApiError::field(path.as_str(), "is missing; give the file in base64"))?;
    fields.end()?;
    Audio::from_base64(&data).map_err(|reason| ApiError::field(path, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn read(part: Value) -> Result<Audio, ApiError> {
        input_audio(&mut Fields::nested("content[0]", part).expect("an object"))
    }

    #[test]
    fn audio_is_a_file_in_base64() {
        for part in [
            json!({"input_audio": {"data": "AQIDBA==", "format": "wav"}}),
            json!({"input_audio": {"data": "AQID\nBA", "format": "ogg"}}),
            json!({"input_audio": {"data": "AQIDBA=="}}),
        ] {
            assert_eq!(read(part), Ok(Audio::file(vec![1, 2, 3, 4])));
        }
    }

    #[test]
    fn what_is_no_audio_is_refused_by_its_field() {
        for (part, name) in [
            (json!({}), "content[0].input_audio"),
            (json!({"input_audio": "AQID"}), "content[0].input_audio"),
            (json!({"input_audio": {"format": "wav"}}), "content[0].input_audio.data"),
            (json!({"input_audio": {"data": ""}}), "content[0].input_audio.data"),
            (json!({"input_audio": {"data": "A?", "format": "wav"}}), "content[0].input_audio.data"),
            (json!({"input_audio": {"data": "AQID", "format": "midi"}}), "content[0].input_audio.format"),
            (json!({"input_audio": {"data": "AQID", "url": "a"}}), "content[0].input_audio.url"),
        ] {
            assert_eq!(read(part).expect_err(name).param(), Some(name));
        }
    }
}
