//! The pre-tokenizers that GGUF files name: patterns that split a text into words.

use serde_json::{Value, json};

mod patterns;

use patterns::{
    ANY_PUNCTUATION, ASIAN, BAILING, BEFORE_GROUPS_OF_THREE, BLOOM, CHINESE_OR_JAPANESE, CHINESE_OR_KOREAN,
    DEEPSEEK3, EXAONE_MOE, GPT2, GPT4O, GROUPS_OF_THREE_DIGITS, GROUPS_OF_THREE_NUMBERS, IMAGE_TOKEN, JAIS2,
    KIMI_K2, LATIN_PUNCTUATION, LATIN_WORD, LINE_BREAK, LINES, LLAMA3, MINICPM5, NUMBER, NUMBERS,
    PAIRS_OF_SPACES, PUNCTUATION, PUNCTUATION_OR_ACCENT, QWEN2, QWEN35, SEED_CODER, SENTINEL, SPACES_AT_END,
    SPARK, TEKKEN, THREE_DIGITS, UFAKZEKA, UP_TO_THREE_NUMBERS, YOUTU, YOUTU_LETTERS,
};

/// The steps before the merges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreTokenizer {
    /// Patterns. Each splits the parts of the previous one into matches and the texts between them.
    splits: &'static [&'static str],
    /// The spelling of words in the vocabulary.
    pub(super) spelling: Spelling,
    /// True if a word that is a token needs no merges.
    pub(super) ignore_merges: bool,
    /// True if encoding adds BOS unless the file has a setting.
    pub(super) add_bos: bool,
}

/// The spelling of words in a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// A letter per byte.
    Bytes,
    /// A letter per byte, after letters and their accents are composed.
    ComposedBytes,
    /// Unchanged, with SentencePiece's marks instead of spaces.
    Marks,
}

/// The pre-tokenizer of Gemma 4, which splits nothing.
pub(super) const GEMMA: PreTokenizer =
    PreTokenizer { spelling: Spelling::Marks, add_bos: true, ..split(&[]) };

/// Returns a pre-tokenizer that only splits.
const fn split(splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { splits, spelling: Spelling::Bytes, ignore_merges: false, add_bos: false }
}

/// Returns a pre-tokenizer that composes letters before it splits.
const fn compose(splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { spelling: Spelling::ComposedBytes, ..split(splits) }
}

/// Returns a pre-tokenizer for words that need no merges if they are tokens.
const fn whole_words(splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { ignore_merges: true, ..split(splits) }
}

impl PreTokenizer {
    /// Returns the pre-tokenizer with this `tokenizer.ggml.pre`.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "default" => split(&[PUNCTUATION, GPT2, NUMBERS, THREE_DIGITS]),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
            | "lfm2" | "jina-v5-nano" => Self { add_bos: true, ..whole_words(&[LLAMA3]) },
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => split(&[LLAMA3]),
            "jais-2" => split(&[JAIS2]),
            "tekken" => Self { add_bos: true, ..whole_words(&[TEKKEN]) },
            "minicpm5" => whole_words(&[UP_TO_THREE_NUMBERS, MINICPM5]),
            "granite-embed-multi-97m" => whole_words(&[GPT4O]),
            "youtu" => whole_words(&[YOUTU_LETTERS, YOUTU]),
            "deepseek-llm" => {
                split(&[LINE_BREAK, LATIN_WORD, LATIN_PUNCTUATION, SPACES_AT_END, CHINESE_OR_KOREAN, NUMBERS])
            }
            "deepseek-coder" => split(&[LINE_BREAK, r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_OR_KOREAN, NUMBER]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
                split(&[UP_TO_THREE_NUMBERS, CHINESE_OR_JAPANESE, DEEPSEEK3])
            }
            "spark2_5" => split(&[UP_TO_THREE_NUMBERS, CHINESE_OR_JAPANESE, SPARK, NUMBER]),
            "afmoe" => split(&[GROUPS_OF_THREE_NUMBERS, ASIAN, DEEPSEEK3]),
            "falcon" => split(&[PUNCTUATION_OR_ACCENT, GPT2, THREE_DIGITS]),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
            | "a.x-4.0" | "mellum" | "exaone4" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "jais"
            | "trillion" | "granite-docling" => split(&[GPT2]),
            "olmo" | "mpt" | "modern-bert" => compose(&[GPT2]),
            "starcoder" | "refact" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
                split(&[NUMBER, GPT2])
            }
            "command-r" => compose(&[NUMBER, GPT2]),
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" => {
                compose(&[QWEN2])
            }
            "solar-open" | "grok-2" => split(&[QWEN2]),
            "qwen35" => compose(&[QWEN35]),
            "ufakzeka" => split(&[UFAKZEKA]),
            "laguna" => split(&[LINES, QWEN2]),
            "poro-chat" | "bloom" | "gpt3-finnish" => split(&[BLOOM]),
            "viking" => split(&[BLOOM, NUMBER]),
            "chameleon" => Self {
                add_bos: true,
                ..split(&[SENTINEL, IMAGE_TOKEN, PAIRS_OF_SPACES, NUMBER, ANY_PUNCTUATION, GPT2])
            },
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => split(&[GPT4O]),
            "tiny_aya" | "cohere2moe" => compose(&[GROUPS_OF_THREE_DIGITS, GPT4O]),
            "kimi-k2" => split(&[KIMI_K2]),
            "superbpe" => split(&[NUMBERS, BEFORE_GROUPS_OF_THREE]),
            "bailingmoe" | "bailingmoe2" | "llada-moe" => split(&[BAILING]),
            "seed-coder" => split(&[SEED_CODER]),
            "exaone-moe" => split(&[EXAONE_MOE]),
            "gemma4" | "granite-embed-multi-311m" => GEMMA,
            "sarvam-moe" => Self { add_bos: false, ..GEMMA },
            _ => return None,
        })
    }

    /// Returns true if encoding adds BOS even if the file has another setting. Many files of Gemma 4 have it wrong.
    pub(super) fn forces_bos(&self) -> bool {
        self.spelling == Spelling::Marks && self.add_bos
    }

    /// Returns the `pre_tokenizer` of tokenizer.json for words in bytes.
    pub(super) fn json(&self) -> Value {
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let steps: Vec<Value> = self.splits.iter().map(split).chain([bytes]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

#[cfg(test)]
mod tests;
