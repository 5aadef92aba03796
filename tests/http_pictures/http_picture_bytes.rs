//! The encoding of pictures in requests: base64 with line breaks, and truncated files.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};

use super::{file, start};

/// Returns a request of each API with one picture, and the JSON pointer to the answer's text.
fn requests(base64: &str) -> [(&'static str, Value, &'static str); 5] {
    let url = format!("data:image/png;base64,{base64}");
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let chat = user(json!([{"type": "image_url", "image_url": {"url": url}}]));
    let items = user(json!([{"type": "input_image", "image_url": url}]));
    let source = json!({"type": "base64", "media_type": "image/png", "data": base64});
    let blocks = user(json!([{"type": "image", "source": source}]));
    let with_images = json!([{"role": "user", "content": "?", "images": [base64]}]);
    let options = json!({"temperature": 0, "num_predict": 4});
    [
        (
            "/v1/chat/completions",
            json!({"messages": chat, "temperature": 0, "max_tokens": 4}),
            "/choices/0/message/content",
        ),
        (
            "/v1/responses",
            json!({"input": items, "temperature": 0, "max_output_tokens": 4}),
            "/output/0/content/0/text",
        ),
        ("/v1/messages", json!({"messages": blocks, "temperature": 0, "max_tokens": 4}), "/content/0/text"),
        (
            "/api/chat",
            json!({"messages": with_images, "stream": false, "options": options}),
            "/message/content",
        ),
        (
            "/api/generate",
            json!({"prompt": "?", "images": [base64], "stream": false, "options": options}),
            "/response",
        ),
    ]
}

/// Mail, `base64` and many libraries break lines at 76 columns.
#[test]
fn base64_may_be_broken_into_lines_in_every_api() {
    let server = start();
    let whole = STANDARD.encode(file("48x32"));
    let lines: Vec<&str> =
        (0..whole.len()).step_by(76).map(|at| &whole[at..whole.len().min(at + 76)]).collect();
    for broken in [lines.join("\r\n") + "\r\n", format!(" \t{}\n", lines.join("\n "))] {
        for ((path, request, text), (_, unbroken, _)) in requests(&broken).into_iter().zip(requests(&whole)) {
            let (answer, expected) = (server.post(path, &request), server.post(path, &unbroken));
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert!(answer.body.pointer(text).is_some_and(Value::is_string), "{path}: {}", answer.body);
            assert_eq!(answer.body.pointer(text), expected.body.pointer(text), "{path}");
        }
    }
}

#[test]
fn a_cut_file_is_refused_in_every_format_and_every_api() {
    let server = start();
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif] {
        let color = |x: u32, y: u32| Rgb([(x * 5) as u8, (y * 7) as u8, (x * y) as u8]);
        let picture = DynamicImage::from(RgbImage::from_fn(48, 32, color));
        let mut whole = Cursor::new(Vec::new());
        picture.write_to(&mut whole, format).expect("the encoder takes it");
        let whole = whole.into_inner();
        for percent in [50, 90] {
            let cut = &whole[..whole.len() * percent / 100];
            for (path, request, _) in requests(&STANDARD.encode(cut)) {
                let answer = server.post(path, &request);
                let text = answer.body.to_string();
                assert_eq!(answer.status, 400, "{format:?} cut at {percent} %, {path}: {text}");
                assert!(text.contains("cannot be decoded"), "{format:?}, {path}: {text}");
            }
        }
        let [(path, request, _), ..] = requests(&STANDARD.encode(&whole));
        assert_eq!(server.post(path, &request).status, 200, "{format:?}");
    }
}
