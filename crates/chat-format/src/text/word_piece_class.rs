//! The keys of a WordPiece class of transformers, which replace parts of tokenizer.json.

use mlx_files::Fields;

use crate::error::{Error, Result};

/// The keys of a WordPiece class of transformers. The class ignores the normalizer and the post-processor of tokenizer.json.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordPieceClass {
    pub(super) lowercase: bool,
    pub(super) strip_accents: Option<bool>,
    pub(super) spaces_around_chinese: bool,
    pub(super) pairs: Pairs,
}

/// The special tokens around a text or a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairs {
    /// `[CLS] A [SEP] B [SEP]`
    Bert,
    /// `<s> A </s> </s> B </s>`
    Roberta,
}

/// The classes of transformers, or the `model_type` of config.json in folders that name no class.
const CLASSES: [(&[&str], Pairs); 2] = [
    (
        &[
            "BertTokenizer",
            "DistilBertTokenizer",
            "ElectraTokenizer",
            "bert",
            "distilbert",
            "electra",
            "nomic_bert",
        ],
        Pairs::Bert,
    ),
    (&["MPNetTokenizer", "mpnet"], Pairs::Roberta),
];

impl WordPieceClass {
    /// Reads the keys of tokenizer_config.json if the folder's tokenizer is of such a class.
    pub(super) fn read(config: &Fields<Error>, model: Option<&Fields<Error>>) -> Result<Option<Self>> {
        let of_model = |key| model.map(|model| model.optional_text(key)).transpose();
        let class = match (config.optional_text("tokenizer_class")?, of_model("tokenizer_class")?.flatten()) {
            (Some(class), _) | (None, Some(class)) => Some(class),
            (None, None) => of_model("model_type")?.flatten(),
        };
        let class = class.map(|class| class.strip_suffix("Fast").unwrap_or(class));
        let known = CLASSES.iter().find(|(names, _)| class.is_some_and(|class| names.contains(&class)));
        let Some((_, pairs)) = known else { return Ok(None) };
        Ok(Some(Self {
            lowercase: config.optional_flag("do_lower_case")?.unwrap_or(true),
            strip_accents: config.optional_flag("strip_accents")?,
            spaces_around_chinese: config.optional_flag("tokenize_chinese_chars")?.unwrap_or(true),
            pairs: *pairs,
        }))
    }
}
