//! Texts of special tokens with one meaning in all vocabularies.

/// Tokens that end an answer, as in llama.cpp. Few files name them all.
pub(super) const END_TOKENS: [&str; 28] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // These end the middle of a text, or a file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|file_sep|>",
    "<|fim_repo|>",
];
/// More tokens that end a file. Only the first one in the vocabulary counts.
pub(super) const REPOSITORY_TOKENS: [&str; 4] = ["<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
/// An end token in most vocabularies, and a tag of HTML in others.
pub(super) const END_OR_TAG: &str = "</s>";
/// Other tokens that are control tokens even if the file marks them as normal.
const OTHER_CONTROL: [&str; 21] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
];

/// Returns true if the token has a meaning in every vocabulary that contains it.
pub(super) fn looks_like_control(text: &str) -> bool {
    // Nearly all tokens are words, which need no search.
    text.starts_with(['<', '[', '_', '▁'])
        && (END_TOKENS.contains(&text) || REPOSITORY_TOKENS.contains(&text) || OTHER_CONTROL.contains(&text))
}
