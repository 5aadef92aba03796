//! Tests of tokenizer.json: it encodes and decodes as the model does. Other tests use its small files.

use std::collections::BTreeMap;
use std::path::Path;

use tokenizers::Tokenizer;

use super::byte_pair::MERGES;
use super::model::{MODEL, PRE_TOKENIZER};
use super::*;
use crate::metadata::List;
use crate::metadata::Value as Stored;

/// Metadata of a small file.
pub(crate) struct File(BTreeMap<String, Stored>);

impl File {
    pub(crate) fn new(architecture: &str, model: &str) -> Self {
        Self(BTreeMap::new()).with("general.architecture", text(architecture)).with(MODEL, text(model))
    }

    pub(crate) fn with(mut self, key: &str, value: Stored) -> Self {
        self.0.insert(key.to_owned(), value);
        self
    }

    /// Adds tokens with their types and scores.
    pub(crate) fn tokens(self, tokens: &[(&str, i64, f64)]) -> Self {
        self.with("tokenizer.ggml.tokens", texts(tokens.iter().map(|token| token.0)))
            .with(
                "tokenizer.ggml.token_type",
                Stored::List(List::Integers(tokens.iter().map(|token| token.1).collect())),
            )
            .with(
                "tokenizer.ggml.scores",
                Stored::List(List::Floats(tokens.iter().map(|token| token.2).collect())),
            )
    }

    pub(crate) fn metadata(self) -> Metadata {
        Metadata::of(Path::new("model.gguf"), self.0)
    }

    fn tokenizer(self) -> Tokenizer {
        let json = tokenizer(&self.metadata()).expect("the file is valid").json();
        Tokenizer::from_bytes(json.to_string()).expect("the tokenizer is valid")
    }

    pub(crate) fn error(self) -> String {
        tokenizer(&self.metadata()).expect_err("the file is invalid").to_string()
    }
}

pub(crate) fn text(text: &str) -> Stored {
    Stored::Text(text.to_owned())
}

pub(crate) fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Stored {
    Stored::List(List::Texts(texts.into_iter().map(str::to_owned).collect()))
}

/// Returns a byte-level file with a token for each ASCII letter, merges into `he` and `Ġhe`, and the given tokens after them.
pub(crate) fn byte_level(pre: &str, more: &[(&str, i64)]) -> File {
    let letters: Vec<String> = ('!'..='~').chain(['Ġ', 'Ċ', 'Ã', '©', 'Ì', 'ģ']).map(String::from).collect();
    let letters = letters.iter().map(|letter| (letter.as_str(), 1, 0.0));
    let more = more.iter().map(|(token, kind)| (*token, *kind, 0.0));
    let tokens: Vec<_> = letters.chain([("he", 1, 0.0), ("Ġhe", 1, 0.0)]).chain(more).collect();
    let merges = texts(["h e", "Ġ he"]);
    File::new("llama", "gpt2").tokens(&tokens).with(PRE_TOKENIZER, text(pre)).with(MERGES, merges)
}

/// Returns a SentencePiece file. Its scores prefer `▁ab` to `bc`.
pub(crate) fn sentencepiece(architecture: &str, more: &[(&str, i64, f64)]) -> File {
    let mut tokens = vec![("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)];
    tokens.extend([("<0x0A>", 6, 0.0), ("<0xC3>", 6, 0.0), ("<0xA9>", 6, 0.0)]);
    tokens.extend([("▁a", 1, -1.0), ("▁ab", 1, -2.0), ("bc", 1, -3.0), ("abc", 1, -4.0)]);
    tokens.extend([("▁", 1, -5.0), ("a", 1, -6.0), ("b", 1, -7.0), ("c", 1, -8.0)]);
    tokens.extend_from_slice(more);
    File::new(architecture, "llama").tokens(&tokens)
}

/// Returns the tokens of a text, without those around it.
fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    tokenizer.encode(text, false).expect("it encodes").get_tokens().to_vec()
}

#[test]
fn byte_level_text_is_split_merged_and_decoded() {
    let tokenizer = byte_level("gpt-2", &[("<|im_end|>", 1), ("<tool>", 4)]).tokenizer();
    assert_eq!(encode(&tokenizer, "he he<tool>h"), ["he", "Ġhe", "<tool>", "h"]);
    let ids = tokenizer.encode("he é<|im_end|><tool>", false).expect("it encodes");
    assert_eq!(tokenizer.decode(ids.get_ids(), true).expect("it decodes"), "he é<tool>");
    assert_eq!(tokenizer.decode(ids.get_ids(), false).expect("it decodes"), "he é<|im_end|><tool>");
}

#[test]
fn composed_letters_follow_the_model() {
    let decomposed = "e\u{301}";
    assert_eq!(encode(&byte_level("qwen2", &[]).tokenizer(), decomposed), ["Ã", "©"]);
    assert_eq!(encode(&byte_level("llama-bpe", &[]).tokenizer(), decomposed), ["e", "Ì", "ģ"]);
}

#[test]
fn words_that_are_tokens_need_no_merges_in_some_models() {
    let words = |pre| encode(&byte_level(pre, &[("she", 1)]).tokenizer(), "she");
    assert_eq!(words("llama-bpe"), ["she"]);
    assert_eq!(words("qwen2"), ["s", "he"]);
}

#[test]
fn scores_become_merges() {
    let tokenizer = sentencepiece("llama", &[]).tokenizer();
    assert_eq!(encode(&tokenizer, "abc"), ["▁ab", "c"]);
    assert_eq!(encode(&tokenizer, " abc"), ["▁", "▁ab", "c"]);
    assert_eq!(encode(&tokenizer, "a\né</s>a"), ["▁a", "<0x0A>", "<0xC3>", "<0xA9>", "</s>", "▁a"]);
    let ids = tokenizer.encode("abc é", true).expect("it encodes");
    assert_eq!(ids.get_ids()[0], 1, "BOS is added by default");
    assert_eq!(tokenizer.decode(ids.get_ids(), true).expect("it decodes"), "abc é");
}

#[test]
fn a_space_before_the_text_is_optional() {
    let file = sentencepiece("llama", &[]).with("tokenizer.ggml.add_space_prefix", Stored::Bool(false));
    let tokenizer = file.tokenizer();
    assert_eq!(encode(&tokenizer, "abc ab"), ["abc", "▁ab"]);
    let ids = tokenizer.encode(" ab", false).expect("it encodes");
    assert_eq!(tokenizer.decode(ids.get_ids(), true).expect("it decodes"), " ab");
}

#[test]
fn equal_scores_merge_in_the_order_of_ids() {
    let tokens = [("▁", 1, -1.0), ("a", 1, -1.0), ("b", 1, -1.0), ("ab", 1, -1.0), ("▁a", 1, -1.0)];
    let unknown = [("<unk>", 2, -1.0), ("<s>", 3, -1.0), ("</s>", 3, -1.0)];
    let tokenizer = File::new("llama", "llama").tokens(&[&unknown[..], &tokens].concat()).tokenizer();
    assert_eq!(encode(&tokenizer, "ab"), ["▁", "ab"]);
}

#[test]
fn only_the_start_of_a_text_gets_a_space_if_tokens_frame_instructions() {
    let later = sentencepiece("llama", &[("[INST]", 3, 0.0)]).tokenizer();
    assert_eq!(encode(&later, "a[INST] ab[INST]ab"), ["▁a", "[INST]", "▁ab", "[INST]", "a", "b"]);
    let earlier = sentencepiece("llama", &[("[I]", 3, 0.0)]).tokenizer();
    assert_eq!(encode(&earlier, "a[I] ab[I]ab"), ["▁a", "[I]", "▁", "▁ab", "[I]", "▁ab"]);
}

#[test]
fn runs_of_spaces_of_gemma_are_spelled_with_marks() {
    let more = [("  ", 4, -1000.0), ("   ", 4, -1000.0), ("\n", 4, -1000.0)];
    let file = sentencepiece("gemma3", &more).with("tokenizer.ggml.add_space_prefix", Stored::Bool(false));
    let tokenizer = file.tokenizer();
    assert_eq!(encode(&tokenizer, "a  a   b\na"), ["a", "▁▁", "a", "▁▁▁", "b", "\n", "a"]);
    let ids = tokenizer.encode("a  a", false).expect("it encodes");
    assert_eq!(tokenizer.decode(ids.get_ids(), true).expect("it decodes"), "a  a");
}

#[test]
fn gemma_4_merges_whole_letters() {
    let tokens = [("<unk>", 2, 0.0), ("<bos>", 3, 0.0), ("<0x0A>", 6, 0.0), ("▁", 1, 0.0), ("▁▁", 1, 0.0)];
    let tokens = [&tokens[..], &[("a", 1, 0.0), ("é", 1, 0.0), ("▁é", 1, 0.0)]].concat();
    let file = File::new("gemma4", "gemma4").tokens(&tokens).with(MERGES, texts(["▁ ▁", "▁ é", "a a"]));
    let file = file.with("tokenizer.ggml.add_bos_token", Stored::Bool(false));
    let tokenizer = file.with("tokenizer.ggml.bos_token_id", Stored::Integer(1)).tokenizer();
    assert_eq!(encode(&tokenizer, " éaa  a"), ["▁é", "a", "a", "▁▁", "a"]);
    assert_eq!(tokenizer.encode("a", true).expect("it encodes").get_ids(), [1, 5], "BOS is needed");
}

#[test]
fn white_space_after_tokens_of_phi_3_belongs_to_them() {
    let tokenizer = sentencepiece("phi3", &[("<|user|>", 3, 0.0)]).tokenizer();
    assert_eq!(
        tokenizer.encode("<|user|>\na</s> a<s> a", false).expect("it encodes").get_ids(),
        [14, 6, 2, 6, 1, 10, 6]
    );
}

#[test]
fn bos_and_eos_follow_the_settings() {
    let file = |bos, eos| {
        let file = byte_level("llama-bpe", &[("<b>", 3), ("<e>", 3)]);
        let file = file.with("tokenizer.ggml.bos_token_id", Stored::Integer(102));
        let file = file.with("tokenizer.ggml.eos_token_id", Stored::Integer(103));
        let set = |file: File, key, flag: Option<bool>| match flag {
            Some(flag) => file.with(key, Stored::Bool(flag)),
            None => file,
        };
        let file = set(file, "tokenizer.ggml.add_bos_token", bos);
        let tokenizer = set(file, "tokenizer.ggml.add_eos_token", eos).tokenizer();
        tokenizer.encode("he", true).expect("it encodes").get_tokens().to_vec()
    };
    assert_eq!(file(None, None), ["<b>", "he"]);
    assert_eq!(file(Some(false), Some(true)), ["he", "<e>"]);
    assert_eq!(file(Some(true), Some(true)), ["<b>", "he", "<e>"]);
}

#[test]
fn errors_name_the_key() {
    let long = "a".repeat(600);
    let many: Vec<String> = (1..200).map(|length| "b".repeat(length)).collect();
    let many: Vec<_> = many.iter().skip(1).map(|token| (token.as_str(), 1, 0.0)).collect();
    for (file, message) in [
        (File::new("llama", "t5"), "tokenizer.ggml.model is \"t5\"; gpt2, gemma4 and llama are supported"),
        (byte_level("new", &[]), "tokenizer.ggml.pre is \"new\", which is not a supported pre-tokenizer"),
        (File::new("llama", "llama"), "tokenizer.ggml.tokens is missing"),
        (byte_level("gpt-2", &[("he", 1)]), "tokenizer.ggml.tokens contains \"he\" twice: ids 100 and 102"),
        (byte_level("gpt-2", &[]).with(MERGES, texts(["he"])), "tokenizer.ggml.merges contains \"he\""),
        (
            byte_level("gpt-2", &[]).with("tokenizer.ggml.token_type", Stored::List(List::Integers(vec![1]))),
            "tokenizer.ggml.token_type has 1 values for 102 tokens",
        ),
        (
            byte_level("gpt-2", &[]).with("tokenizer.ggml.eos_token_id", Stored::Integer(102)),
            "tokenizer.ggml.eos_token_id is 102; the vocabulary has 102 tokens",
        ),
        (
            byte_level("gpt-2", &[]).with("tokenizer.ggml.add_bos_token", Stored::Bool(true)),
            "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing",
        ),
        (
            sentencepiece("llama", &[]).with("tokenizer.ggml.scores", Stored::List(List::Floats(vec![0.0]))),
            "tokenizer.ggml.scores has 1 values for 14 tokens",
        ),
        (sentencepiece("llama", &[(&long, 1, 0.0)]), "contains token 14 of 600 bytes; the limit is 512"),
        (sentencepiece("llama", &many), "imply more than 32 merges per token"),
    ] {
        let found = file.error();
        assert!(found.starts_with("model.gguf: ") && found.contains(message), "{found}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    /// A damaged file is an error, or gives a tokenizer that loads.
    #[test]
    fn any_vocabulary_is_refused_or_loads(
        tokens in proptest::collection::vec(("[ab▁ <>é]{0,4}", -1..8_i64, -2.0..2.0_f64), 0..30),
        merges in proptest::collection::vec("[ab▁ é]{0,5}", 0..6),
        model in proptest::sample::select(&["gpt2", "llama", "gemma4"][..]),
        pre in proptest::sample::select(&["gpt-2", "qwen2", "gemma4"][..]),
        ids in proptest::collection::vec(-1..40_i128, 4),
    ) {
        let tokens: Vec<_> = tokens.iter().map(|(token, kind, score)| (token.as_str(), *kind, *score)).collect();
        let mut file = File::new("gemma3", model).tokens(&tokens).with(PRE_TOKENIZER, text(pre));
        file = file.with(MERGES, texts(merges.iter().map(String::as_str)));
        for (name, id) in ["bos", "eos", "unknown", "padding"].into_iter().zip(ids) {
            file = file.with(&format!("tokenizer.ggml.{name}_token_id"), Stored::Integer(id));
        }
        let metadata = file.metadata();
        match tokenizer(&metadata) {
            Ok(parts) => {
                let tokenizer = Tokenizer::from_bytes(parts.json().to_string());
                proptest::prop_assert!(tokenizer.is_ok(), "{:?}", tokenizer.err());
                proptest::prop_assert!(crate::text_config::tokenizer_config(&metadata).is_ok());
                proptest::prop_assert!(crate::text_config::generation_config(&metadata).is_ok());
            }
            Err(error) => proptest::prop_assert!(error.to_string().starts_with("model.gguf: tokenizer.ggml.")),
        }
    }
}
