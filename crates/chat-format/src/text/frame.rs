//! The special tokens around a text.

use tokenizers::Tokenizer;

/// The special tokens before and after a text.
pub(super) type Frame = (Vec<u32>, Vec<u32>);

/// Returns the special tokens to add around a text. BOS and EOS are given as the setting of `tokenizer_config.json` and
/// the id. A side without a setting follows tokenizer.json. Returns `None` if neither has a setting and tokenizer.json
/// does more than add tokens on both sides.
pub(super) fn frame(
    inner: &Tokenizer,
    [bos, eos]: [(Option<bool>, Option<u32>); 2],
) -> tokenizers::Result<Option<Frame>> {
    let own = match (frame_of(inner, "a")?, frame_of(inner, "b a")?) {
        (one, other) if one == other => one,
        _ => None,
    };
    if own.is_none() && bos.0.is_none() && eos.0.is_none() {
        return Ok(None);
    }
    let (before, after) = own.unwrap_or_default();
    let side = |(enabled, id): (Option<bool>, Option<u32>), own: Vec<u32>| match enabled {
        Some(true) => id.into_iter().collect(),
        Some(false) => Vec::new(),
        None => own,
    };
    Ok(Some((side(bos, before), side(eos, after))))
}

/// Returns the special tokens that tokenizer.json adds around this text.
fn frame_of(inner: &Tokenizer, text: &str) -> tokenizers::Result<Option<Frame>> {
    let (plain, framed) = (inner.encode_fast(text, false)?, inner.encode_fast(text, true)?);
    let (plain, framed) = (plain.get_ids(), framed.get_ids());
    let start = framed.windows(plain.len().max(1)).position(|window| window == plain);
    Ok(start.map(|start| (framed[..start].to_vec(), framed[start + plain.len()..].to_vec())))
}
