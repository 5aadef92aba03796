//! Constraints: any schema, regular expression or Lark grammar. A compiled constraint is followed for some steps along its masks.
#![no_main]

use std::sync::LazyLock;

use chat_format::Grammar;
use libfuzzer_sys::fuzz_target;
use mlx_core::ModelFolder;
use mlx_core::engine::Grammars;
use mlx_core::sampling::{TokenHistory, TokenMask};
use mlx_fuzz::{model, watch_panics};

const WIDTH: usize = 320;

static FOLDER: LazyLock<ModelFolder> =
    LazyLock::new(|| ModelFolder::open(&model("llama-f32")).expect("the fixture opens"));

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Some((&kind, text)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(text).into_owned();
    let grammar = match kind % 3 {
        0 => match serde_json::from_str(&text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
        1 => Grammar::Regex(text),
        _ => Grammar::Lark(text),
    };
    let mut history = TokenHistory::new(vec![1]);
    let grammars = Grammars::default();
    let Ok(mut follower) = grammars.follower(&grammar.into(), &FOLDER, WIDTH, &history, false) else { return };
    for step in 0..20_u32 {
        let mut mask = TokenMask::default();
        mask.allow_all(WIDTH);
        if follower.restrict(&history, &mut mask).is_err() {
            return;
        }
        let from = u32::from(kind) * 7 + step * 31;
        let token = (0..WIDTH as u32).map(|id| (id + from) % WIDTH as u32).find(|id| mask.allows(*id));
        match token {
            Some(token) if !FOLDER.end_tokens.contains(&token) => history.push(token),
            _ => return,
        }
    }
});
