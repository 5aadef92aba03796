//! Settings of other files that replace parts of tokenizer.json, as transformers and sentence-transformers apply them.

use tokenizers::normalizers::{BertNormalizer, Lowercase, NormalizerWrapper, Sequence};
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{ModelWrapper, PostProcessorWrapper, Result, Tokenizer, TruncationDirection};

use super::config::TokenizerConfig;
use super::truncation_side::TruncationSide;
use super::word_piece_class::{Pairs, WordPieceClass};

/// Replaces the parts that `config` sets. Returns the side on which a text that is too long is cut. No text is padded or cut by the library.
pub(super) fn apply(tokenizer: &mut Tokenizer, config: &TokenizerConfig) -> Result<TruncationSide> {
    if let Some(class) = &config.word_piece {
        apply_class(class, tokenizer, config)?;
    }
    if config.lowercases && !lowercases(tokenizer.get_normalizer()) {
        let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
        match tokenizer.get_normalizer() {
            None => {}
            Some(NormalizerWrapper::Sequence(others)) => steps.extend_from_slice(others.as_ref()),
            Some(other) => steps.push(other.clone()),
        }
        tokenizer.with_normalizer(Some(NormalizerWrapper::Sequence(Sequence::new(steps))))?;
    }
    let own = tokenizer.get_truncation().map(|truncation| match truncation.direction {
        TruncationDirection::Left => TruncationSide::Left,
        TruncationDirection::Right => TruncationSide::Right,
    });
    tokenizer.with_truncation(None)?.with_padding(None);
    Ok(config.truncation_side.or(own).unwrap_or(TruncationSide::Right))
}

/// Replaces the normalizer, and the post-processor if the special tokens exist.
fn apply_class(class: &WordPieceClass, tokenizer: &mut Tokenizer, config: &TokenizerConfig) -> Result<()> {
    if !matches!(tokenizer.get_model(), ModelWrapper::WordPiece(_)) {
        return Ok(());
    }
    let WordPieceClass { lowercase, strip_accents, spaces_around_chinese, pairs } = *class;
    let normalizer = BertNormalizer::new(true, spaces_around_chinese, strip_accents, lowercase);
    tokenizer.with_normalizer(Some(NormalizerWrapper::BertNormalizer(normalizer)))?;
    let token = |name: &str, usual: &str| {
        let token = config.special_token(name).unwrap_or(usual).to_owned();
        tokenizer.token_to_id(&token).map(|id| (token, id))
    };
    let (first, last) = match pairs {
        Pairs::Bert => (token("cls_token", "[CLS]"), token("sep_token", "[SEP]")),
        Pairs::Roberta => (token("cls_token", "<s>"), token("sep_token", "</s>")),
    };
    let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
    tokenizer.with_post_processor(Some(match pairs {
        Pairs::Bert => PostProcessorWrapper::Bert(BertProcessing::new(last, first)),
        Pairs::Roberta => PostProcessorWrapper::Roberta(RobertaProcessing::new(last, first)),
    }));
    Ok(())
}

fn lowercases(normalizer: Option<&NormalizerWrapper>) -> bool {
    match normalizer {
        Some(NormalizerWrapper::Lowercase(_)) => true,
        Some(NormalizerWrapper::Sequence(steps)) => {
            steps.as_ref().iter().any(|step| matches!(step, NormalizerWrapper::Lowercase(_)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::tokenizer::Tokenizer;

    /// Writes a cased WordPiece tokenizer without a post-processor that cuts the start of a text, with these keys of tokenizer_config.json.
    fn tokenizer(config: &Value, lowercases: bool) -> Tokenizer {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, value: &Value| {
            std::fs::write(folder.path().join(file), value.to_string()).expect("writes");
        };
        let words = ["[UNK]", "[CLS]", "[SEP]", "caf\u{e9}", "cafe", "Cafe", "one", "two", "<s>", "</s>"];
        let vocab: serde_json::Map<_, _> =
            words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
        write(
            "tokenizer.json",
            &json!({"version": "1.0", "added_tokens": [], "decoder": null, "post_processor": null, "padding": null,
                "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                    "lowercase": false},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "truncation": {"direction": "Left", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
                "model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 100}}),
        );
        write("tokenizer_config.json", config);
        load(folder.path(), lowercases)
    }

    fn load(folder: &Path, lowercases: bool) -> Tokenizer {
        Tokenizer::load_as(folder, lowercases).expect("it loads")
    }

    #[test]
    fn the_class_of_a_word_piece_tokenizer_decides_its_casing_as_in_transformers() {
        let ids =
            |config: &Value, text: &str| tokenizer(config, false).encode(text, true).expect("it encodes");
        let of_class = |class: &str| json!({"tokenizer_class": class});
        // The tokens of transformers 5.24 for such folders.
        assert_eq!(ids(&of_class("PreTrainedTokenizerFast"), "Cafe"), [5]);
        assert_eq!(
            ids(&of_class("BertTokenizer"), "Cafe"),
            [1, 4, 2],
            "lower case is the default of the class"
        );
        assert_eq!(ids(&of_class("BertTokenizerFast"), "Caf\u{e9}"), [1, 4, 2]);
        assert_eq!(ids(&of_class("MPNetTokenizer"), "Cafe"), [8, 4, 9]);
        let cased = json!({"tokenizer_class": "BertTokenizer", "do_lower_case": false});
        assert_eq!(ids(&cased, "Cafe"), [1, 5, 2]);
        let accents = json!({"tokenizer_class": "BertTokenizer", "strip_accents": false});
        assert_eq!(ids(&accents, "Caf\u{e9}"), [1, 3, 2]);
    }

    #[test]
    fn sentence_transformers_lower_case_comes_before_the_other_steps() {
        let generic = json!({"tokenizer_class": "PreTrainedTokenizerFast"});
        assert_eq!(tokenizer(&generic, true).encode("CAFE", true).expect("it encodes"), [4]);
    }

    #[test]
    fn the_side_of_truncation_is_that_of_tokenizer_config_or_of_tokenizer_json() {
        let cut = |config: &Value| {
            tokenizer(config, false)
                .encode_truncated("one two cafe", 4, None, crate::text::NO_PAUSE)
                .expect("it encodes")
        };
        let bert = json!({"tokenizer_class": "BertTokenizer"});
        assert_eq!((cut(&bert).ids, cut(&bert).truncated), (vec![1, 7, 4, 2], true));
        let right = json!({"tokenizer_class": "BertTokenizer", "truncation_side": "right"});
        assert_eq!(cut(&right).ids, [1, 6, 7, 2]);
    }

    #[test]
    fn a_tokenizer_without_a_post_processor_joins_two_texts_as_its_class_does() {
        let pair = |config: &Value| {
            let tokenizer = tokenizer(config, false);
            tokenizer.encode_pair("one", "two", 16, None, crate::text::NO_PAUSE).expect("it encodes").ids
        };
        assert_eq!(pair(&json!({"tokenizer_class": "BertTokenizer"})), [1, 6, 2, 7, 2]);
        assert_eq!(pair(&json!({"tokenizer_class": "MPNetTokenizer"})), [8, 6, 9, 9, 7, 9]);
        assert_eq!(pair(&json!({"tokenizer_class": "PreTrainedTokenizerFast"})), [6, 7]);
    }
}
