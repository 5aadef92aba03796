//! Transcription over HTTP: forms, formats, streams and errors.

use mlx_audio::wav;
use mlx_tests::golden_folder;
use mlx_tests::server::Server;
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
pub(crate) const PATH: &str = "/v1/audio/transcriptions";

fn server(arguments: &[&str]) -> Server {
    let arguments = [&["--preload"], arguments].concat();
    Server::start_on(&SERVER, &golden_folder().join("speech/whisper-f32"), &arguments)
}

/// A tone of two seconds.
fn tone() -> Vec<u8> {
    let samples: Vec<f32> = (0..32_000).map(|place| 0.4 * (place as f32 * 0.2).sin()).collect();
    wav::of_samples(&samples)
}

pub(crate) fn parsed((status, text): (u16, String)) -> Value {
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

/// Returns the texts of the deltas of a stream, whose last event has this whole text.
pub(crate) fn deltas(stream: &str, whole: &Value) -> Vec<String> {
    let events: Vec<&str> = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let (last, events) = events.split_last().expect("events");
    assert_eq!(*last, "[DONE]");
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).expect("json")).collect();
    let (done, deltas) = events.split_last().expect("a last event");
    assert_eq!((&done["type"], &done["text"]), (&json!("transcript.text.done"), whole));
    assert!(deltas.iter().all(|delta| delta["type"] == "transcript.text.delta"));
    deltas.iter().map(|delta| delta["delta"].as_str().expect("a text").to_owned()).collect()
}

/// The parameters that make the text of the random model short and the same in each request.
const FIXED: [(&str, &str); 3] = [("language", "de"), ("temperature", "0.1"), ("seed", "7")];

#[test]
fn all_formats_have_the_same_text() {
    let _turn = mlx_tests::device();
    let server = server(&[]);
    let of = |format: &str| {
        server.form(PATH, Some(&tone()), &[&FIXED[..], &[("response_format", format)]].concat())
    };
    let verbose = parsed(of("verbose_json"));
    assert_eq!((&verbose["task"], &verbose["language"]), (&json!("transcribe"), &json!("german")));
    assert_eq!((&verbose["duration"], &verbose["usage"]["seconds"]), (&json!(2.0), &json!(2)));
    let segments = verbose["segments"].as_array().expect("segments");
    assert!(!segments.is_empty(), "{verbose}");
    let text = verbose["text"].as_str().expect("a text");
    assert_eq!(parsed(of("json")), json!({"text": text, "usage": {"type": "duration", "seconds": 2}}));
    assert_eq!(of("text").1, format!("{text}\n"));
    let (srt, vtt) = (of("srt").1, of("vtt").1);
    assert!(srt.starts_with("1\n00:00:") && srt.matches(" --> ").count() == segments.len(), "{srt}");
    assert!(vtt.starts_with("WEBVTT\n\n00:") && vtt.matches(" --> ").count() == segments.len(), "{vtt}");
    let timed = |granularities: &[&str]| {
        let parts = granularities.iter().map(|it| ("timestamp_granularities[]", *it));
        let parts: Vec<_> =
            FIXED.into_iter().chain([("response_format", "verbose_json")]).chain(parts).collect();
        parsed(server.form(PATH, Some(&tone()), &parts))
    };
    let words = timed(&["word"]);
    assert!(words["words"][0]["word"].is_string() && words["segments"].is_null(), "{words}");
    let both = timed(&["word", "segment"]);
    assert!(both["words"] == words["words"] && both["segments"].is_array(), "{both}");
    let translated =
        parsed(server.form("/v1/audio/translations", Some(&tone()), &[("response_format", "verbose_json")]));
    assert_eq!((&translated["task"], &translated["language"]), (&json!("translate"), &json!("english")));
}

#[test]
fn files_may_be_larger_than_bodies_of_text() {
    let _turn = mlx_tests::device();
    let server = server(&[]);
    // Two seconds of 16 channels at 384 kHz.
    let per_second = 2 * 16 * 384_000u32;
    let length = 2 * per_second;
    let mut file = vec![0; 44 + length as usize];
    file[..44].copy_from_slice(&wav::of_samples(&[])[..44]);
    for (place, number) in [(4, 36 + length), (24, 384_000), (28, per_second), (40, length)] {
        file[place..place + 4].copy_from_slice(&number.to_le_bytes());
    }
    (file[22], file[32]) = (16, 32);
    let (status, text) = server.form(PATH, Some(&file), &FIXED);
    assert_eq!(status, 200, "{text}");
    let small = Server::start_on(
        &SERVER,
        &golden_folder().join("speech/whisper-f32"),
        &["--max-body", "1MiB", "--body-memory", "8MiB"],
    );
    let (status, text) = small.form(PATH, Some(&file), &FIXED);
    assert!(status == 413 && text.contains("half of --body-memory"), "{status}: {text}");
}

#[test]
fn a_stream_has_deltas_and_the_whole_text() {
    let _turn = mlx_tests::device();
    let server = server(&[]);
    let text = parsed(server.form(PATH, Some(&tone()), &FIXED))["text"].clone();
    let (status, stream) = server.form(PATH, Some(&tone()), &[&FIXED[..], &[("stream", "true")]].concat());
    assert_eq!(status, 200, "{stream}");
    let deltas = deltas(&stream, &text);
    assert_eq!(deltas.concat().trim(), text.as_str().expect("a text"));
}

#[test]
fn invalid_requests_and_files_are_refused_by_name() {
    let _turn = mlx_tests::device();
    let server = server(&[]);
    let error = |file: Option<&[u8]>, parts: &[(&str, &str)]| {
        let (status, text) = server.form(PATH, file, parts);
        assert_eq!(status, 400, "{text}");
        let body: Value = serde_json::from_str(&text).expect("json");
        (body["error"]["param"].as_str().unwrap_or_default().to_owned(), text)
    };
    let file = tone();
    for (part, field) in [
        (("language", "klingon"), "language"),
        (("language", "fr"), "language"),
        (("response_format", "diarized_json"), "response_format"),
        (("timestamp_granularities[]", "word"), "timestamp_granularities"),
        (("timestamp_granularities[]", "sentence"), "timestamp_granularities"),
        (("include[]", "logprobs"), "include"),
        (("temperature", "9"), "temperature"),
    ] {
        assert_eq!(error(Some(&file), &[part]).0, field);
    }
    assert_eq!(error(None, &[("language", "de")]).0, "file");
    assert_eq!(error(Some(&file), &[("language", "de"), ("language", "en")]).0, "language");
    let broken: [&[u8]; 4] = [b"no audio", b"", &file[..file.len() / 2], &vec![0xff; 100_000]];
    for file in broken {
        let (field, text) = error(Some(file), &[]);
        assert_eq!(field, "file", "{text}");
    }
    let reply = server.post(PATH, &json!({"file": "talk.wav"}));
    assert_eq!(reply.status, 400, "JSON is no form");
    let chat = json!({"messages": [{"role": "user", "content": "Go"}]});
    let reply = server.post("/v1/chat/completions", &chat);
    assert_eq!((reply.status, &reply.body["error"]["param"]), (400, &json!("model")));
    assert!(reply.body["error"]["message"].as_str().expect("a text").contains(PATH), "{}", reply.body);
    let models = server.get("/v1/models");
    assert_eq!(models.status, 200);
    // The server still works.
    parsed(server.form(PATH, Some(&file), &FIXED));
}

#[test]
fn a_chat_model_refuses_audio() {
    let _turn = mlx_tests::device();
    let server = Server::start(&SERVER, &[]);
    let (status, text) = server.form(PATH, Some(&tone()), &[]);
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("Whisper or Qwen3-ASR") && text.contains("\"param\":\"model\""), "{text}");
}
