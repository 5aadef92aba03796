//! Transcription by Qwen3-ASR: the text of a chunk is the answer of a chat about it.

use chat_format::{Message, Part};
use mlx_audio::Recording;
use mlx_core::engine::{Engine, EngineOptions, Event, FinishReason, Finished, RequestOptions, TokenOutput};
use mlx_core::engine::{Timings, Usage};
use mlx_core::transcription::{Segment, SpeechAudio, Timed, Transcription, TranscriptionOptions, Translate};
use mlx_core::{Abilities, ModelFolder};
use mlx_tests::input_audio::{file, folder, noise, start};
use mlx_tests::pictures::{answer, exact, prompt};
use mlx_tests::{device, model_folder};

const MODEL: &str = "qwen3_asr-f32";
const RATE: usize = 16_000;

/// Begins to transcribe a recording.
fn begin(engine: &Engine, audio: SpeechAudio, options: TranscriptionOptions) -> Transcription {
    Transcription::new(engine, audio, options, &RequestOptions::default()).expect("it can be transcribed")
}

/// Transcribes the rest of a recording.
fn segments(mut transcription: Transcription) -> Vec<Segment> {
    let mut all = Vec::new();
    while let Some(more) = transcription.next_segments().expect("it runs") {
        all.extend(more);
    }
    assert!((transcription.position() - transcription.duration()).abs() < 1e-9, "all of it is transcribed");
    all
}

fn decoded(engine: &Engine, bytes: &[u8]) -> SpeechAudio {
    SpeechAudio::of_file(engine, bytes, &mut |_| Ok(())).expect("it is audio")
}

/// Returns the tokens of the greedy answer of a chat with this context and recording.
fn heard(engine: &Engine, context: &str, bytes: &[u8], limit: usize) -> Vec<u32> {
    let audio = chat_format::Audio::file(bytes.to_vec());
    let user = Message { parts: vec![Part::Audio(audio)], ..Message::user("") };
    answer(engine, &prompt(engine, vec![Message::system(context), user]), limit).ids()
}

#[test]
fn a_chunk_has_the_text_of_a_chat() {
    let _turn = device();
    for options in [EngineOptions::default(), exact()] {
        let engine = start(MODEL, &options);
        for (name, seconds) in [("1000.wav", 1), ("16000.wav", 1), ("36960.wav", 3)] {
            let bytes = file(name);
            for context in ["", "Names: Ada, Grace"] {
                let options = TranscriptionOptions {
                    prompt: Some(context.to_owned()),
                    ..TranscriptionOptions::default()
                };
                let found = segments(begin(&engine, decoded(&engine, &bytes), options));
                let expected = heard(&engine, context, &bytes, 32 + 20 * seconds);
                let [segment] = &found[..] else { panic!("{name}: {found:?}") };
                assert_eq!(segment.tokens, expected, "{name}, {context:?}");
                let text = engine.folder().tokenizer.decode(&expected, true);
                assert_eq!(segment.text, text.trim(), "{name}");
                assert!(segment.avg_logprob < 0.0 && segment.start.abs() < 1e-9);
            }
        }
    }
}

#[test]
fn long_recordings_are_transcribed_chunk_by_chunk() {
    let _turn = device();
    let engine = start(MODEL, &EngineOptions::default());
    let clip = noise(90_000, 3);
    let audio = decoded(&engine, clip.bytes());
    let Ok(samples) = mlx_audio::decode_samples(clip.bytes(), &mlx_audio::Limits::default(), &mut || Ok(()))
    else {
        panic!("it is audio")
    };
    let bytes = audio.bytes();
    let mut transcription = begin(&engine, audio, TranscriptionOptions::default());
    let (mut all, mut usage) = (Vec::new(), 0);
    while let Some(more) = transcription.next_segments().expect("it runs") {
        all.extend(more);
        assert!(transcription.usage().prompt_tokens > usage);
        usage = transcription.usage().prompt_tokens;
    }
    assert!(transcription.bytes() < bytes / 2, "samples are released");
    // Half of the context of 1024 tokens has 39 seconds of 13 rows.
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(
        all.windows(2).all(|pair| (pair[0].end - pair[1].start).abs() < 1e-9 && pair[0].id + 1 == pair[1].id)
    );
    assert!(all.iter().all(|segment| segment.end - segment.start <= 39.0));
    let last = &all[2];
    let rest = samples[(last.start * RATE as f64).round() as usize..].to_vec();
    let rest = segments(begin(&engine, Recording::of_samples(rest).into(), TranscriptionOptions::default()));
    assert_eq!(rest[0].tokens, last.tokens, "chunks do not depend on each other");
    let texts: String = all.iter().map(|segment| segment.text.as_str()).collect();
    assert_eq!(transcription.transcript(all).text(), texts.trim());
}

/// Gives these deltas to a transcription as the answer about its next chunk. Returns the deltas of the text.
fn answered(transcription: &mut Transcription, deltas: &[&str]) -> (Vec<String>, Vec<Segment>) {
    transcription.next_request().expect("it can run").expect("there is a chunk");
    let token = |delta: &&str| {
        let delta = (*delta).to_owned();
        Event::Token(TokenOutput { id: 1, text: delta.clone(), delta, logprob: None })
    };
    let mut texts = Vec::new();
    for event in deltas.iter().map(token) {
        texts.push(transcription.accept(event).expect("it continues").delta);
    }
    let end = transcription.accept(done(FinishReason::EndToken, "!")).expect("it ends");
    texts.push(end.delta);
    (texts, end.segments)
}

fn done(reason: FinishReason, delta: &str) -> Event {
    Event::Done(Finished {
        reason,
        delta: delta.to_owned(),
        usage: Usage::default(),
        timings: Timings::default(),
        exactness: mlx_core::engine::Exactness::Sampling,
    })
}

#[test]
fn answers_lose_their_language_and_are_joined() {
    let _turn = device();
    let engine = start(MODEL, &EngineOptions::default());
    let minutes = || SpeechAudio::from(Recording::of_samples(vec![0.0; 100 * RATE]));
    let mut transcription = begin(&engine, minutes(), TranscriptionOptions::default());
    let first = answered(&mut transcription, &["language", " English<asr", "_text>Good", " day "]);
    assert_eq!(first.0, ["", "", "Good", " day", " !"]);
    let second = answered(&mut transcription, &["language English<asr_text>Now"]);
    assert_eq!(second.0, [" Now", "!"]);
    assert_eq!(second.1[0].text, " Now!");
    let silence = transcription.accept(done(FinishReason::Cancelled, ""));
    assert!(silence.expect_err("it was cancelled").to_string().contains("cancelled"));
    let transcript = transcription.transcript([first.1, second.1].concat());
    assert_eq!((transcript.language.as_str(), transcript.text().as_str()), ("english", "Good day ! Now!"));
    let named = TranscriptionOptions { language: Some("de".to_owned()), ..TranscriptionOptions::default() };
    let mut transcription = begin(&engine, minutes(), named);
    assert_eq!(answered(&mut transcription, &["language", " "]).0, ["language", "", " !"]);
    assert_eq!(transcription.transcript(Vec::new()).language, "german");
}

#[test]
fn a_chosen_language_begins_the_answer() {
    let _turn = device();
    let engine = start(MODEL, &EngineOptions::default());
    let bytes = file("16000.wav");
    let of = |language: Option<&str>| {
        let options =
            TranscriptionOptions { language: language.map(str::to_owned), ..TranscriptionOptions::default() };
        let mut transcription = begin(&engine, decoded(&engine, &bytes), options);
        transcription.next_segments().expect("it runs");
        transcription.usage().prompt_tokens
    };
    let begun = engine.folder().tokenizer.encode("language German<asr_text>", false).expect("tokens").len();
    assert_eq!(of(Some("de")), of(None) + begun);
}

#[test]
fn options_that_the_model_lacks_are_refused_by_name() {
    let _turn = device();
    let abilities = ModelFolder::open(&folder(MODEL)).expect("a folder").abilities().expect("a config");
    assert_eq!(abilities, Abilities { chats: true, transcribes: true, ..Abilities::default() });
    let engine = start(MODEL, &EngineOptions::default());
    let refused = |engine: &Engine, options: TranscriptionOptions| {
        let audio = Recording::of_samples(vec![0.0; RATE]);
        let refused = Transcription::new(engine, audio, options, &RequestOptions::default());
        refused.err().expect("it is refused").to_string()
    };
    let default = TranscriptionOptions::default;
    let message = refused(&engine, TranscriptionOptions { language: Some("cy".to_owned()), ..default() });
    assert!(message.starts_with("language: is welsh") && message.contains("Arabic, Cantonese"), "{message}");
    let message = refused(&engine, TranscriptionOptions { translate: Translate::ToEnglish, ..default() });
    assert!(message.starts_with("model: transcribes but does not translate"), "{message}");
    let message = refused(&engine, TranscriptionOptions { timed: Timed::Words, ..default() });
    assert!(message.starts_with("timestamp_granularities: "), "{message}");
    let message =
        refused(&engine, TranscriptionOptions { prompt: Some("<|audio_pad|>".into()), ..default() });
    assert!(message.starts_with("prompt: ") && message.contains("2 placeholders"), "{message}");
    let long = begin(
        &engine,
        Recording::of_samples(vec![0.0; RATE]).into(),
        TranscriptionOptions { prompt: Some("word ".repeat(2000)), ..default() },
    );
    let message = { long }.next_request().expect_err("it does not fit").to_string();
    assert!(message.starts_with("prompt: has ") && message.contains("1024"), "{message}");
    let deaf = Engine::start(&model_folder("llama-f32"), &EngineOptions::default(), |_, _| {});
    let message = refused(&deaf.expect("it starts"), default());
    assert!(message.starts_with("model: recognizes no speech"), "{message}");
    let gemma = start("gemma4_unified-f32", &EngineOptions::default());
    assert!(refused(&gemma, default()).starts_with("model: recognizes no speech"));
}
