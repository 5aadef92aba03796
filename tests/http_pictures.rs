//! Pictures over HTTP: each API gives the model the same prompt, and unusable pictures are errors with a reason.
//!
//! `MLX_TEST_SCALE=25` sends 10 000 damaged files, including decompression bombs.

mod http_picture_bytes;

use std::io::Cursor;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use mlx_tests::scale::{cases, is_full};
use mlx_tests::server::Server;
use mlx_tests::{Dice, golden_folder};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

fn folder() -> PathBuf {
    golden_folder().join("pictures/mistral3-f32")
}

fn start() -> Server {
    Server::start_on(&SERVER, &folder(), &[])
}

/// Returns the file of a fixture's picture.
fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name).with_extension("png")).expect("the fixture is there")
}

fn data_url(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(bytes))
}

fn image_url(bytes: &[u8]) -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url(bytes)}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn chat(content: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 12})
}

#[test]
fn chat_completions_see_what_transformers_sees() {
    let golden = std::fs::read_to_string(folder().join("cases.json")).expect("the fixture has cases");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let name = |picture: &Value| {
        let size = &golden["sizes"][picture.as_u64().expect("a place") as usize];
        format!("{}x{}", size[0], size[1])
    };
    let server = start();
    for case in golden["cases"].as_array().expect("cases") {
        let mut messages = case["messages"].clone();
        for message in messages.as_array_mut().expect("messages") {
            for part in message["content"].as_array_mut().into_iter().flatten() {
                if part["type"] == "image" {
                    *part = image_url(&file(&name(&part["picture"])));
                }
            }
        }
        let request = json!({
            "messages": messages, "temperature": 0, "max_tokens": 48, "ignore_eos": true, "return_token_ids": true,
        });
        let answer = server.post("/v1/chat/completions", &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.body["choices"][0]["token_ids"], case["tokens"]);
        let tokens = case["prompt_ids"].as_array().expect("ids").len();
        assert_eq!(answer.body["usage"]["prompt_tokens"], tokens);
        let rendered = server.post("/v1/chat/render", &json!({"messages": messages}));
        assert_eq!(rendered.body["tokens"], case["prompt_ids"], "{}", rendered.body);
    }
}

#[test]
fn every_api_gives_the_same_answer_about_a_picture() {
    let server = start();
    let (one, other) = (file("48x32"), file("41x30"));
    let answer = server.post(
        "/v1/chat/completions",
        &chat(&json!([image_url(&one), image_url(&other), text("What is this?")])),
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    let expected = &answer.body["choices"][0]["message"]["content"];
    let (input, media) = (answer.body["usage"]["prompt_tokens"].clone(), "image/png");
    let image = |bytes: &[u8]| json!({"type": "input_image", "image_url": data_url(bytes)});
    let content = json!([image(&one), image(&other), {"type": "input_text", "text": "What is this?"}]);
    let input_items = json!([{"role": "user", "content": content}]);
    let request = json!({"input": input_items, "temperature": 0, "max_output_tokens": 12});
    let responses = server.post("/v1/responses", &request);
    assert_eq!(&responses.body["output"][0]["content"][0]["text"], expected, "{}", responses.body);
    let more = json!({
        "previous_response_id": responses.body["id"], "input": "And now?", "temperature": 0, "max_output_tokens": 4,
    });
    let more = server.post("/v1/responses", &more);
    assert_eq!(more.status, 200, "the pictures are kept with the response: {}", more.body);
    assert!(more.body["usage"]["input_tokens"].as_u64() > input.as_u64());
    let image = |bytes: &[u8]| {
        let source = json!({"type": "base64", "media_type": media, "data": STANDARD.encode(bytes)});
        json!({"type": "image", "source": source})
    };
    let content = json!([image(&one), image(&other), text("What is this?")]);
    let messages = json!([{"role": "user", "content": content}]);
    let request = json!({"messages": messages, "temperature": 0, "max_tokens": 12});
    let answer = server.post("/v1/messages", &request);
    assert_eq!(&answer.body["content"][0]["text"], expected, "{}", answer.body);
    let counted = server.post("/v1/messages/count_tokens", &json!({"messages": messages}));
    assert_eq!(counted.body["input_tokens"], input);
    let (images, options) = (
        json!([STANDARD.encode(&one), STANDARD.encode(&other)]),
        json!({"temperature": 0, "num_predict": 12}),
    );
    let messages = json!([{"role": "user", "content": "What is this?", "images": images}]);
    let request = json!({"messages": messages, "stream": false, "options": options});
    let answer = server.post("/api/chat", &request);
    assert_eq!(&answer.body["message"]["content"], expected, "{}", answer.body);
    let request = json!({"prompt": "What is this?", "images": images, "stream": false, "options": options});
    let answer = server.post("/api/generate", &request);
    assert_eq!(&answer.body["response"], expected, "{}", answer.body);
    let shown = server.post("/api/show", &json!({"model": "tiny"}));
    assert!(shown.body["capabilities"].as_array().expect("a list").contains(&json!("vision")));
}

#[test]
fn the_result_of_a_tool_may_be_a_picture() {
    let server = start();
    let call = json!({"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let messages = |content: Value| {
        json!([
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "Yes.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": content},
        ])
    };
    let count = |content: Value| {
        let rendered = server.post("/v1/chat/render", &json!({"messages": messages(content)}));
        assert_eq!(rendered.status, 200, "{}", rendered.body);
        rendered.body["tokens"].as_array().expect("ids").len()
    };
    // Two rows of three merged patches, each with a break or end token.
    let without = count(json!([text("Here: ")]));
    assert_eq!(count(json!([text("Here: "), image_url(&file("48x32"))])), without + 2 * (3 + 1));
    let source = json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(file("48x32"))});
    let messages = |content: Value| {
        json!([
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [text("Yes."), {"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": content}]},
        ])
    };
    let count = |content: Value| {
        let counted = server.post("/v1/messages/count_tokens", &json!({"messages": messages(content)}));
        assert_eq!(counted.status, 200, "{}", counted.body);
        counted.body["input_tokens"].as_u64().expect("a number")
    };
    let without = count(json!([text("Here: ")]));
    let image = json!({"type": "image", "source": source});
    assert_eq!(count(json!([text("Here: "), image])), without + 2 * (3 + 1));
}

/// Returns a png whose header claims another size.
fn claiming(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = file("48x32");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let crc = crc32(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shift))
}

#[test]
fn what_cannot_be_seen_is_refused_with_the_reason() {
    let server = start();
    let whole = file("200x90");
    for (bytes, reason) in [
        (claiming(100_000, 100_000), "100000 x 100000 pixels"),
        (claiming(0, 10), "cannot be decoded"),
        (claiming(6_000, 6_000), "cannot be decoded"),
        (whole[..whole.len() / 2].to_vec(), "cannot be decoded"),
        (b"<svg></svg>".to_vec(), "not a png, jpeg, webp or gif file"),
        (vec![0; 10_000], "not a png, jpeg, webp or gif file"),
    ] {
        let answer = server
            .post("/v1/chat/completions", &chat(&json!([image_url(&file("48x32")), image_url(&bytes)])));
        let message = answer.body["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(answer.status, 400, "{reason}: {}", answer.body);
        assert!(message.contains(reason) && message.contains("number 2"), "{reason}: {message}");
    }
    for url in ["https://example.org/a.png", "http://127.0.0.1:9/a.png", "file:///etc/passwd"] {
        let image = json!({"type": "image_url", "image_url": {"url": url}});
        let answer = server.post("/v1/chat/completions", &chat(&json!([image, text("?")])));
        let param = answer.body["error"]["param"].as_str();
        assert_eq!((answer.status, param), (400, Some("messages[0].content[0].image_url.url")));
    }
    // Far more pictures than the context holds.
    let many: Vec<Value> = (0..60).map(|_| image_url(&whole)).collect();
    let answer = server.post("/v1/chat/completions", &chat(&json!(many)));
    assert_eq!((answer.status, &answer.body["error"]["code"]), (400, &json!("context_length_exceeded")));
    let good = server.post("/v1/chat/completions", &chat(&json!([image_url(&whole), text("?")])));
    assert_eq!(good.status, 200, "{}", good.body);
    let text_only = Server::start(&SERVER, &[]);
    let refused = text_only.post("/v1/chat/completions", &chat(&json!([image_url(&whole), text("?")])));
    let message = refused.body["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(refused.status, 400);
    assert!(message.contains("cannot be given to llama"), "{message}");
}

/// A model with a damaged tower answers text. The cause is in the log, and not in responses to clients.
#[test]
fn a_tower_that_cannot_be_used_is_the_fault_of_the_server() {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder()).expect("the fixture is there") {
        let entry = entry.expect("the fixture can be read");
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
    }
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("the fixture has one");
    let mut damaged: Value = serde_json::from_str(&text).expect("JSON");
    damaged["vision_config"]["intermediate_size"] = json!(81);
    std::fs::write(&config, damaged.to_string()).expect("it can be written");
    let server = Server::start_on(&SERVER, copy.path(), &[]);
    assert_eq!(server.post("/v1/chat/completions", &chat(&json!("What?"))).status, 200);
    let answer = server.post("/v1/chat/completions", &chat_of(&file("48x32")));
    assert_eq!((answer.status, &answer.body["error"]["code"]), (503, &json!("vision_unavailable")));
    let message = answer.body["error"]["message"].as_str().expect("a text");
    assert_eq!(message, "the model cannot take images now; see the server's log");
    let shown = server.post("/api/show", &json!({"model": "tiny"}));
    assert!(!shown.body["capabilities"].as_array().expect("a list").contains(&json!("vision")));
}

/// Clients that send damaged files concurrently.
const CLIENTS: u64 = 4;

/// Bytes to decode one picture with the most pixels: per pixel 8 as in the file, 4 with fewer bits, 3 over white.
const ONE_PICTURE: u64 = 40_000_000 * (8 + 4 + 3);

/// Returns noise files in every format: small ones, and some that fill the buffers of decoders.
fn seeds(dice: &mut Dice) -> Vec<Vec<u8>> {
    let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];
    let sizes = [(41, 30), (41, 30), (41, 30), (240, 180)];
    let mut noise = |format, (width, height)| {
        let picture = RgbImage::from_fn(width, height, |_, _| Rgb([0; 3].map(|_: u8| dice.below(256) as u8)));
        let mut file = Cursor::new(Vec::new());
        DynamicImage::from(picture).write_to(&mut file, format).expect("the encoder takes it");
        file.into_inner()
    };
    sizes.iter().flat_map(|size| formats.map(|format| noise(format, *size))).collect()
}

fn mutated(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    if dice.below(20) == 0 {
        return claiming(dice.below(7_000) as u32, dice.below(7_000) as u32);
    }
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(6) {
        // Half of the changes are in the header.
        let end = dice.pick(&[bytes.len(), bytes.len().min(64)]);
        let place = dice.below(end);
        match dice.below(4) {
            0 => bytes.truncate(place.max(1)),
            1 => bytes[place] ^= 1 << dice.below(8),
            2 => bytes[place] = dice.pick(&[0, 1, 127, 128, 255]),
            _ => bytes.insert(place, dice.below(256) as u8),
        }
    }
    bytes
}

/// Returns a short file with so many pixels that two of them at once take more memory than one of the largest size.
fn bomb() -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    DynamicImage::new_rgba16(5_000, 5_000)
        .write_to(&mut file, ImageFormat::Png)
        .expect("the encoder takes it");
    file.into_inner()
}

/// Sends damaged files and returns the number of rejected ones.
fn send_mutated(server: &Server, seed: u64, count: usize) -> usize {
    let mut dice = Dice::new(seed);
    let seeds = seeds(&mut dice);
    let is_refused = |round: usize| {
        let answer = server.post("/v1/chat/render", &chat_of(&mutated(&mut dice, &seeds)));
        assert!([200, 400].contains(&answer.status), "{seed}, {round}: {} {}", answer.status, answer.body);
        let message = answer.body["error"]["message"].as_str();
        let is_reason =
            |message: &str| message.contains("holds an invalid image, number 1 in the conversation");
        assert!(message.is_none_or(is_reason), "{seed}, {round}: {message:?}");
        answer.status == 400
    };
    (0..count).map(is_refused).filter(|it| *it).count()
}

/// Returns a request with a large gray picture in a short or very short file.
fn gray(compression: CompressionType) -> Value {
    let mut file = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut file, compression, FilterType::NoFilter);
    DynamicImage::new_luma8(4_000, 4_000).write_with_encoder(encoder).expect("the encoder takes it");
    chat_of(&file)
}

/// The server runs short work on all processors and long work on half of them, so three requests run concurrently on two
/// processors. Their pictures are decoded one at a time.
#[test]
fn pictures_of_many_pixels_are_decoded_one_after_the_other() {
    let (short, long) = (gray(CompressionType::Best), gray(CompressionType::Fast));
    let lengths = [&short, &long].map(|request| request.to_string().len());
    assert!(lengths[0] < 64 << 10 && lengths[1] > 64 << 10, "{lengths:?}");
    let server = start();
    let send = |request: &Value| assert_eq!(server.post("/v1/chat/render", request).status, 200);
    send(&chat_of(&file("41x30")));
    let before = server.peak_memory();
    send(&long);
    let one = before.and_then(|before| Some(server.peak_memory()? - before));
    std::thread::scope(|scope| {
        for request in [&short, &long, &short] {
            scope.spawn(|| send(request));
        }
    });
    let (Some(before), Some(one)) = (before, one) else { return };
    let several = server.peak_memory().expect("as before") - before;
    assert!(one > 60_000_000, "one takes {one} bytes");
    assert!(several < 2 * one, "one takes {one} bytes, three take {several}");
}

#[test]
#[expect(clippy::print_stderr, reason = "the memory is what a full run is made for")]
fn damaged_files_end_in_an_answer_or_an_error_and_hurt_no_other_request() {
    let server = start();
    let whole = file("41x30");
    assert_eq!(server.post("/v1/chat/render", &chat_of(&whole)).status, 200);
    let before = server.peak_memory();
    let count = cases(400);
    let bomb = is_full().then(bomb);
    let send = &|client| {
        let answer = bomb.as_ref().map(|bomb| server.post("/v1/chat/render", &chat_of(bomb)));
        assert!(answer.is_none_or(|answer| answer.status == 200));
        send_mutated(&server, client, count / CLIENTS as usize)
    };
    let refused: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || send(client))).collect();
        clients.into_iter().map(|client| client.join().expect("no client fails")).sum()
    });
    if let Some(before) = before {
        let peak = server.peak_memory().expect("as before");
        eprintln!(
            "{refused} of {count} files were refused; {} MB more memory at the peak",
            (peak - before) / 1_000_000
        );
        assert!(peak < before + ONE_PICTURE, "{before} bytes of memory before, {peak} at the peak");
    }
    assert!(refused > count / 2, "{refused} of {count} were refused");
    assert_eq!(server.post("/v1/chat/render", &chat_of(&whole)).status, 200);
}

fn chat_of(bytes: &[u8]) -> Value {
    json!({"messages": [{"role": "user", "content": [image_url(bytes), text("?")]}]})
}
