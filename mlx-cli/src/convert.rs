//! `mlx convert`: quantizes a model, casts it to another float type or reshards its files.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use mlx_core::Error;
use mlx_core::convert::{ConvertOptions, EmbeddingBits, Quality, Report, Rule, convert, is_quantized};
use mlx_core::quantization::{Mode, QuantScheme};
use mlx_core::weights::FloatPolicy;
use mlx_files::size;
use mlx_options::{ByteSize, DeviceArgs};
use safetensors::Dtype;

use crate::exit_code::Failure;
use crate::interrupt::Interrupt;
use crate::model_args::{ModelName, adapters};
use crate::terminal;

/// Examples shown after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx convert FOLDER -o SMALL            # 4 bits
  mlx convert FOLDER -o SMALL --bits 3 --group-size 32 --rule lm_head=8 --rule '*.down_proj=6' --rule '*.v_proj=keep'
  mlx convert FOLDER -o SMALL --mode mxfp4 --dtype bf16 --shard-size 2GB
  mlx convert FOLDER -o HALF --dtype bf16
  mlx convert FILE.gguf -o FOLDER        # the same quantization, as MLX stores it
  mlx convert FOLDER -o FUSED --adapter ADAPTER";

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    model: ModelName,

    #[command(flatten)]
    device: DeviceArgs,

    /// Output folder
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,

    /// Quantize to this many bits: 2, 3, 4, 5, 6 or 8 in mode affine [default: 4, or the number of
    /// the mode; --dtype or --adapter without --bits and --mode do not quantize; a quantized GGUF file
    /// keeps its quantization]
    #[arg(long, value_name = "BITS")]
    bits: Option<usize>,

    /// Weights that share a scale: 32, 64 or 128 in mode affine [default: 64, or the number of the mode]
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,

    /// Quantize in this mode: affine, mxfp4, mxfp8 or nvfp4 [default: affine]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,

    /// Quantize modules whose names match a pattern with other bits, in mode affine (PATTERN=BITS or PATTERN=BITS:GROUP), or leave
    /// them unquantized (PATTERN=keep); the first matching rule wins. A vision or audio tower is not quantized, unless the pattern begins with
    /// its name, as in vision_tower.*=8
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<Rule>,

    /// Bits for the token embedding and the head, or "same" for the bits of the other matrices [default: 8 in models below 4 billion
    /// parameters, where fewer bits lose much quality and save little; else same]
    #[arg(long, value_name = "BITS")]
    embedding_bits: Option<EmbeddingBits>,

    /// Skip the quality check, which compares both models on a short text after quantization
    #[arg(long)]
    no_quality: bool,

    /// Merge an adapter into the weights: a folder with adapter_config.json, as mlx-lm or PEFT writes it
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,

    /// Cast unquantized tensors to f32, f16 or bf16 [default: unchanged]
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,

    /// Maximum size of a weight file
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    shard_size: ByteSize,

    /// Write into a folder that is not empty; files of the same name are replaced, others stay
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ConvertArgs) -> Result<(), Failure> {
    args.device.choose()?;
    let source = args.model.folder()?;
    let is_quantized = is_quantized(&source)?;
    let options = args.options(is_quantized && source.is_file())?;
    let (interrupt, stopped) = (Interrupt::install(), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&stopped);
    interrupt.watch(move || stop.store(true, Ordering::Relaxed));
    let mut bar = terminal::bytes_bar("converting");
    let mut progress = |done, total| {
        bar(done, total);
        if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let Some(report) = convert(&source, &args.output, &options, &mut progress)? else {
        return Err(Failure::Interrupted);
    };
    // The folder is complete, so Ctrl-C may end the quality check at once.
    interrupt.release();
    terminal::show(&text(args, &report, is_quantized))?;
    if report.quantized > 0 && !args.no_quality && !stopped.load(Ordering::Relaxed) {
        terminal::show(&quality(&Quality::measure(&source, options.adapter.as_deref(), &args.output)))?;
    }
    Ok(())
}

/// The largest rises of the perplexity that count as hardly noticeable, as small, and as noticeable.
const LOSSES: [f64; 3] = [0.02, 0.1, 1.0];

/// Describes the loss of quality on one line.
fn quality(measured: &mlx_core::Result<Quality>) -> String {
    let quality = match measured {
        Ok(quality) => quality,
        Err(Error::Option { message, .. }) => return format!("quality: not measured; {message}\n"),
        Err(error) => return format!("quality: not measured; {error}\n"),
    };
    let meaning = match quality.loss() {
        loss if loss <= LOSSES[0] => "hardly any loss",
        loss if loss <= LOSSES[1] => "a small loss",
        loss if loss <= LOSSES[2] => "a noticeable loss; more --bits, or --rule for some modules, reduces it",
        _ => "A SEVERE LOSS: expect wrong or broken text; convert again with more --bits",
    };
    format!(
        "quality: perplexity {:.2} instead of {:.2} on {} tokens of English and code ({}): {meaning}\n",
        quality.after,
        quality.before,
        quality.tokens,
        rise(quality.loss())
    )
}

/// Formats a rise of the perplexity: as a percentage, or as a factor from 2 on.
fn rise(loss: f64) -> String {
    if loss < 1.0 { format!("{:+.1} %", 100.0 * loss) } else { format!("{:.1} times as high", 1.0 + loss) }
}

impl ConvertArgs {
    /// Returns the options. `is_packed` is true for a quantized GGUF file.
    fn options(&self, is_packed: bool) -> Result<ConvertOptions, Failure> {
        let only_other = is_packed || self.dtype.is_some() || self.adapter.is_some();
        let is_asked = self.bits.is_some() || self.mode.is_some();
        if only_other
            && !is_asked
            && (self.group_size.is_some() || self.embedding_bits.is_some() || !self.rules.is_empty())
        {
            return Err(Failure::usage(
                "--bits",
                "is missing; with --dtype, --adapter or a quantized GGUF file, --group-size, --embedding-bits and --rule also need --bits or --mode",
            ));
        }
        let quantizes = is_asked || !only_other;
        let scheme = || QuantScheme::new(self.mode.unwrap_or(Mode::Affine), self.bits, self.group_size);
        let scheme = quantizes.then(scheme).transpose().map_err(|(key, message)| {
            Failure::usage(if key == "bits" { "--bits" } else { "--group-size" }, message)
        })?;
        Ok(ConvertOptions {
            scheme,
            rules: self.rules.clone(),
            embedding_bits: self.embedding_bits.unwrap_or_default(),
            adapter: adapters(self.adapter.as_deref())?.pop(),
            dtype: self.dtype,
            shard_bytes: self.shard_size.0,
            force: self.force,
        })
    }
}

/// Describes the result. The number of bits per weight is unknown if the source was quantized.
fn text(args: &ConvertArgs, report: &Report, was_quantized: bool) -> String {
    let Report { quantized, skipped, left_out, embedding, shards, parameters, bytes_before, bytes_after } =
        report;
    let skipped = match skipped.as_slice() {
        [] => String::new(),
        [first, more @ ..] => {
            let rest = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            format!(
                "not quantized, because of a rule or because the row length is not a multiple of the group size: {first}{rest}\n"
            )
        }
    };
    let left_out = match left_out.as_slice() {
        [] => String::new(),
        parts => format!("skipped, because this program cannot use them: {}\n", parts.join(", ")),
    };
    let embedding = match (embedding, args.embedding_bits) {
        (Some(scheme), None) => format!(
            "the embedding and the head have {} bits, the default for small models; --embedding-bits changes it\n",
            scheme.bits
        ),
        _ => String::new(),
    };
    let bits = *bytes_after as f64 * 8.0 / *parameters as f64;
    let bits =
        if was_quantized { String::new() } else { format!(", {bits:.3} bits per weight including scales") };
    format!(
        "{}: {} instead of {}{bits}, {quantized} matrices quantized, weight files: {shards}\n{embedding}{skipped}{left_out}",
        args.output.display(),
        size(*bytes_after),
        size(*bytes_before),
    )
}

fn parse_dtype(text: &str) -> Result<Dtype, String> {
    let policy = text.parse::<FloatPolicy>().ok();
    policy.and_then(FloatPolicy::dtype).ok_or_else(|| "it must be f32, f16 or bf16".to_owned())
}
