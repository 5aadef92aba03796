//! Tests of pre-tokenizers: the words of one text with each of them.

use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper};

use super::*;

/// A text with contractions, digits, signs, spaces, line breaks, other scripts and an accent.
const SAMPLE: &str = "I'LL it's o'Sab 1234567 x+=1;\n\n       ok e\u{301} ½ 中文 Привет! a\n \n\nb(c/d)/\n ";

/// The words of [`SAMPLE`], separated by `|`, and the pre-tokenizers that give them.
const EXPECTED: [(&str, &[&str]); 27] = [
    (
        "I|'|LL| it|'|s| o|'|Sab| |123|456|7| x|+=|1|;|\n\n      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n|\n|b|(|c|/|d|)/|\n ",
        &["default"],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |123|456|7| x|+=|1|;\n\n|      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
            "dbrx",
            "smaug-bpe",
            "glm4",
            "chatglm-bpe",
            "minicpm5",
        ],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |123|456|7| x|+=|1|;\n\n|    |  | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["jais-2"],
    ),
    (
        "I|'LL| it|'s| o|'Sab| |1|2|3|4|5|6|7| x|+=|1|;\n\n|      | ok| e\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["tekken"],
    ),
    (
        "I'LL| it's| o'S|ab| |123|456|7| x|+=|1|;\n\n|      | ok| e\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["granite-embed-multi-97m", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
    ),
    (
        "I'LL| it's| o'S|ab| |1|2|3|4|5|6|7| x|+=|1|;\n\n|      | ok| e\u{301}| |½| |中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["youtu"],
    ),
    (
        "I|'|LL| it|'|s| o|'|Sab| |1234567| x|+=|1|;|\n|\n|      | ok| e|\u{301} |½| |中文| Привет|!| a|\n| |\n|\n|b|(|c|/|d|)/|\n| ",
        &["deepseek-llm"],
    ),
    (
        "I|'|LL| it|'|s| o|'|Sab| |1|2|3|4|5|6|7| x|+=|1|;|\n|\n|      | ok| e|\u{301} |½| |中文| Привет|!| a|\n| |\n|\n|b|(|c|/|d|)/|\n| ",
        &["deepseek-coder"],
    ),
    (
        "I|'LL| it|'s| o|'Sab| |123|456|7| x|+=|1|;\n\n|      | ok| e\u{301}| |½| |中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
    ),
    (
        "I|'LL| it|'s| o|'Sab| |1|2|3|4|5|6|7| x|+=|1|;|\n|\n|      | ok| e\u{301}| |½| |中文| Привет|!| a|\n| \n|\n|b|(c|/d|)/|\n| ",
        &["spark2_5"],
    ),
    (
        "I|'LL| it|'s| o|'Sab| |1|234|567| x|+=|1|;\n\n|      | ok| e\u{301}| |½| |中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["afmoe"],
    ),
    (
        "I|'|LL| it|'|s| o|'|Sab| |123|456|7| x|+=|1|;|\n\n      | ok| e|\u{301}| ½| 中文| Привет|!| a|\n \n|\n|b|(|c|/|d|)/|\n ",
        &["falcon"],
    ),
    (
        "I|'|LL| it|'s| o|'|Sab| 1234567| x|+=|1|;|\n\n      | ok| e|\u{301}| ½| 中文| Привет|!| a|\n \n|\n|b|(|c|/|d|)/|\n ",
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "jais",
            "trillion",
            "granite-docling",
            "olmo",
            "mpt",
            "modern-bert",
        ],
    ),
    (
        "I|'|LL| it|'s| o|'|Sab| |1|2|3|4|5|6|7| x|+=|1|;|\n\n      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n|\n|b|(|c|/|d|)/|\n ",
        &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2", "command-r"],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |1|2|3|4|5|6|7| x|+=|1|;\n\n|      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |1|2|3|4|5|6|7| x|+=|1|;\n\n|      | ok| e\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["qwen35"],
    ),
    (
        "I|'LL| it|'s| o|'Sab| |1|2|3|4|5|6|7| x|+=|1|;\n\n|      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["ufakzeka"],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |1|2|3|4|5|6|7| x|+=|1|;|\n\n|      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n| |\n\n|b|(c|/d|)/|\n| ",
        &["laguna"],
    ),
    (
        "I'LL| it's| o'Sab| 1234567| x+=1;|\n\n      | ok| e\u{301}| ½| 中文| Привет|!| a|\n \n\n|b|(|c/d|)|/|\n ",
        &["poro-chat", "bloom", "gpt3-finnish"],
    ),
    (
        "I'LL| it's| o'Sab| |1|2|3|4|5|6|7| x+=|1|;|\n\n      | ok| e\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(|c/d|)|/|\n ",
        &["viking"],
    ),
    (
        "I|'|LL| it|'|s| o|'|Sab| |1|2|3|4|5|6|7| x|+|=|1|;|\n|\n|    |  | ok| e|\u{301}| |½| 中文| Привет|!| a|\n| |\n|\n|b|(|c|/|d|)|/|\n| ",
        &["chameleon"],
    ),
    (
        "I'LL| it's| o'S|ab| |1|234|567| x|+=|1|;\n\n|      | ok| e\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["tiny_aya", "cohere2moe"],
    ),
    (
        "I'LL| it's| o'S|ab| |123|456|7| x|+=|1|;\n\n|      | ok| e\u{301}| |½| |中文| Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["kimi-k2"],
    ),
    (
        "I'LL it's o'Sab |1|234|567| x+=|1|;\n\n       ok e\u{301} |½| 中文 Привет! a\n \n\nb(c/d)/\n ",
        &["superbpe"],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |1|2|3|4|5|6|7| x|+=|1|;|\n\n|      | ok| e|\u{301}| |½| 中文| Привет|!| a|\n \n\n|b|(c|/d|)/|\n| ",
        &["seed-coder"],
    ),
    (
        "I|'LL| it|'s| o|'S|ab| |1|2|3|4|5|6|7| x|+=|1|;\n|\n|      | ok e\u{301}| |½| 中文 Привет|!| a|\n \n\n|b|(c|/d|)/\n| ",
        &["exaone-moe"],
    ),
    (
        "I'LL it's o'Sab 1234567 x+=1;\n\n       ok e\u{301} ½ 中文 Привет! a\n \n\nb(c/d)/\n ",
        &["gemma4", "granite-embed-multi-311m", "sarvam-moe"],
    ),
];

/// Returns the words of a text, separated by `|`.
fn words(pre_tokenizer: &PreTokenizer, text: &str) -> String {
    let json = pre_tokenizer.json();
    let steps: PreTokenizerWrapper = serde_json::from_value(json).expect("the patterns compile");
    let mut parts = PreTokenizedString::from(text);
    steps.pre_tokenize(&mut parts).expect("the text is split");
    let parts = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let words: Vec<&str> = parts.into_iter().map(|(_, (start, end), _)| &text[start..end]).collect();
    words.join("|")
}

#[test]
fn every_pre_tokenizer_splits_as_its_model_does() {
    for (expected, names) in EXPECTED {
        for name in names {
            let pre_tokenizer = PreTokenizer::named(name).expect("the name is known");
            assert_eq!(words(&pre_tokenizer, SAMPLE), expected, "{name}");
        }
    }
}

#[test]
fn long_numbers_are_grouped_from_the_end_in_some_models() {
    for (name, expected) in [
        ("afmoe", "12|345|678|,| |7|,| |123"),
        ("superbpe", "12|345|678|, |7|, |123"),
        ("tiny_aya", "12|345|678|,| |7|,| |123"),
        ("deepseek-v3", "123|456|78|,| |7|,| |123"),
    ] {
        let pre_tokenizer = PreTokenizer::named(name).expect("the name is known");
        assert_eq!(words(&pre_tokenizer, "12345678, 7, 123"), expected, "{name}");
    }
}

#[test]
fn other_names_are_unknown() {
    for name in ["", "gpt2", "whitespace", "Qwen2"] {
        assert!(PreTokenizer::named(name).is_none(), "{name}");
    }
}
