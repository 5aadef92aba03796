//! The heads of the decoder whose attention follows the spoken words. Generation_config.json lists them, or a tensor of MLX's conversions.

use std::path::Path;

use serde_json::Value;

use super::config::WhisperStack;
use crate::config::Fields;
use crate::error::Result;
use crate::weights::Weights;

/// The key in generation_config.json, and the name of the tensor.
pub(super) const NAME: &str = "alignment_heads";

/// Returns the heads of each layer. Without a list, these are all heads in the last half of the layers, as in the reference implementation.
pub(super) fn read(folder: &Path, weights: &mut Weights, stack: WhisperStack) -> Result<Vec<Vec<i32>>> {
    let stored = weights.take_integers(NAME)?;
    // The folder's loader warns of a file that is not JSON.
    let generation = Fields::read_optional(&folder.join("generation_config.json")).ok().flatten();
    let generation = generation.filter(|fields| fields.has(NAME) && !fields.is_null(NAME));
    let mut heads = vec![Vec::new(); stack.layers];
    let mut add = |pair: &[i64]| -> Option<()> {
        let [layer, head] = *pair else { return None };
        let known = heads.get_mut(usize::try_from(layer).ok()?)?;
        let head = usize::try_from(head).ok().filter(|head| *head < stack.heads)? as i32;
        if !known.contains(&head) {
            known.push(head);
        }
        Some(())
    };
    let wrong =
        || format!("must list pairs of a layer below {} and a head below {}", stack.layers, stack.heads);
    if let Some(fields) = generation {
        let pairs = fields.get(NAME).and_then(|value| value.as_array());
        let numbers =
            |pair: &Value| -> Option<Vec<i64>> { pair.as_array()?.iter().map(Value::as_i64).collect() };
        let all = pairs.and_then(|pairs| pairs.iter().try_for_each(|pair| add(&numbers(pair)?)));
        all.ok_or_else(|| fields.error(NAME, wrong()))?;
    } else if let Some((shape, numbers)) = stored {
        let pairs = (shape.last() == Some(&2)).then(|| numbers.chunks(2));
        let all = pairs.and_then(|mut pairs| pairs.try_for_each(&mut add));
        let fault = || weights.error(&format!("tensor {NAME} {}", wrong()));
        all.ok_or_else(fault)?;
    }
    if heads.iter().all(Vec::is_empty) {
        heads[stack.layers / 2..].fill((0..stack.heads as i32).collect());
    }
    Ok(heads)
}
