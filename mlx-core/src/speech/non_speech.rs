//! Tokens that are never spoken, for models without a list of them: symbols that label speakers and sounds. The lists are those of the
//! reference implementation.

use chat_format::text::Tokenizer;

use crate::error::Result;

/// Suppressed if they are one token, with or without a space before them.
const SYMBOLS: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";

/// Suppressed by their first token. They share it.
const NOTES: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";

/// Suppressed only at the start of a word.
const AT_START: [&str; 2] = [" -", " '"];

/// Returns the tokens, in ascending order.
pub(super) fn non_speech_tokens(tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for text in AT_START {
        found.extend(tokenizer.encode(text, false)?.first());
    }
    let symbols = SYMBOLS.split(' ').map(|symbol| (symbol, false));
    for (symbol, is_note) in symbols.chain(NOTES.split(' ').map(|symbol| (symbol, true))) {
        for text in [symbol.to_owned(), format!(" {symbol}")] {
            let tokens = tokenizer.encode(&text, false)?;
            if is_note || tokens.len() == 1 {
                found.extend(tokens.first());
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
