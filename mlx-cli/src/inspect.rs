//! `mlx inspect`: shows a model's properties and memory needs without loading it.

mod distributed;

use std::path::PathBuf;

use clap::Args;
use mlx_core::Abilities;
use mlx_core::adapter::{AdapterKind, AdapterSummary};
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::{AudioSummary, EXAMPLE, EmbeddingSummary, Inspection, VisionSummary, inspect};
use mlx_core::sampling::{SamplingDefaults, SamplingOptions, Setting, settings};
use mlx_files::size;
use mlx_options::{DeviceArgs, LoadArgs, printable};
use serde_json::{Map, Value, json};

use self::distributed::Divisions;
use crate::bars;
use crate::exit_code::Failure;
use crate::model_args::{ModelName, adapters};
use crate::sampling_values::number;
use crate::terminal::{self, count};

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    model: ModelName,

    /// An adapter of the model: a folder with adapter_config.json, as mlx-lm or PEFT writes it
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Show how the model would be split over N machines like this one, and the cost per token
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    args.device.choose()?;
    // The options that the other commands use.
    let mut options = EngineOptions::single();
    args.load.apply(&mut options);
    options.adapters = adapters(args.adapter.as_deref())?;
    let folder = args.model.folder()?;
    let found = inspect(&folder, &options)?;
    let division = args.ranks.map(|ranks| Divisions::new(&folder, &options, ranks)).transpose()?;
    let text = if args.json {
        format!("{}\n", to_json(&found, division.as_ref()))
    } else {
        to_text(&found, division.as_ref())
    };
    terminal::show(&text)
}

/// The object that `--json` prints. Scripts rely on it: fields may be added, never changed.
fn to_json(found: &Inspection, division: Option<&Divisions>) -> Value {
    let Inspection { spec, kinds, adapters, vision, audio, warnings, sampling, device, .. } = found;
    let room = &found.memory_fit;
    let adapter = |adapter: &AdapterSummary| {
        json!({
            "type": adapter.config.kind.as_str(),
            "rank": adapter.config.rank,
            "scale": adapter.config.scale,
            "modules": adapter.modules,
            "parameters": adapter.parameters,
            "file_bytes": adapter.file_bytes,
            "device_bytes": adapter.device_bytes(spec.dtype),
        })
    };
    let kind = |(form, kind): (&String, &mlx_core::weights::Kind)| {
        json!({
            "form": form,
            "tensors": kind.tensors,
            "parameters": kind.parameters,
            "file_bytes": kind.file_bytes,
            "device_bytes": kind.device_bytes,
        })
    };
    let vision_json = vision.as_ref().map(|vision| match vision {
        Ok(VisionSummary { weight_bytes, picture_tokens, picture_bytes }) => json!({
            "device_bytes": weight_bytes, "picture_tokens": picture_tokens, "picture_bytes": picture_bytes,
        }),
        Err(reason) => json!({ "refusal": reason }),
    });
    let audio_json = audio.as_ref().map(|audio| match audio {
        Ok(AudioSummary { weight_bytes, max_seconds, clip_tokens, clip_bytes }) => json!({
            "device_bytes": weight_bytes,
            "max_seconds": max_seconds,
            "clip_tokens": clip_tokens,
            "clip_bytes": clip_bytes,
        }),
        Err(reason) => json!({ "refusal": reason }),
    });
    let mut object = json!({
        "family": spec.family,
        "parameters": spec.parameters,
        "layers": spec.num_layers,
        "hidden": spec.hidden_size,
        "vocabulary": spec.vocab_size,
        "context": spec.context_length,
        "weights": kinds.iter().map(kind).collect::<Vec<_>>(),
        "adapters": adapters.iter().map(adapter).collect::<Vec<_>>(),
        "file_bytes": spec.file_bytes,
        "vision": vision_json,
        "audio": audio_json,
        "head": spec.has_head,
        "warnings": warnings.texts(),
        "device": device,
        "device_dtype": spec.dtype,
        "device_bytes": spec.weight_bytes,
        "cache_bytes_per_token": spec.footprint.per_token,
        "state_bytes_per_sequence": spec.footprint.fixed,
        "memory_budget": room.budget,
        "bytes_for_sequences": room.shared,
        "longest_sequence": room.longest,
        "full_contexts": room.full_contexts,
        "sequence_bytes": room.sequences.iter().map(|(tokens, bytes)| (tokens.to_string(), json!(bytes))).collect::<Map<_, _>>(),
        "refusal": room.refusal,
        "sampling": sampling_to_json(sampling),
        "abilities": abilities(found.abilities),
        "embedding": found.embedding.as_ref().map(|it| json!({
            "dimensions": it.dimensions, "poolings": it.poolings, "normalizes": it.normalizes, "max_tokens": it.max_tokens,
        })),
        "labels": spec.encoder.and_then(|encoder| encoder.labels),
    });
    if let Some(division) = division {
        object["distributed"] = distributed::to_json(division);
    }
    object
}

/// Returns the sampling parameters of a chat with this checkpoint.
fn chat_settings(checkpoint: &SamplingOptions) -> Vec<Setting> {
    // The values were checked when the file was read.
    settings(&SamplingOptions::default(), checkpoint, SamplingDefaults::Chat).unwrap_or_default()
}

fn sampling_to_json(checkpoint: &SamplingOptions) -> Map<String, Value> {
    let about =
        |it: Setting| (it.name.to_owned(), json!({ "value": number(&it), "source": it.source.as_str() }));
    chat_settings(checkpoint).into_iter().map(about).collect()
}

/// Lists the active parameters with their sources.
fn sampling_text(checkpoint: &SamplingOptions) -> String {
    let all = chat_settings(checkpoint);
    let about = |it: &Setting| format!("{} {} ({})", it.name, it.value, it.source.as_str());
    all.iter().filter(|it| !it.is_off).map(about).collect::<Vec<_>>().join(", ")
}

fn adapter_text(adapter: &AdapterSummary, dtype: &str) -> String {
    let AdapterSummary { config, modules, parameters, file_bytes, .. } = adapter;
    let what = match config.kind {
        AdapterKind::Full => format!("full, {modules} tensors"),
        kind => format!("{} of rank {}, {modules} modules", kind.as_str(), config.rank),
    };
    let (files, memory) = (size(*file_bytes), size(adapter.device_bytes(dtype)));
    format!("{what}, {} parameters, {files} in files, {memory} on the device", count(*parameters))
}

fn vision_text(vision: &Result<VisionSummary, String>) -> String {
    match vision {
        Ok(VisionSummary { weight_bytes, picture_tokens, picture_bytes }) => format!(
            "one of {EXAMPLE} x {EXAMPLE} takes {picture_tokens} tokens and {} to encode; the tower takes {}",
            size(*picture_bytes),
            size(*weight_bytes)
        ),
        Err(reason) => format!("none: {reason}"),
    }
}

fn audio_text(audio: &Result<AudioSummary, String>) -> String {
    match audio {
        Ok(AudioSummary { weight_bytes, max_seconds, clip_tokens, clip_bytes }) => format!(
            "up to {max_seconds} seconds each, which take {clip_tokens} tokens and {} to encode; the tower takes {}",
            size(*clip_bytes),
            size(*weight_bytes)
        ),
        Err(reason) => format!("none: {reason}"),
    }
}

/// Returns the tasks that a model is made for.
fn abilities(abilities: Abilities) -> Vec<&'static str> {
    let all = [
        ("chat", abilities.chats),
        ("embed", abilities.embeds),
        ("rerank", abilities.reranks),
        ("transcribe", abilities.transcribes),
    ];
    all.into_iter().filter(|(_, is_one)| *is_one).map(|(name, _)| name).collect()
}

fn embedding_text(embedding: &EmbeddingSummary) -> String {
    let EmbeddingSummary { dimensions, poolings, normalizes, max_tokens } = embedding;
    let length = if *normalizes { ", of length 1" } else { "" };
    format!("{dimensions} numbers{length}, pooled by {}, of at most {max_tokens} tokens", poolings.join(", "))
}

fn to_text(found: &Inspection, division: Option<&Divisions>) -> String {
    let Inspection { spec, kinds, adapters, vision, audio, warnings, sampling, device, .. } = found;
    let room = &found.memory_fit;
    let mut lines = vec![
        ("family", spec.family.clone()),
        ("made to", abilities(found.abilities).join(", ")),
        ("parameters", count(spec.parameters)),
        ("layers", format!("{} of width {}", spec.num_layers, spec.hidden_size)),
        ("vocabulary", format!("{} tokens", spec.vocab_size)),
        ("context", format!("{} tokens", spec.context_length)),
        ("sampling", sampling_text(sampling)),
    ];
    lines.extend(found.embedding.as_ref().map(|it| ("embedding", embedding_text(it))));
    for (form, kind) in kinds {
        let about = format!(
            "{form}: {} tensors, {} parameters, {} in files, {} on the device",
            kind.tensors,
            count(kind.parameters),
            size(kind.file_bytes),
            size(kind.device_bytes)
        );
        lines.push(("weights", about));
    }
    lines.extend(adapters.iter().map(|adapter| ("adapter", adapter_text(adapter, spec.dtype))));
    lines.extend(vision.as_ref().map(|vision| ("pictures", vision_text(vision))));
    lines.extend(audio.as_ref().map(|audio| ("recordings", audio_text(audio))));
    if !spec.has_head && spec.encoder.is_none() {
        lines.push(("head", "none: the model computes embeddings and generates no text".to_owned()));
    }
    lines.extend(warnings.texts().iter().map(|warning| ("warning", printable(warning).into_owned())));
    lines.extend([
        ("in files", size(spec.file_bytes)),
        (
            "on the device",
            format!("{}, computing in {} on the {device}", size(spec.weight_bytes), spec.dtype),
        ),
        ("a token's cache", size(spec.footprint.per_token)),
        ("fixed state", format!("{} for each sequence", size(spec.footprint.fixed))),
        ("memory budget", format!("{}, {} of it for sequences", size(room.budget), size(room.shared))),
        ("what fits", distributed::capacity_text(room)),
    ]);
    if spec.encoder.is_some() {
        lines.retain(|(name, _)| !["sampling", "a token's cache", "fixed state"].contains(name));
    }
    lines.extend(memory_bar(found));
    lines.extend(division.into_iter().flat_map(distributed::to_lines));
    let lines: Vec<String> = lines.into_iter().map(|(what, value)| format!("{what:<16} {value}")).collect();
    lines.join("\n") + "\n"
}

/// Returns the memory budget as a bar with its legend. A model that does not fit has none.
fn memory_bar(found: &Inspection) -> Vec<(&'static str, String)> {
    let room = &found.memory_fit;
    if room.refusal.is_some() {
        return Vec::new();
    }
    let weights = room.budget - room.shared;
    let mut parts = vec![(weights, '█')];
    let mut lines = vec![("", format!("█ {} weights and the memory of a step", size(weights)))];
    let mut before = 0;
    for ((tokens, bytes), ch) in room.sequences.iter().zip(['▓', '▒', '░']) {
        if *bytes > room.shared {
            lines.push(("", format!("{ch} {} a sequence of {tokens} tokens: does not fit", size(*bytes))));
            break;
        }
        parts.push((bytes - before, ch));
        lines.push(("", format!("{ch} {} a sequence of {tokens} tokens", size(*bytes))));
        before = *bytes;
    }
    lines.push(("", format!("· {} left after the longest of them", size(room.shared - before))));
    lines.insert(0, ("", bars::parts(&parts, room.budget, 60)));
    lines
}
