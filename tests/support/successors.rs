//! Models that follow a list: their weights make each token the successor of one other, so they are tiny and fully
//! predictable.

use std::path::Path;

use chat_format::text::Tokenizer;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::model_copy;
use crate::tensors::{self, Tensor};

const HIDDEN: usize = 32;
const VOCABULARY: usize = 320;

/// The special tokens of the fixture, which may be renamed.
const SPECIAL: [&str; 5] = ["<|pad|>", "<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// The index of the token that ends a text.
const END: usize = 2;

/// The definition of a model.
pub struct Successors<'a> {
    /// Its chat template.
    pub template: &'a str,
    /// The names of its five special tokens; the third one ends a text.
    pub special: [&'a str; 5],
    /// Texts that become single tokens.
    pub words: &'a [&'a str],
    /// The end of a prompt. Its last token is followed by `first`.
    pub prompt_end: &'a str,
    /// The text that follows the end of a prompt.
    pub first: &'a str,
    /// The successors of tokens, each with its weight. After a token with two successors the stronger one comes first, and a
    /// penalty on it selects the other.
    pub next: &'a [(&'a str, &'a [(&'a str, f32)])],
}

/// Creates a model that answers each chat with these words in order, and ends.
///
/// # Panics
/// If a file cannot be written.
pub fn chain(template: &str, prompt_end: &str, words: &[&str]) -> tempfile::TempDir {
    let ends: Vec<[(&str, f32); 1]> =
        words.iter().skip(1).chain(&[SPECIAL[END]]).map(|next| [(*next, 4.0)]).collect();
    let next: Vec<(&str, &[(&str, f32)])> =
        words.iter().copied().zip(ends.iter().map(<[_; 1]>::as_slice)).collect();
    model(&Successors { template, special: SPECIAL, words, prompt_end, first: words[0], next: &next })
}

/// Creates a model that never ends its thought (`Hm `), and answers `Yes.` if something else ends it.
///
/// # Panics
/// If a file cannot be written.
pub fn endless_thinker() -> tempfile::TempDir {
    model(&Successors {
        template: "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}",
        special: SPECIAL,
        words: &["Hm ", "</think>", "Yes."],
        prompt_end: "<think>\n",
        first: "Hm ",
        next: &[("Hm ", &[("Hm ", 4.0)]), ("</think>", &[("Yes.", 4.0)]), ("Yes.", &[(SPECIAL[END], 4.0)])],
    })
}

/// Creates a model in a temporary folder.
///
/// # Panics
/// If a file cannot be written.
pub fn model(of: &Successors) -> tempfile::TempDir {
    let folder = model_copy("llama-f32");
    let path = folder.path();
    write_tokenizer(path, of);
    edit(&path.join("config.json"), |config| {
        config["eos_token_id"] = json!(END);
        // With such a small vocabulary, tools take many tokens.
        config["max_position_embeddings"] = json!(4096);
    });
    std::fs::write(path.join("generation_config.json"), "{}").expect("it can be written");
    let config = json!({"eos_token": of.special[END], "chat_template": of.template});
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).expect("it can be written");
    write_weights(path, of);
    folder
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("it can be written");
}

/// Returns a text as byte-level vocabularies spell it.
fn spelled(word: &str) -> String {
    word.replace(' ', "\u{120}").replace('\n', "\u{10a}")
}

fn write_tokenizer(folder: &Path, of: &Successors) {
    edit(&folder.join("tokenizer.json"), |file| {
        let first = VOCABULARY - of.words.len();
        let vocabulary = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
        vocabulary
            .retain(|_, id| id.as_u64().is_some_and(|id| (SPECIAL.len()..first).contains(&(id as usize))));
        vocabulary.extend(of.special.iter().enumerate().map(|(id, name)| ((*name).to_owned(), json!(id))));
        vocabulary.extend(of.words.iter().enumerate().map(|(id, word)| (spelled(word), json!(first + id))));
        // The last tokens come from the last merges.
        let merges = file["model"]["merges"].as_array_mut().expect("merges");
        merges.truncate(merges.len().saturating_sub(of.words.len()));
        for token in file["added_tokens"].as_array_mut().expect("a list") {
            let place = SPECIAL.iter().position(|old| token["content"] == *old).expect("all are replaced");
            token["content"] = json!(of.special[place]);
        }
    });
}

fn write_weights(folder: &Path, of: &Successors) {
    let tokenizer = Tokenizer::load(folder).expect("it is well formed");
    let id = |token: &str| tokenizer.id(&spelled(token)).expect("a token") as usize;
    let prompt = tokenizer.encode(of.prompt_end, false).expect("it encodes");
    let last = *prompt.last().expect("it has tokens") as usize;
    let first = (last, &[(of.first, 4.0)][..]);
    let successors: Vec<(usize, &[(&str, f32)])> =
        std::iter::once(first).chain(of.next.iter().map(|(token, next)| (id(token), *next))).collect();
    assert!(successors.len() <= HIDDEN, "the fixture is too narrow for so many tokens");
    let (mut embedding, mut head) = (vec![0.0; VOCABULARY * HIDDEN], vec![0.0; VOCABULARY * HIDDEN]);
    for (place, (token, next)) in successors.iter().enumerate() {
        embedding[token * HIDDEN + place] = 1.0;
        for (name, weight) in *next {
            head[id(name) * HIDDEN + place] = *weight;
        }
    }
    let file = folder.join("model.safetensors");
    let mut weights = tensors::read(&file);
    for (name, (dtype, _, bytes)) in &mut weights {
        assert_eq!(*dtype, Dtype::F32);
        if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
            // The layers add nothing, so only the last token decides.
            bytes.fill(0);
        } else if name == "model.norm.weight" {
            *bytes = of_floats(&[1.0; HIDDEN]);
        }
    }
    let mut replace = |name: &str, values: &[f32]| {
        let tensor: &mut Tensor = weights.get_mut(name).expect("the fixture has it");
        tensor.2 = of_floats(values);
    };
    replace("model.embed_tokens.weight", &embedding);
    replace("lm_head.weight", &head);
    tensors::write(&file, &weights);
}

fn of_floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
