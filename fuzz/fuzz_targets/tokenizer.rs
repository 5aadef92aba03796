//! tokenizer.json and tokenizer_config.json: loads them, and converts a short text to tokens and back.
#![no_main]

use std::sync::LazyLock;

use chat_format::text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{fixtures, folder, halves, seeds, watch_panics, write};
use tempfile::TempDir;

const TEXT: &str = "Hello, wörld!\n 漢字 <|im_start|>\u{1F600}\u{0} 123";

static FOLDER: LazyLock<TempDir> = LazyLock::new(folder);
static TOKENIZERS: LazyLock<Documents> =
    LazyLock::new(|| Documents::new(fixtures("tokenizer.json").into_iter().chain(seeds("tokenizer"))));
static CONFIGS: LazyLock<Documents> = LazyLock::new(|| Documents::new(fixtures("tokenizer_config.json")));

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let (tokenizer, config) = halves(data);
    write(&FOLDER, "tokenizer.json", TOKENIZERS.text(tokenizer));
    write(&FOLDER, "tokenizer_config.json", CONFIGS.text(config));
    let Ok(tokenizer) = Tokenizer::load(FOLDER.path()) else { return };
    for special in [false, true] {
        let Ok(ids) = tokenizer.encode(TEXT, special) else { continue };
        assert!(special || tokenizer.min_tokens(TEXT) <= ids.len(), "more tokens were promised");
        let whole = tokenizer.decode(&ids, special);
        let mut detokenizer = tokenizer.detokenizer(special);
        let mut pieces: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        pieces.push_str(&detokenizer.finish());
        assert_eq!(whole, pieces, "streamed text is the decoded text");
    }
    let _ = tokenizer.encode_chat(TEXT);
    for id in [0, 1, 300, u32::MAX] {
        let _ = (tokenizer.decode(&[id, id], false), tokenizer.token_bytes(id), tokenizer.is_special(id));
    }
});
