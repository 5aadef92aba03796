//! Benchmark reports: figures and test conditions, as text and as JSON.

use mlx_core::engine::Engine;
use mlx_core::machine::Machine;
use mlx_files::size;
use serde_json::{Value, json};

use super::measure::{Measurement, Spread};

/// Describes the measured system. Scripts rely on these fields: new ones may be added, but existing ones never change.
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

/// Returns the description as a heading. Unless names are long, no line exceeds 80 columns.
pub(super) fn heading(about: &Value, repeat: usize) -> String {
    let text = |key: &str| about[key].as_str().unwrap_or_default().to_owned();
    let debug =
        if about["debug_build"] == true { "\na debug build: its figures are not representative" } else { "" };
    let weights = size(about["weight_bytes"].as_u64().unwrap_or_default());
    let runs = match repeat {
        1 => "one run".to_owned(),
        repeat => format!("medians of {repeat} runs; ± is half of the range"),
    };
    format!(
        "{} ({}): {weights} of weights in {}, {}\nmlx {} ({}), MLX {}, {} of {}, {} threads, BLAS: {}{debug}\n{runs}\n\n\
         {:>6} {:>5} {:>18} {:>18} {:>16} {:>10}\n",
        text("model"),
        text("family"),
        text("dtype"),
        text("exactness"),
        text("tool"),
        text("commit"),
        text("mlx_version"),
        text("device"),
        text("system"),
        about["threads"],
        text("blas"),
        "prompt",
        "batch",
        "prefill, tok/s",
        "decode, tok/s",
        "first token, ms",
        "peak",
    )
}

/// Returns a line of the table.
pub(super) fn line(measured: &Measurement) -> String {
    let Measurement { case, prefill, decode, first, peak, worker_peaks, drafts } = measured;
    let cell = |spread: &Spread, scale: f64, width: usize| {
        let (median, half) = (spread.median * scale, (spread.max - spread.min) / 2.0);
        let around =
            if half > 0.0 { format!(" ±{:.0} %", 100.0 * half / spread.median) } else { String::new() };
        format!("{:>width$}", format!("{median:.1}{around:>7}"))
    };
    let (prefill, decode, first) = (cell(prefill, 1.0, 18), cell(decode, 1.0, 18), cell(first, 1000.0, 16));
    let (length, batch, peak) = (case.length, case.batch, size(*peak));
    let drafts = match drafts.drafted {
        0 => String::new(),
        drafted => format!("{:>12} of {drafted} draft tokens accepted\n", drafts.accepted),
    };
    let peak_of =
        |(rank, peak): (usize, &u64)| format!("{:>69} {:>10}\n", format!("rank {rank}"), size(*peak));
    let workers: String = (1..).zip(worker_peaks).map(peak_of).collect();
    format!("{length:>6} {batch:>5} {prefill} {decode} {first} {peak:>10}\n{workers}{drafts}")
}

/// Returns the figures of a case as JSON.
pub(crate) fn to_json(measured: &Measurement) -> Value {
    let Measurement { case, prefill, decode, first, peak, worker_peaks, drafts } = measured;
    json!({
        "prompt_tokens": case.length,
        "batch": case.batch,
        "generate": case.generate,
        "prefill_tps": spread(prefill),
        "decode_tps": spread(decode),
        "first_token_s": spread(first),
        "peak_bytes": peak,
        "worker_peak_bytes": worker_peaks,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
    })
}

/// Returns median, minimum and maximum as JSON.
pub(super) fn spread(spread: &Spread) -> Value {
    json!({ "median": spread.median, "least": spread.min, "most": spread.max })
}

#[cfg(test)]
mod tests {
    use mlx_core::engine::DraftCounts;

    use super::*;
    use crate::bench::measure::Case;

    #[test]
    fn the_table_fits_eighty_columns() {
        let spread = |values: &[f64]| Spread::from_values(values.to_vec());
        let case = Case { length: 32_768, batch: 32, generate: 64 };
        let (prefill, decode) = (spread(&[12_345.6, 13_000.0, 11_111.1]), spread(&[1234.5, 1300.0, 1200.0]));
        let measured = Measurement {
            case,
            prefill,
            decode,
            first: spread(&[12.345, 13.0, 12.0]),
            peak: 123 << 30,
            worker_peaks: vec![123 << 30],
            drafts: DraftCounts::default(),
        };
        let line = line(&measured);
        assert!(line.lines().all(|line| line.chars().count() <= 80), "{line}");
        assert!(line.contains("rank 1"), "{line}");
        assert!(line.contains("12345.6   ±8 %"), "{line}");
        let one = Measurement { prefill: spread(&[5.0]), ..measured };
        assert!(!super::line(&one)[..32].contains('±'), "one run has no spread");
        let about = json!({ "model": "Qwen3-0.6B-4bit", "family": "qwen3", "dtype": "f32", "exactness": "sampling-exact",
            "tool": "0.1.0", "commit": "abcdef0", "mlx_version": "0.32.2", "device": "cpu", "system": "linux x86_64",
            "threads": 8, "blas": "OpenBLAS", "weight_bytes": 400_000_000 });
        assert!(heading(&about, 3).lines().all(|line| line.chars().count() <= 80), "{}", heading(&about, 3));
    }
}
