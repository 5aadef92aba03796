//! Transcription over HTTP by a chat model that hears: the text of a chat in all formats, streams, and errors by name.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlx_tests::deadly::Deadly;
use mlx_tests::input_audio::{file, folder, noise};
use mlx_tests::server::Server;
use mlx_tests::{copied, golden_folder};
use serde_json::{Value, json};

use crate::http_audio::{PATH, deltas, parsed};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const MODEL: &str = "qwen3_asr-f32";

fn server() -> Server {
    Server::start_on(&SERVER, &folder(MODEL), &[])
}

/// Returns the text of a chat about a recording of at most three seconds.
fn heard(server: &Server, context: &str, bytes: &[u8]) -> String {
    let audio =
        json!({"type": "input_audio", "input_audio": {"data": STANDARD.encode(bytes), "format": "wav"}});
    let messages = json!([{"role": "system", "content": context}, {"role": "user", "content": [audio]}]);
    let chat = json!({"messages": messages, "temperature": 0, "max_tokens": 32 + 20 * 3});
    let answer = server.post("/v1/chat/completions", &chat);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0]["message"]["content"].as_str().expect("a text").trim().to_owned()
}

#[test]
fn a_transcript_is_the_text_of_a_chat_in_every_format() {
    let _turn = mlx_tests::device();
    let server = server();
    let clip = file("36960.wav");
    let of = |format: &str| server.form(PATH, Some(&clip), &[("response_format", format)]);
    let verbose = parsed(of("verbose_json"));
    let text = verbose["text"].as_str().expect("a text");
    assert_eq!(text, heard(&server, "", &clip));
    assert!(!text.is_empty());
    assert_eq!((&verbose["task"], &verbose["duration"]), (&json!("transcribe"), &json!(2.31)));
    let segments = verbose["segments"].as_array().expect("segments");
    assert_eq!(segments.len(), 1, "one for each chunk");
    assert_eq!((&segments[0]["start"], &segments[0]["end"]), (&json!(0.0), &json!(2.31)));
    assert!(segments[0]["avg_logprob"].as_f64().expect("a number") < 0.0);
    assert_eq!(parsed(of("json")), json!({"text": text, "usage": {"type": "duration", "seconds": 3}}));
    assert_eq!(of("text").1, format!("{text}\n"));
    assert!(of("srt").1.starts_with("1\n00:00:00,000 --> 00:00:02,310\n"));
    assert!(of("vtt").1.starts_with("WEBVTT\n\n00:00.000 --> 00:02.310\n"));
    let named = parsed(server.form(PATH, Some(&clip), &[("prompt", "Ada, Grace")]));
    assert_eq!(named["text"], json!(heard(&server, "Ada, Grace", &clip)));
    let german = parsed(server.form(
        PATH,
        Some(&clip),
        &[("language", "German"), ("response_format", "verbose_json")],
    ));
    assert_eq!(german["language"], "german");
    let models = server.get("/v1/models").body;
    assert_eq!(
        models["data"][0]["capabilities"].as_array().map(|all| all.contains(&json!("transcription"))),
        Some(true),
        "{models}"
    );
}

#[test]
fn a_stream_has_the_text_token_by_token() {
    let _turn = mlx_tests::device();
    let server = server();
    let audio = noise(60_000, 5);
    let whole = parsed(server.form(PATH, Some(audio.bytes()), &[]))["text"].clone();
    let (status, stream) = server.form(PATH, Some(audio.bytes()), &[("stream", "true")]);
    assert_eq!(status, 200, "{stream}");
    let deltas = deltas(&stream, &whole);
    assert!(deltas.len() > 20, "{} deltas", deltas.len());
    assert_eq!(json!(deltas.concat()), whole);
}

#[test]
fn what_the_model_lacks_is_an_error_by_name() {
    let _turn = mlx_tests::device();
    let server = server();
    let clip = file("16000.wav");
    let words = [("timestamp_granularities[]", "word"), ("response_format", "verbose_json")];
    for (path, parts, field, message) in [
        ("/v1/audio/translations", &[][..], "model", "does not translate"),
        (PATH, &words[..], "timestamp_granularities", "use a Whisper model"),
        (PATH, &[("language", "welsh")], "language", "it knows Arabic, Cantonese"),
        (PATH, &[("prompt", "<|audio_pad|>")], "prompt", "2 placeholders"),
    ] {
        let (status, text) = server.form(path, Some(&clip), parts);
        let body: Value = serde_json::from_str(&text).expect("json");
        assert_eq!((status, &body["error"]["param"]), (400, &json!(field)), "{text}");
        assert!(text.contains(message), "{text}");
    }
    for bytes in [&clip[..clip.len() / 2], b"no audio"] {
        let (status, text) = server.form(PATH, Some(bytes), &[]);
        assert!(status == 400 && text.contains("\"param\":\"file\""), "{text}");
    }
    parsed(server.form(PATH, Some(&clip), &[]));
    let gemma = golden_folder().join("input_audio/gemma4_unified-f32");
    let (status, text) = Server::start_on(&SERVER, &gemma, &[]).form(PATH, Some(&clip), &[]);
    assert!(status == 400 && text.contains("use Whisper or Qwen3-ASR"), "{text}");
}

/// Only the current chunk is computed again.
#[test]
fn a_transcript_survives_the_death_of_its_engine() {
    let deadly = Deadly::start_on(SERVER[0], copied(&folder(MODEL)), &[]);
    let audio = noise(60_000, 7);
    let expected = parsed(deadly.server.form(PATH, Some(audio.bytes()), &[]));
    let found = std::thread::scope(|scope| {
        let found = scope.spawn(|| deadly.server.form(PATH, Some(audio.bytes()), &[]));
        deadly.wait_until("it runs", || deadly.server.figure("mlx_requests_running") == 1);
        deadly.signal("KILL");
        found.join().expect("an answer")
    });
    assert_eq!(parsed(found), expected, "{}", deadly.server.log());
}
