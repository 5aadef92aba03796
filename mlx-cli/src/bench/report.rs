//! What was measured, on what, for people and for scripts.

use mlx_core::engine::Engine;
use mlx_core::machine::Machine;
use mlx_core::size;
use serde_json::{Value, json};

use super::measure::{Measured, Spread};

/// What the figures are about. Scripts rely on it: fields may be added, never changed.
pub(super) fn about(machine: &Machine, engine: &Engine) -> Value {
    let spec = engine.spec();
    json!({
        "tool": env!("CARGO_PKG_VERSION"),
        "commit": env!("MLX_COMMIT"),
        "debug_build": cfg!(debug_assertions),
        "device": machine.device,
        "mlx_version": machine.mlx_version,
        "blas": machine.blas.name(),
        "threads": machine.threads,
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "model": engine.folder().name(),
        "family": spec.family,
        "parameters": spec.parameters,
        "dtype": spec.dtype,
        "weight_bytes": spec.weight_bytes,
        "exactness": engine.exactness().as_str(),
    })
}

/// The same above a table.
pub(super) fn heading(about: &Value, repeat: usize) -> String {
    let text = |key: &str| about[key].as_str().unwrap_or_default().to_owned();
    let debug =
        if about["debug_build"] == true { ", a debug build: its figures are worth little" } else { "" };
    let weights = size(about["weight_bytes"].as_u64().unwrap_or_default());
    format!(
        "mlx {} ({}{debug}), MLX {} on the {} of {}, {} threads, BLAS: {}\n{} ({}): {weights} of weights, computing in {}, {}\n\
         medians of {repeat} runs, in brackets the least and the most\n\n\
         {:>7} {:>6}  {:>28}  {:>28}  {:>28}  {:>11}\n",
        text("tool"),
        text("commit"),
        text("mlx_version"),
        text("device"),
        text("system"),
        about["threads"],
        text("blas"),
        text("model"),
        text("family"),
        text("dtype"),
        text("exactness"),
        "prompt",
        "batch",
        "prefill, tok/s",
        "decode, tok/s",
        "first token, ms",
        "peak",
    )
}

/// A line of the table.
pub(super) fn line(measured: &Measured) -> String {
    let Measured { case, prefill, decode, first, peak } = measured;
    let cell = |spread: &Spread, scale: f64| {
        let [median, least, most] = [spread.median, spread.least, spread.most].map(|value| value * scale);
        format!("{:>28}", format!("{median:.1} ({least:.1} - {most:.1})"))
    };
    let (prefill, decode, first) = (cell(prefill, 1.0), cell(decode, 1.0), cell(first, 1000.0));
    let (length, batch, peak) = (case.length, case.batch, size(*peak as u64));
    format!("{length:>7} {batch:>6}  {prefill}  {decode}  {first}  {peak:>11}\n")
}

/// The same for scripts.
pub(super) fn to_json(measured: &Measured) -> Value {
    let Measured { case, prefill, decode, first, peak } = measured;
    json!({
        "prompt_tokens": case.length,
        "batch": case.batch,
        "generate": case.generate,
        "prefill_tps": spread(prefill),
        "decode_tps": spread(decode),
        "first_token_s": spread(first),
        "peak_bytes": peak,
    })
}

/// Median, least and most.
pub(super) fn spread(spread: &Spread) -> Value {
    json!({ "median": spread.median, "least": spread.least, "most": spread.most })
}
