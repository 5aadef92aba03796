//! A model that answers every chat like gpt-oss: a thought on the channel `analysis`, then an answer on the channel
//! `final`. Its weights make each token the successor of one other, so it is as small and as predictable as can be.

use std::path::Path;

use mlx_core::text::Tokenizer;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::model_copy;
use crate::tensors::{self, Tensor};

/// The thought, the answer, and the presence penalty with which a greedy model gives first one and then the other.
pub const THOUGHT: &str = "Hmm";
/// See [`THOUGHT`].
pub const ANSWER: &str = "Hello";
/// See [`THOUGHT`].
pub const PRESENCE_PENALTY: &str = "1";

const HIDDEN: usize = 32;
const VOCABULARY: usize = 320;

/// Special tokens in the places of those of the fixture.
const SPECIAL: [(&str, &str); 5] = [
    ("<|pad|>", "<|channel|>"),
    ("<|bos|>", "<|message|>"),
    ("<|endoftext|>", "<|return|>"),
    ("<|im_start|>", "<|start|>"),
    ("<|im_end|>", "<|end|>"),
];
/// Whole words in the places of the last tokens of the fixture.
const WORDS: [&str; 5] = ["analysis", "final", "assistant", THOUGHT, ANSWER];

const TEMPLATE: &str = "<|start|>system<|message|>Reasoning: {{ reasoning_effort|default('medium') }}<|end|>\
{%- for message in messages -%}\
<|start|>{{ message.role }}{% if message.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ message.content }}\
{%- if 'thinking' in message %}{{ raise_exception('thoughts are not repeated') if message.thinking != 'Hmm' }}{% endif -%}\
<|end|>\
{%- endfor -%}\
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}";

/// Makes the model in a temporary folder.
///
/// # Panics
/// When a file cannot be written.
pub fn model() -> tempfile::TempDir {
    let folder = model_copy("llama-f32");
    let path = folder.path();
    write_tokenizer(path);
    edit(&path.join("config.json"), |config| config["eos_token_id"] = json!(2));
    std::fs::write(path.join("generation_config.json"), "{}").expect("it can be written");
    let config = json!({"eos_token": "<|return|>", "chat_template": TEMPLATE});
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).expect("it can be written");
    write_weights(path);
    folder
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("it can be written");
}

fn write_tokenizer(folder: &Path) {
    edit(&folder.join("tokenizer.json"), |file| {
        let first = VOCABULARY - WORDS.len();
        let vocabulary = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
        vocabulary
            .retain(|_, id| id.as_u64().is_some_and(|id| (SPECIAL.len()..first).contains(&(id as usize))));
        vocabulary.extend(SPECIAL.iter().enumerate().map(|(id, (_, name))| ((*name).to_owned(), json!(id))));
        vocabulary.extend(WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(first + id))));
        // The last tokens come of the last merges.
        let merges = file["model"]["merges"].as_array_mut().expect("merges");
        merges.truncate(merges.len() - WORDS.len());
        for token in file["added_tokens"].as_array_mut().expect("a list") {
            let (_, name) =
                SPECIAL.iter().find(|(old, _)| token["content"] == *old).expect("all are replaced");
            token["content"] = json!(name);
        }
    });
}

fn write_weights(folder: &Path) {
    let tokenizer = Tokenizer::load(folder).expect("it is well formed");
    let id = |token: &str| tokenizer.id(token).expect("a token") as usize;
    let prompt = tokenizer.encode("<|start|>assistant", false).expect("it encodes");
    let last = *prompt.last().expect("it has tokens") as usize;
    // After a token with two successors the stronger one comes first, and the penalty on it makes way for the other.
    let successors: [(usize, &[(&str, f32)]); 10] = [
        (last, &[("<|channel|>", 1.0)]),
        (id("assistant"), &[("<|channel|>", 1.0)]),
        (id("<|channel|>"), &[("analysis", 0.2), ("final", 0.1)]),
        (id("analysis"), &[("<|message|>", 1.0)]),
        (id("final"), &[("<|message|>", 1.0)]),
        (id("<|message|>"), &[(THOUGHT, 0.2), (ANSWER, 0.1)]),
        (id(THOUGHT), &[("<|end|>", 1.0)]),
        (id("<|end|>"), &[("<|start|>", 1.0)]),
        (id("<|start|>"), &[("assistant", 1.0)]),
        (id(ANSWER), &[("<|return|>", 1.0)]),
    ];
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
            // The layers add nothing, so the last token alone decides.
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
