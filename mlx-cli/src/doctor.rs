//! `mlx doctor`: reports the device, checks that it computes correctly, and lists performance problems.

mod report;

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::engine::{Engine, EngineOptions, StepWidth, step_widths};
use mlx_core::machine::{self, Blas, Machine, ProductRates};
use mlx_core::{Error, Result};
use mlx_files::size;
use mlx_guide as guide;
use mlx_hub::Cache;
use mlx_options::{DeviceArgs, printable};
use serde_json::{Value, json};

use crate::exit_code::Failure;
use crate::{bars, model_choice, terminal};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also load this model and report whether its results depend on the batch size
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    word: Option<PathBuf>,

    /// The model, as a flag
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArgs,

    /// Also measure the model (default: the guide) for a few minutes, and write a report for an issue to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// The results for a model.
struct ModelFindings {
    exactness: &'static str,
    widths: Vec<StepWidth>,
    /// Problems in optional files.
    warnings: Vec<String>,
}

/// The symbol in front of a line.
enum Mark {
    None,
    Good,
    Slow,
    Broken,
}

impl Mark {
    fn show(&self, colors: bool) -> String {
        let (sign, style) = match self {
            Self::None => return " ".to_owned(),
            Self::Good => ("✓", "32"),
            Self::Slow => ("!", "33"),
            Self::Broken => ("✗", "31"),
        };
        if colors { format!("\x1b[{style}m{sign}\x1b[0m") } else { sign.to_owned() }
    }
}

impl DoctorArgs {
    fn name(&self) -> Option<&Path> {
        self.word.as_deref().or(self.model.as_deref())
    }
}

fn folder_of(name: &Path) -> Result<PathBuf> {
    if model_choice::is_guide(name) { guide::folder() } else { Ok(mlx_hub::resolve(name)?) }
}

/// All results.
struct Findings {
    machine: Machine,
    rates: ProductRates,
    widths: Vec<i32>,
    /// The results for the model, or the error if it does not load.
    model: Option<Result<ModelFindings>>,
    hub: Option<PathBuf>,
    computes: bool,
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    args.device.choose()?;
    warn_of_a_virtual_gpu()?;
    let found = Findings::gather(args)?;
    if let Some(file) = &args.report {
        let folder = folder_of(args.name().unwrap_or_else(|| Path::new(guide::NAME)))?;
        let object = json!({ "doctor": found.to_json(), "model": report::measure(&folder)? });
        std::fs::write(file, format!("{object:#}\n")).map_err(|error| Error::io(file, error))?;
        terminal::note(&format!("wrote {}; docs/on-a-mac.md explains it", file.display()));
    }
    if args.json {
        terminal::show(&format!("{}\n", found.to_json()))?;
    } else {
        terminal::show_styled(&found.to_text(terminal::has_colors()))?;
    }
    if found.broken().is_empty() { Ok(()) } else { Err(Failure::Reported) }
}

/// The advice for virtual Macs.
const VIRTUAL: &str =
    "this is a virtual machine, and MLX's kernels may end the program on its GPU: use --device cpu";

/// Warns before the first kernel runs, which may end the program.
fn warn_of_a_virtual_gpu() -> Result<()> {
    let machine = Machine::detect()?;
    if machine.device == "gpu" && machine.is_virtual() {
        terminal::note(VIRTUAL);
    }
    Ok(())
}

impl ModelFindings {
    /// Returns a line for each width of decode steps.
    fn steps(&self) -> Vec<String> {
        let line = |it: &StepWidth| {
            let bits = match it.same_bits_as {
                Some(rows) if rows == it.rows => "bits of no other width".to_owned(),
                Some(rows) => format!("same bits as {rows}"),
                None => "bits depend on the position".to_owned(),
            };
            format!("{:>2} rows {:>8.2} ms, {bits}", it.rows, 1000.0 * it.seconds)
        };
        self.widths.iter().map(line).collect()
    }
}

impl Findings {
    fn gather(args: &DoctorArgs) -> Result<Self> {
        let model = |name: &Path| {
            let folder = folder_of(name)?;
            // As in a server that needs the same bits under any load.
            let options = EngineOptions { exact: true, ..EngineOptions::default() };
            let engine = Engine::start(&folder, &options, terminal::load_bar())?;
            let exactness = engine.exactness().as_str();
            let warnings = engine.folder().warnings.texts().to_vec();
            drop(engine);
            Ok(ModelFindings { exactness, widths: step_widths(&folder, &options)?, warnings })
        };
        Ok(Self {
            machine: Machine::detect()?,
            rates: ProductRates::measure()?,
            widths: machine::exact_batch_sizes()?,
            model: args.name().map(model),
            hub: Cache::from_env().ok().map(|cache| cache.root().to_path_buf()),
            computes: machine::computes()?,
        })
    }

    /// Lists problems that make results wrong or models unavailable.
    fn broken(&self) -> Vec<String> {
        let product = "a matrix product of integers is wrong: no result of this machine can be trusted";
        let mut broken: Vec<String> = (!self.computes).then(|| product.to_owned()).into_iter().collect();
        if let Some(Err(error)) = &self.model {
            broken.push(error.to_string());
        }
        if let Some(hub) = self.hub.as_ref().filter(|hub| hub.exists() && !hub.is_dir()) {
            broken.push(format!(
                "{} is not a folder; it should be the cache of the Hub's models",
                hub.display()
            ));
        }
        broken
    }

    /// Lists performance problems, with reasons.
    fn slow(&self) -> Vec<String> {
        let Self { machine, rates, .. } = self;
        let mut slow = Vec::new();
        if cfg!(debug_assertions) {
            slow.push("this program is a debug build; cargo build --release builds a faster one".to_owned());
        }
        if machine.device == "cpu" {
            slow.push(if machine.is_device_selected {
                "everything runs on the CPU: --device or MLX_DEVICE selects it".to_owned()
            } else {
                "MLX finds no usable GPU: everything runs on the CPU".to_owned()
            });
            for (what, rate, remedy) in [
                (
                    "f32 with f16 or bf16",
                    rates.half,
                    "models in f16 and bf16 are faster with --dtype f32, which takes twice their memory",
                ),
                (
                    "packed 4-bit weights",
                    rates.packed,
                    "quantized models are faster with --dtype f32, which takes up to eight times their memory",
                ),
            ] {
                if rate < rates.single / 2.0 {
                    slow.push(format!(
                        "matrix products of {what} run at {:.0} % of the speed of f32: {remedy}",
                        100.0 * rate / rates.single
                    ));
                }
            }
        }
        if machine.device == "gpu" && machine.is_virtual() {
            slow.push(VIRTUAL.to_owned());
        }
        if let Some(library) = machine.metal_library.filter(|it| !it.has_m5_kernels)
            && machine.has_m5_units()
        {
            slow.push(format!(
                "this GPU has matrix units that only MLX for macOS 26.2 uses, and this is MLX for macOS {}: prompts are 2 to 4 times slower; install the release for macOS 26.2",
                library.macos.0
            ));
        }
        if machine.lacks_bf16() {
            slow.push(
                "this GPU has no bf16 hardware: bf16 models are faster with --dtype f16, if their values fit"
                    .to_owned(),
            );
        }
        if machine.blas == Blas::Unknown && machine.device == "cpu" {
            slow.push(
                "the BLAS of `cargo xtask setup` is not in use; MLX's own is many times slower".to_owned(),
            );
        }
        slow
    }

    fn exactness(&self) -> String {
        let widths: Vec<String> = self.widths.iter().map(i32::to_string).collect();
        format!("results do not depend on the batch size ({})", widths.join(", "))
    }

    /// Returns a line for each finding, with printable names and paths.
    fn to_text(&self, colors: bool) -> String {
        let Self { machine, .. } = self;
        let blas = match &machine.blas {
            Blas::OpenBlas(path) => format!("{}, {}", machine.blas.name(), path.display()),
            other => other.name().to_owned(),
        };
        let memory = machine.memory.map_or_else(|| "unknown".to_owned(), size);
        let hub = self.hub.as_ref().map_or_else(
            || "nowhere: neither HF_HOME nor HOME is set".to_owned(),
            |hub| {
                let state = if hub.exists() { "" } else { " (does not exist yet)" };
                format!("{}{state}", hub.display())
            },
        );
        let mut lines = vec![
            (Mark::None, "mlx", format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("MLX_COMMIT"))),
            (
                Mark::None,
                "device",
                format!(
                    "{}{}, {} threads, {} {}",
                    machine.device,
                    machine.device_name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default(),
                    machine.threads,
                    std::env::consts::OS,
                    std::env::consts::ARCH
                ),
            ),
            (Mark::None, "MLX", mlx(machine)),
            (Mark::None, "BLAS", blas),
            (
                Mark::None,
                "memory",
                format!("{memory}, an engine uses up to {}", size(machine.default_budget)),
            ),
            (Mark::None, "hub cache", hub),
        ];
        let names = ["products", "", ""];
        lines.extend(names.into_iter().zip(self.products()).map(|(what, text)| (Mark::None, what, text)));
        lines.push((Mark::Good, "exactness", self.exactness()));
        if let Some(Ok(model)) = &self.model {
            lines.push((Mark::Good, "model", format!("loads, {}", model.exactness)));
            lines.extend(model.warnings.iter().map(|text| (Mark::Slow, "warning", text.clone())));
            let names = std::iter::once("steps").chain(std::iter::repeat(""));
            lines.extend(names.zip(model.steps()).map(|(what, text)| (Mark::None, what, text)));
        }
        lines.extend(self.slow().into_iter().map(|text| (Mark::Slow, "slow", text)));
        let broken = self.broken();
        if broken.is_empty() {
            lines.push((Mark::Good, "broken", "nothing".to_owned()));
        }
        lines.extend(broken.into_iter().map(|text| (Mark::Broken, "broken", text)));
        let line = |(mark, what, text): (Mark, &str, String)| {
            let text = printable(&text);
            format!("{} {what:<10} {text}\n", mark.show(colors))
        };
        lines.into_iter().map(line).collect()
    }

    /// Returns the speeds of matrix products, with bars relative to the fastest.
    fn products(&self) -> [String; 3] {
        let ProductRates { single, half, packed } = self.rates;
        let fastest = single.max(half).max(packed);
        [("f32", single), ("f16", half), ("4 bits", packed)]
            .map(|(what, rate)| format!("{what:<6} {} {rate:.1} GFLOP/s", bars::share(rate / fastest, 20)))
    }

    /// The object that `--json` prints. Scripts rely on it: fields may be added, never changed.
    fn to_json(&self) -> Value {
        let Self { machine, rates, widths, model, hub, computes } = self;
        let library = match &machine.blas {
            Blas::OpenBlas(path) => Some(path),
            _ => None,
        };
        json!({
            "tool": env!("CARGO_PKG_VERSION"),
            "commit": env!("MLX_COMMIT"),
            "device": machine.device,
            "architecture": machine.architecture,
            "device_name": machine.device_name,
            "is_virtual": machine.is_virtual(),
            "threads": machine.threads,
            "mlx_version": machine.mlx_version,
            "mlx_macos": machine.metal_library.map(|it| format!("{}.{}", it.macos.0, it.macos.1)),
            "m5_kernels": machine.metal_library.map(|it| it.has_m5_kernels),
            "blas": machine.blas.name(),
            "blas_library": library,
            "memory_bytes": machine.memory,
            "footprint_bytes": machine::footprint(),
            "tf32": machine.tf32,
            "default_memory_budget": machine.default_budget,
            "gflops": { "f32": rates.single, "f16": rates.half, "packed": rates.packed },
            "computes": computes,
            "exact_widths": widths,
            "model_exactness": model.as_ref().and_then(|model| Some(model.as_ref().ok()?.exactness)),
            "steps": model.as_ref().and_then(|model| Some(steps(&model.as_ref().ok()?.widths))),
            "model_warnings": model.as_ref().and_then(|model| Some(&model.as_ref().ok()?.warnings)),
            "hub_cache": hub,
            "slow": self.slow(),
            "broken": self.broken(),
        })
    }
}

/// Returns the version of MLX and, on a Mac, the systems that it is for.
fn mlx(machine: &Machine) -> String {
    let Some(library) = machine.metal_library else { return machine.mlx_version.clone() };
    let ((major, minor), m5) = (library.macos, if library.has_m5_kernels { "with" } else { "without" });
    format!("{}, for macOS {major}.{minor} and newer, {m5} kernels for M5", machine.mlx_version)
}

fn steps(widths: &[StepWidth]) -> Vec<Value> {
    let step =
        |it: &StepWidth| json!({ "rows": it.rows, "same_bits_as": it.same_bits_as, "seconds": it.seconds });
    widths.iter().map(step).collect()
}
