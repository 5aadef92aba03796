//! The classification heads of cross-encoders, read from config.json.

use serde_json::Value;

use super::config::{ClassifierConfig, ClassifierDense};
use crate::config::Fields;
use crate::error::Result;
use crate::model::family::base::activation;

/// The end of the names of models with such a head.
const ARCHITECTURE: &str = "ForSequenceClassification";

/// The maximum number of labels.
const MAX_LABELS: usize = 100_000;

/// Returns the number of labels if the model has a classification head.
fn labels(fields: &Fields) -> Result<Option<usize>> {
    let has_head = fields.strings("architectures")?.iter().any(|name| name.ends_with(ARCHITECTURE));
    if !has_head {
        return Ok(None);
    }
    let named = fields.get("id2label").and_then(Value::as_object).map(serde_json::Map::len);
    let count = match named.filter(|count| *count > 0) {
        Some(count) => count,
        None => fields.optional_size("num_labels")?.unwrap_or(2),
    };
    if count > MAX_LABELS {
        return Err(fields.error("num_labels", format!("is {count}; it must be at most {MAX_LABELS}")));
    }
    Ok(Some(count))
}

/// BERT reads the first state through its pooler.
pub(super) fn bert(fields: &Fields) -> Result<Option<ClassifierConfig>> {
    let dense = ClassifierDense { name: "model.pooler.dense", bias: true, activation: None, norm: None };
    head(fields, dense, "classifier")
}

/// RoBERTa and MPNet have two layers in the head.
pub(super) fn two_layers(fields: &Fields) -> Result<Option<ClassifierConfig>> {
    let dense = ClassifierDense { name: "classifier.dense", bias: true, activation: None, norm: None };
    head(fields, dense, "classifier.out_proj")
}

/// `DistilBERT`'s first layer has a ReLU, which no supported cross-encoder needs.
pub(super) fn distilbert(fields: &Fields) -> Result<Option<ClassifierConfig>> {
    if labels(fields)?.is_some() {
        let message = "names a classification head, which is not supported for distilbert";
        return Err(fields.error("architectures", message));
    }
    Ok(None)
}

/// ModernBERT normalizes the output of the first layer.
pub(super) fn modernbert(fields: &Fields) -> Result<Option<ClassifierConfig>> {
    let dense = ClassifierDense {
        name: "head.dense",
        bias: fields.optional_flag("classifier_bias")?.unwrap_or(false),
        activation: Some(activation(fields, ("classifier_activation", "gelu"))?),
        norm: Some("head.norm"),
    };
    let reads_mean = match fields.optional_text("classifier_pooling")? {
        None | Some("cls") => false,
        Some("mean") => true,
        Some(other) => {
            let message = format!("is {other:?}; it must be cls or mean");
            return Err(fields.error("classifier_pooling", message));
        }
    };
    Ok(head(fields, dense, "classifier")?.map(|head| ClassifierConfig { reads_mean, ..head }))
}

fn head(fields: &Fields, dense: ClassifierDense, output: &'static str) -> Result<Option<ClassifierConfig>> {
    let labels = labels(fields)?;
    Ok(labels.map(|labels| ClassifierConfig { labels, reads_mean: false, dense: Some(dense), output }))
}
