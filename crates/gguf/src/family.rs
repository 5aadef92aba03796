//! The architectures: the function that writes config.json, and the rules of tensor names.

use serde_json::Value;

use crate::config::{self, Floats, Write};
use crate::error::Result;
use crate::metadata::Metadata;
use crate::model::{Model, Stored};
use crate::names::{self, Naming, Rule};
use crate::placement::Placement;

/// A supported architecture.
#[derive(Clone, Copy)]
struct Family {
    /// Writes config.json.
    write: Write,
    /// The names of tensors.
    naming: Naming,
}

const fn family(write: Write, rules: &'static [&'static [Rule]]) -> Family {
    Family { write, naming: Naming { rules, layers: "model.layers.", tiled: false } }
}

const fn under(layers: &'static str, family: Family) -> Family {
    Family { naming: Naming { layers, ..family.naming }, ..family }
}

const fn tiled(family: Family) -> Family {
    Family { naming: Naming { tiled: true, ..family.naming }, ..family }
}

/// The supported architectures, by `general.architecture`.
const FAMILIES: &[(&str, Family)] = &[
    ("afmoe", family(config::afmoe, &[names::AFMOE, names::LLAMA])),
    ("bailingmoe2", family(config::bailing, &[names::BAILING, names::LLAMA])),
    ("chatglm", family(config::glm, &[names::GLM, names::LLAMA])),
    ("cohere2", family(config::cohere2, &[names::LLAMA])),
    ("command-r", family(config::cohere, &[names::LLAMA])),
    ("deepseek2", family(config::deepseek, &[names::DEEPSEEK, names::LLAMA])),
    ("dots1", family(config::dots1, &[names::LLAMA])),
    ("ernie4_5", family(config::ernie4_5, &[names::LLAMA])),
    ("ernie4_5-moe", family(config::ernie4_5_moe, &[names::ERNIE, names::LLAMA])),
    ("exaone", under("transformer.h.", family(config::exaone, &[names::EXAONE, names::LLAMA]))),
    ("exaone-moe", family(config::exaone_moe, &[names::LLAMA])),
    ("exaone4", family(config::exaone4, &[names::OLMO, names::LLAMA])),
    ("falcon-h1", family(config::falcon_h1, &[names::FALCON, names::MAMBA, names::LLAMA])),
    ("gemma", family(config::gemma, &[names::GEMMA, names::LLAMA])),
    ("gemma2", family(config::gemma2, &[names::GEMMA_FEED_FORWARD, names::GEMMA, names::LLAMA])),
    ("gemma3", family(config::gemma3, &[names::GEMMA_FEED_FORWARD, names::GEMMA, names::LLAMA])),
    ("gemma4", family(config::gemma4, &[names::GEMMA4, names::LLAMA])),
    ("glm4", family(config::glm4, &[names::GLM, names::LLAMA])),
    ("glm4moe", family(config::glm4_moe, &[names::POST_NORMS, names::LLAMA])),
    ("gpt-oss", family(config::gpt_oss, &[names::GPT_OSS, names::POST_NORMS, names::LLAMA])),
    ("granite", family(config::granite, &[names::PERMUTED, names::LLAMA])),
    (
        "granitehybrid",
        family(config::granite_hybrid, &[names::GRANITE, names::MAMBA, names::PERMUTED, names::LLAMA]),
    ),
    ("granitemoe", family(config::granite_moe, &[names::GRANITE, names::PERMUTED, names::LLAMA])),
    ("hunyuan-dense", family(config::hunyuan, &[names::HUNYUAN, names::LLAMA])),
    ("hunyuan-moe", family(config::hunyuan_moe, &[names::HUNYUAN, names::LLAMA])),
    ("hy_v3", family(config::hy_v3, &[names::HY, names::LLAMA])),
    ("internlm2", family(config::llama, &[names::PERMUTED, names::LLAMA])),
    ("kimi-linear", family(config::kimi_linear, &[names::KIMI, names::DEEPSEEK, names::LLAMA])),
    ("lfm2", family(config::lfm2, &[names::LFM2, names::LLAMA])),
    ("lfm2moe", family(config::lfm2_moe, &[names::LFM2, names::LLAMA])),
    ("llama", family(config::llama, &[names::MIXTRAL, names::PERMUTED, names::LLAMA])),
    ("mamba2", under("backbone.layers.", family(config::mamba2, &[names::NEMOTRON, names::LLAMA]))),
    ("minicpm", family(config::minicpm, &[names::PERMUTED, names::LLAMA])),
    ("minicpm3", family(config::minicpm3, &[names::DEEPSEEK, names::LLAMA])),
    ("minimax-m2", family(config::minimax_m2, &[names::MIXTRAL, names::LLAMA])),
    ("mistral3", family(config::mistral3, &[names::PERMUTED, names::LLAMA])),
    ("mistral4", family(config::mistral4, &[names::DEEPSEEK, names::LLAMA])),
    ("nemotron", family(config::nemotron, &[names::MINITRON, names::LLAMA])),
    ("nemotron_h", under("backbone.layers.", family(config::nemotron_h, &[names::NEMOTRON, names::LLAMA]))),
    (
        "nemotron_h_moe",
        under("backbone.layers.", family(config::nemotron_h, &[names::NEMOTRON, names::LLAMA])),
    ),
    ("olmo", family(config::olmo, &[names::PERMUTED, names::LLAMA])),
    ("olmo2", family(config::olmo2, &[names::OLMO, names::LLAMA])),
    ("olmoe", family(config::olmoe, &[names::LLAMA])),
    ("phi3", family(config::phi3, &[names::PHI, names::LLAMA])),
    ("phimoe", family(config::phimoe, &[names::MIXTRAL, names::LLAMA])),
    ("qwen2", family(config::qwen2, &[names::LLAMA])),
    ("qwen2moe", family(config::qwen2_moe, &[names::QWEN_MOE, names::LLAMA])),
    // Ollama's name of Qwen 2.5 VL.
    ("qwen25vl", family(config::qwen2, &[names::LLAMA])),
    ("qwen2vl", family(config::qwen2, &[names::LLAMA])),
    ("qwen3", family(config::qwen3, &[names::LLAMA])),
    ("qwen35", tiled(family(config::qwen3_5, &[names::QWEN3_5, names::POST_NORMS, names::LLAMA]))),
    (
        "qwen35moe",
        tiled(family(
            config::qwen3_5_moe,
            &[names::QWEN3_5, names::QWEN_MOE, names::POST_NORMS, names::LLAMA],
        )),
    ),
    ("qwen3moe", family(config::qwen3_moe, &[names::LLAMA])),
    (
        "qwen3next",
        family(config::qwen3_5_moe, &[names::QWEN3_5, names::QWEN_MOE, names::POST_NORMS, names::LLAMA]),
    ),
    ("qwen3vl", family(config::qwen3, &[names::LLAMA])),
    ("qwen3vlmoe", family(config::qwen3_moe, &[names::LLAMA])),
    ("seed_oss", family(config::seed_oss, &[names::POST_NORMS, names::LLAMA])),
    ("smollm3", family(config::smollm3, &[names::PERMUTED, names::LLAMA])),
    ("stablelm", family(config::stablelm, &[names::STABLELM, names::LLAMA])),
    ("starcoder2", family(config::starcoder2, &[names::STARCODER, names::LLAMA])),
    ("xverse", family(config::llama, &[names::PERMUTED, names::LLAMA])),
];

/// The beginning of the keys of files whose matrices need rotated inputs. Without the rotation, they load and give nonsense.
const ROTATION: &str = "prism.hadamard.";

/// The architectures of encoders and embedding models.
const ENCODERS: [&str; 11] = [
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
    "llama-embed",
    "t5encoder",
];

/// Returns the config.json that transformers would have for the model. `floats` is called for the few tensors with factors of rope.
///
/// # Errors
///
/// An architecture that is not supported, and keys that are missing or cannot be used.
pub(crate) fn config(metadata: &Metadata, tensors: &[Stored], floats: Floats) -> Result<Value> {
    let family = Family::of(metadata)?;
    let model = Model::of(metadata, tensors)?;
    Ok(Value::Object((family.write)(&model, floats)?))
}

/// Returns the placements of the stored tensors in the folder, each with the index of its stored tensor.
///
/// # Errors
///
/// An architecture or a tensor that is not known, and a shape that does not fit.
pub(crate) fn placements(metadata: &Metadata, tensors: &[Stored]) -> Result<Vec<(usize, Placement)>> {
    let family = Family::of(metadata)?;
    names::placements(&family.naming, &Model::of(metadata, tensors)?)
}

impl Family {
    /// Returns the family of a file.
    ///
    /// # Errors
    ///
    /// A file without a decoder, or with one that is not supported.
    fn of(metadata: &Metadata) -> Result<&'static Self> {
        let architecture = metadata.architecture()?;
        let refuse = |message: &str| {
            Err(metadata.error("general.architecture", format!("is {architecture:?}; {message}")))
        };
        let kind = metadata.text("general.type")?.unwrap_or("model");
        if architecture == "clip" || kind == "mmproj" {
            return refuse("this is the image or audio part of a model; use the file of the text model");
        }
        if kind != "model" {
            let message = format!("is {kind:?}; only files with a model are supported");
            return Err(metadata.error("general.type", message));
        }
        if let Some(key) = metadata.keys().find(|key| key.starts_with(ROTATION)) {
            let message = "is set; rotated matrices (Bonsai 2) are not supported in GGUF files. Use the MLX version of the model";
            return Err(metadata.error(key, message));
        }
        if ENCODERS.contains(&architecture) {
            return refuse("encoders and their embeddings are not supported; see docs/models.md");
        }
        match FAMILIES.iter().find(|(name, _)| *name == architecture) {
            Some((_, family)) => Ok(family),
            None => refuse("it is not supported; docs/models.md lists the supported models"),
        }
    }
}
