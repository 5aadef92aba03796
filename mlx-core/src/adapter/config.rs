//! `adapter_config.json`, in the format of mlx-lm or PEFT.

use std::path::Path;

use super::names::{canonical, in_layer};
use crate::config::Fields;
use crate::error::{Error, Result};

/// The file name in both tools.
pub(super) const FILE: &str = "adapter_config.json";

/// The kind of training that produced an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// Low-rank updates.
    Lora,
    /// Low-rank updates of the direction of each output's weights, with separate magnitudes.
    Dora,
    /// Whole tensors.
    Full,
}

impl AdapterKind {
    /// The name in mlx-lm.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lora => "lora",
            Self::Dora => "dora",
            Self::Full => "full",
        }
    }
}

/// The settings in `adapter_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// The kind of adapter.
    pub kind: AdapterKind,
    /// The rank of updates; 0 for whole tensors.
    pub rank: usize,
    /// The scale of updates.
    pub scale: f32,
    /// True if factors are `[output, input]`, as in PEFT.
    pub(super) is_transposed: bool,
    /// The number of last layers with updates; `None` for all layers.
    num_layers: Option<usize>,
    /// The modules with updates; `None` for all.
    keys: Option<Vec<String>>,
}

/// Keys of PEFT that change the result and are not supported, unless they are absent, false or empty.
const UNSUPPORTED: [&str; 15] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
];

/// Initializations of PEFT that also change the base model. The adapter does not contain that change.
const CHANGE_THE_MODEL: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

impl AdapterConfig {
    /// Reads the file of `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        if !path.is_file() {
            return Err(Error::file(folder, format!("has no {FILE}; it is not an adapter's folder")));
        }
        let fields = Fields::read(&path)?;
        if fields.has("peft_type") { Self::of_peft(&fields) } else { Self::of_mlx_lm(&fields) }
    }

    /// The file name of the tensors.
    pub(super) fn weights_file(&self) -> &'static str {
        if self.is_transposed { "adapter_model.safetensors" } else { "adapters.safetensors" }
    }

    fn of_mlx_lm(fields: &Fields) -> Result<Self> {
        let kind = match fields.optional_text("fine_tune_type")? {
            None | Some("lora") => AdapterKind::Lora,
            Some("dora") => AdapterKind::Dora,
            Some("full") => AdapterKind::Full,
            Some(other) => {
                let message = format!("is {other:?}; supported are lora, dora and full");
                return Err(fields.error("fine_tune_type", message));
            }
        };
        if kind == AdapterKind::Full {
            return Ok(Self {
                kind,
                rank: 0,
                scale: 1.0,
                is_transposed: false,
                num_layers: None,
                keys: None,
            });
        }
        let lora = fields.section("lora_parameters")?;
        let lora =
            lora.ok_or_else(|| fields.error("lora_parameters", "is missing; it holds rank and scale"))?;
        if let Some(key) =
            lora.keys().find(|key| !["rank", "scale", "dropout", "keys", "alpha"].contains(key))
        {
            return Err(lora.error(key, "is not known; supported are rank, scale, dropout and keys"));
        }
        if lora.has("alpha") {
            if !lora.has("scale") {
                return Err(lora.error("scale", "is missing; mlx-lm does not derive it from alpha"));
            }
            tracing::warn!(
                "ignoring lora_parameters.alpha of the adapter, as mlx-lm does; lora_parameters.scale is used"
            );
        }
        lora.optional_number("dropout")?;
        let layers = fields.get("num_layers");
        let count = layers.and_then(serde_json::Value::as_i64);
        let count = count.ok_or_else(|| fields.error("num_layers", "is missing or not a whole number"))?;
        let keys = lora.has("keys").then(|| lora.strings("keys")).transpose()?;
        Ok(Self {
            kind,
            rank: lora.size("rank")?,
            scale: scale(&lora, "scale", lora.optional_number("scale")?)?,
            is_transposed: false,
            num_layers: usize::try_from(count).ok().filter(|count| *count > 0),
            keys: keys.map(|keys| keys.iter().map(|key| canonical(key).into_owned()).collect()),
        })
    }

    fn of_peft(fields: &Fields) -> Result<Self> {
        if let Some(other) = fields.optional_text("peft_type")?.filter(|kind| *kind != "LORA") {
            return Err(fields.error("peft_type", format!("is {other:?}; supported is LORA")));
        }
        let is_empty = |value: &serde_json::Value| match value {
            serde_json::Value::Bool(flag) => !flag,
            serde_json::Value::Array(list) => list.is_empty(),
            serde_json::Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if let Some(key) = UNSUPPORTED.into_iter().find(|key| fields.get(key).is_some_and(|it| !is_empty(it)))
        {
            return Err(fields.error(key, "is set, which is not supported; merge the adapter with PEFT"));
        }
        if let Some(bias) = fields.optional_text("bias")?.filter(|bias| *bias != "none") {
            return Err(fields
                .error("bias", format!("is {bias:?}; supported is none, because updates have no biases")));
        }
        let init = fields.get("init_lora_weights").and_then(serde_json::Value::as_str).unwrap_or_default();
        if CHANGE_THE_MODEL.iter().any(|way| init.starts_with(way)) {
            let message =
                format!("is {init:?}, which changes the model itself; convert the adapter with PEFT");
            return Err(fields.error("init_lora_weights", message));
        }
        let rank = fields.size("r")?;
        let root = fields.optional_flag("use_rslora")?.unwrap_or(false);
        let divisor = if root { (rank as f64).sqrt() } else { rank as f64 };
        let alpha = fields.optional_number("lora_alpha")?;
        let is_dora = fields.optional_flag("use_dora")?.unwrap_or(false);
        Ok(Self {
            kind: if is_dora { AdapterKind::Dora } else { AdapterKind::Lora },
            rank,
            scale: scale(fields, "lora_alpha", alpha.map(|alpha| alpha / divisor))?,
            is_transposed: true,
            num_layers: None,
            keys: None,
        })
    }

    /// Checks that a module belongs to a model with this many layers, and that this config allows it.
    pub(super) fn check_module(&self, module: &str, layers: usize) -> Result<(), String> {
        let is_key = |name: &str| self.keys.as_ref().is_some_and(|keys| keys.iter().any(|key| key == name));
        let first = layers.saturating_sub(self.num_layers.unwrap_or(layers));
        match in_layer(module) {
            Some((layer, _)) if layer >= layers => {
                Err(format!("belongs to layer {layer}, but this model has {layers} layers"))
            }
            _ if self.is_transposed || is_key(module) => Ok(()),
            Some((layer, _)) if layer < first => {
                let count = layers - first;
                Err(format!(
                    "belongs to layer {layer}, but num_layers in {FILE} says that only the last {count} layers were trained"
                ))
            }
            Some((_, name)) if self.keys.is_none() || is_key(name) => Ok(()),
            _ => Err(format!("belongs to a module that lora_parameters.keys in {FILE} does not list")),
        }
    }
}

fn scale(fields: &Fields, key: &str, value: Option<f64>) -> Result<f32> {
    let value = value.ok_or_else(|| fields.error(key, "is missing"))? as f32;
    if value.is_finite() { Ok(value) } else { Err(fields.error(key, "does not fit into 32 bits")) }
}
