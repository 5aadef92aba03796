//! Saved files: a block of a prompt cache that an engine restores, and a saved conversation. Damage must not change an answer.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use mlx_core::cache::{DiskOptions, list_saved, remove_saved};
use mlx_core::chat::ChatSession;
use mlx_core::engine::{Engine, EngineOptions, Event, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{folder, model, watch_panics, write};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

static FOLDER: LazyLock<TempDir> = LazyLock::new(folder);
static SAVED: LazyLock<Saved> = LazyLock::new(Saved::new);

/// A valid block, its text, and the model's answer to that text.
struct Saved {
    path: PathBuf,
    bytes: Vec<u8>,
    header: Documents,
    answer: Vec<u32>,
    engine: Engine,
    chat: Mutex<ChatSession>,
}

impl Saved {
    fn new() -> Self {
        let engine = start(None);
        let answer = ask(&engine);
        drop(engine);
        // Each tier of the model has a folder; only the exact tier has blocks.
        let tiers = fs::read_dir(FOLDER.path()).expect("the folder is there").flatten();
        let blocks = tiers.flat_map(|tier| fs::read_dir(tier.path()).expect("a folder").flatten());
        let path = blocks.map(|block| block.path()).next().expect("a block");
        let bytes = fs::read(&path).expect("a file");
        let header = Documents::new([&bytes[8..8 + header_length(&bytes)]]);
        // This engine caches almost nothing in memory, so it reads the disk every time.
        let engine = start(Some(1));
        let chat = ChatSession::new(engine.clone(), RequestOptions::default());
        Self { path, bytes, header, answer, engine, chat: Mutex::new(chat) }
    }

    /// Returns the valid file with another header and a matching length and checksum.
    fn with_header(&self, data: &[u8]) -> Vec<u8> {
        let header = self.header.text(data);
        let tensors = &self.bytes[8 + header_length(&self.bytes)..];
        let mut bytes = [&(header.len() as u64).to_le_bytes()[..], &header, tensors].concat();
        let name = b"\"checksum\":\"";
        let place = bytes.windows(name.len()).position(|window| window == name).map(|at| at + name.len());
        if let Some(place) = place.filter(|place| place + 32 <= bytes.len()) {
            let checksum = xxh3_128(&[&bytes[..place], &bytes[place + 32..]].concat());
            bytes[place..place + 32].copy_from_slice(format!("{checksum:032x}").as_bytes());
        }
        bytes
    }
}

fn header_length(bytes: &[u8]) -> usize {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize
}

fn start(prefix_cache: Option<u64>) -> Engine {
    let prompt_cache = Some(DiskOptions::new(FOLDER.path().to_owned()));
    let options = EngineOptions { exact: true, prefix_cache, prompt_cache, ..EngineOptions::default() };
    Engine::start(&model("llama-f32"), &options, |_, _| {}).expect("the fixture loads")
}

fn ask(engine: &Engine) -> Vec<u32> {
    let sampling = SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() };
    let options =
        RequestOptions { sampling, max_tokens: Some(2), ignore_eos: true, ..RequestOptions::default() };
    let request = engine.request((5..75).collect(), &options).expect("the request is valid");
    let generation = engine.submit(request).expect("the engine runs");
    let token = |event| if let Event::Token(token) = event { Some(token.id) } else { None };
    generation.filter_map(token).collect()
}

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Some((form, rest)) = data.split_first() else { return };
    let saved = &*SAVED;
    match form {
        b'c' => {
            write(&FOLDER, "chat.json", rest);
            let mut chat = saved.chat.lock().expect("a panic ends the run");
            if chat.load(&FOLDER.path().join("chat.json")).is_ok() {
                let _ = (chat.fill(), chat.undo());
            }
        }
        b'h' => {
            fs::write(&saved.path, saved.with_header(rest)).expect("it can be written");
            let _ = (list_saved(FOLDER.path()), ask(&saved.engine));
            assert!(saved.engine.is_ready(), "the engine has died");
        }
        b'f' => {
            let mut bytes = saved.bytes.clone();
            for flip in rest.as_chunks::<4>().0 {
                let place = u32::from_le_bytes([flip[0], flip[1], flip[2], 0]) as usize % bytes.len();
                bytes[place] ^= flip[3];
            }
            check_unchanged(saved, &bytes);
        }
        _ => check_unchanged(saved, data),
    }
});

/// Checks that a valid or damaged file does not change the answer. A forged file, with a matching checksum, could.
fn check_unchanged(saved: &Saved, bytes: &[u8]) {
    fs::write(&saved.path, bytes).expect("it can be written");
    assert_eq!(ask(&saved.engine), saved.answer, "a damaged file was used");
    if let Some(text) = list_saved(FOLDER.path()).expect("the folder can be read").first() {
        remove_saved(FOLDER.path(), &text.name).expect("the file can be removed");
    }
}
