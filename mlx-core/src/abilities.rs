//! The tasks that a model is made for, read from its folder without its weights.

use std::path::Path;

use chat_format::ChatTemplate;
use serde_json::Value;

use crate::config::Fields;
use crate::error::Result;
use crate::model::{Architecture, VLLM_KEY};
use crate::model_name::display_name;
use crate::sentence_transformers::is_sentence_transformer;

/// The tasks that a model is made for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "tasks that do not depend on each other")]
pub struct Abilities {
    /// It generates text.
    pub chats: bool,
    /// It computes embeddings. A model that chats can do so too, with less meaning.
    pub embeds: bool,
    /// It scores pairs of a query and a document. A model that chats may also rank by its answers.
    pub reranks: bool,
    /// It turns speech into text. A model that chats can also hear and transcribe, as Qwen3-ASR does.
    pub transcribes: bool,
}

impl Abilities {
    /// Reads the config of the model in `folder`.
    pub fn of(folder: &Path) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let (family, architecture) = Architecture::read(&fields)?;
        let embeds = is_sentence_transformer(folder);
        Ok(match architecture {
            Architecture::Decoder(_) if ranks_by_answers(folder, &family, &fields)? => {
                Self { reranks: true, ..Self::default() }
            }
            Architecture::Decoder(_) => {
                Self { chats: !embeds, embeds, transcribes: family == "qwen3_asr", ..Self::default() }
            }
            Architecture::Encoder(config) => {
                // A head with several labels classifies texts, which no endpoint does.
                let reranks = config.head.as_ref().is_some_and(|head| head.labels == 1);
                Self { embeds: config.head.is_none(), reranks, ..Self::default() }
            }
            Architecture::Whisper(_) => Self { transcribes: true, ..Self::default() },
        })
    }
}

/// The sentence of the prompt of Qwen3-Reranker that its chat template holds.
pub const RANKING_TASK: &str =
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided";

/// Returns true if the model was trained to answer yes or no about a query and a document. Either modules.json names the module that
/// scores a pair by the logits of two answers, or the model is a Qwen3-Reranker: its chat template has its task, or config.json has the key
/// with which vLLM marks it. The first downloads of it, and most conversions, hold the files of a chat model. There the name decides.
fn ranks_by_answers(folder: &Path, family: &str, config: &Fields) -> Result<bool> {
    let modules = std::fs::read(folder.join("modules.json")).unwrap_or_default();
    let modules: Vec<Value> = serde_json::from_slice(&modules).unwrap_or_default();
    let is_score = |module: &Value| module["type"].as_str().is_some_and(|kind| kind.ends_with(".LogitScore"));
    if modules.iter().any(is_score) {
        return Ok(true);
    }
    if family != "qwen3" {
        return Ok(false);
    }
    // An invalid template is reported by the loader.
    let has_task = || {
        let template = ChatTemplate::load(folder).ok().flatten();
        template.is_some_and(|template| template.mentions(RANKING_TASK))
    };
    let is_named = || display_name(folder).to_lowercase().contains("reranker");
    Ok(config.optional_flag(VLLM_KEY)?.unwrap_or(false) || is_named() || has_task())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the abilities of a model in a folder of this name, with these keys of config.json and this chat template.
    fn abilities(name: &str, change: &Value, template: &str) -> Abilities {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join(name);
        std::fs::create_dir(&folder).expect("it is new");
        let mut config = json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, "hidden_size": 16,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 16});
        config.as_object_mut().expect("a map").extend(change.as_object().expect("a map").clone());
        std::fs::write(folder.join("config.json"), config.to_string()).expect("it can be written");
        std::fs::write(folder.join("chat_template.jinja"), template).expect("it can be written");
        Abilities::of(&folder).expect("it is read")
    }

    #[test]
    fn a_qwen3_reranker_is_known_by_its_template_or_key_and_only_then_by_its_name() {
        let (chats, reranks) = (
            Abilities { chats: true, ..Abilities::default() },
            Abilities { reranks: true, ..Abilities::default() },
        );
        let plain = "{{ messages[0].content }}";
        let task = format!("{RANKING_TASK}{plain}");
        let none = json!({});
        assert_eq!(abilities("Qwen3-0.6B", &none, plain), chats);
        assert_eq!(abilities("anything", &none, &task), reranks, "the files of Qwen since 2026");
        let key =
            json!({"architectures": ["Qwen3ForSequenceClassification"], "is_original_qwen3_reranker": true});
        assert_eq!(abilities("anything", &key, plain), reranks, "the key of vLLM");
        assert_eq!(abilities("Qwen3-Reranker-0.6B-4bit", &none, plain), reranks, "the first files of Qwen");
        let llama = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama"});
        assert_eq!(abilities("My-Reranker", &llama, plain), chats, "the name of another architecture");
    }
}
