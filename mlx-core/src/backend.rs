//! Selects the device that models run on, and holds the choices that differ between a GPU and a CPU as one value. Invariant: only this file
//! queries the kind of device.

use std::sync::{Mutex, PoisonError};

use mlx_rs::{Device, DeviceType};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::macos;
use crate::mlx_sys;
use crate::stream_errors::report_to_waits_only;
use crate::variant_names::impl_variant_names;

/// Whether the set-up for Linux has put kernels in place of what MLX does on a CPU. MLX's own products make f32 of a whole matrix of halves
/// first, each time, and its rope and attention are a dozen operations each.
const HAS_KERNELS: bool = option_env!("MLX_CPU_KERNELS").is_some();

/// How models are computed on a device. Every choice gives the model's numbers on every device; only speed and rounding
/// differ. It is made once, when a model is loaded, and handed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the choices are independent of each other")]
pub struct Backend {
    /// Attention is one operation, which suits a GPU, where MLX has a kernel for it. Otherwise it is written out.
    pub fused_attention: bool,
    /// The kernels that this operation has. They decide the memory of a pass, and with it the lengths of prefill chunks.
    pub attention_kernels: AttentionKernels,
    /// Attention of a single row is one operation, also where that of more rows is written out.
    pub fused_row_attention: bool,
    /// Rotary embedding is one operation, too.
    pub fused_rope: bool,
    /// The same where fewer than 32 numbers of a head are rotated. MLX 0.32.2 for NVIDIA GPUs asks there for blocks that no GPU has, as
    /// soon as rows times a fourth of the heads are 128.
    pub fused_narrow_rope: bool,
    /// Several steps at once are multiplied by a stack of packed matrices. MLX 0.32.2 for NVIDIA GPUs takes its first matrix for all of it.
    pub broadcast_stacks: bool,
    /// A step of the gated delta rule is one operation, after a check at load. MLX has kernels for it only on Metal; a CPU uses the rule
    /// written out, which is the reference.
    pub fused_gated_delta: bool,
    /// Packed weights stay packed.
    pub keeps_packed: bool,
    /// A model computes in the checkpoint's type. On a CPU MLX has no fast kernels for halves: models compute in f32 there.
    pub keeps_floats: bool,
    /// Where a model computes in f32, matrices of halves stay halves: products of f32 read them as they are.
    pub keeps_halves: bool,
    /// Experts of halves can be multiplied with. MLX's CPU backend does so in f32 alone.
    pub half_experts: bool,
    /// The next decode step is started before the last one's tokens are emitted. On a CPU the host's work takes a core from the step that
    /// it would overlap with: on two cores that gained nothing.
    pub pipelined: bool,
    /// The first layers of the next decode step are issued before the tokens of the last one are drawn, with tokens that the device
    /// guesses, so that it has work meanwhile.
    pub runs_ahead: bool,
    /// The rows of a decode step attend at once, over pools of their keys and values, instead of one by one: as few operations for many
    /// rows as for one. Exact steps do not.
    pub batched_decode: bool,
}

impl Backend {
    /// What suits a CPU.
    pub const CPU: Self = Self {
        fused_attention: false,
        attention_kernels: AttentionKernels::None,
        fused_row_attention: HAS_KERNELS,
        fused_rope: HAS_KERNELS,
        fused_narrow_rope: true,
        broadcast_stacks: true,
        fused_gated_delta: false,
        keeps_packed: true,
        keeps_floats: false,
        keeps_halves: HAS_KERNELS,
        half_experts: false,
        pipelined: false,
        runs_ahead: false,
        batched_decode: false,
    };

    /// What suits a GPU.
    pub const GPU: Self = Self {
        fused_attention: true,
        attention_kernels: AttentionKernels::Metal,
        fused_row_attention: true,
        fused_rope: true,
        fused_narrow_rope: true,
        broadcast_stacks: true,
        fused_gated_delta: true,
        keeps_packed: true,
        keeps_floats: true,
        keeps_halves: false,
        half_experts: true,
        pipelined: true,
        runs_ahead: true,
        batched_decode: true,
    };

    /// What suits an NVIDIA GPU.
    pub const CUDA: Self = Self {
        attention_kernels: AttentionKernels::Cuda,
        fused_narrow_rope: false,
        broadcast_stacks: false,
        fused_gated_delta: false,
        ..Self::GPU
    };

    /// Returns the choices for the default device. The first call selects the device and starts MLX's scheduler.
    pub fn detect() -> Result<Self> {
        chosen()?;
        report_to_waits_only()?;
        if !is_gpu()? {
            return Ok(Self::CPU);
        }
        Ok(if is_cuda()? { Self::CUDA } else { Self::GPU })
    }
}

/// The set of attention kernels of a device. Each covers some shapes; MLX writes the others out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKernels {
    /// None: a CPU.
    None,
    /// Kernels of Metal.
    Metal,
    /// Kernels of MLX for NVIDIA GPUs, and cuDNN.
    Cuda,
}

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A GPU.
    Gpu,
}

impl_variant_names!(DeviceKind, |_| "it must be cpu or gpu".to_owned());

/// The variable that selects the device of processes without `--device`.
pub const DEVICE: &str = "MLX_DEVICE";

/// The device of this process, once it is selected, and true if a flag or the variable names it.
static CHOSEN: Mutex<Option<(DeviceKind, bool)>> = Mutex::new(None);

/// Selects the device of this process. Call it before anything computes: arrays and streams belong to the device that was the default when
/// they were made.
///
/// # Errors
/// There is no such device, or this process has computed on the other one.
pub fn use_device(kind: DeviceKind) -> Result<()> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    match *chosen {
        Some((before, _)) if before != kind => Err(Error::option(
            "device",
            format!("is {kind}, but this process computes on the {before} already"),
        )),
        _ => {
            set_default(kind).map_err(|why| Error::option("device", why))?;
            *chosen = Some((kind, true));
            Ok(())
        }
    }
}

/// Returns true if a flag or the variable selected the device. By default the device is the GPU, if one exists.
pub fn device_is_asked_for() -> Result<bool> {
    Ok(chosen()?.1)
}

/// Returns the device of this process. The first call selects it, unless [`use_device`] did.
fn chosen() -> Result<(DeviceKind, bool)> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = *chosen {
        return Ok(known);
    }
    let now = match std::env::var_os(DEVICE) {
        None => (default_kind()?, false),
        Some(text) => {
            let wrong = |why| Error::environment(DEVICE, why);
            let text = text.to_string_lossy();
            let kind = text.parse().map_err(|why| wrong(format!("is {text:?}; {why}")))?;
            set_default(kind).map_err(wrong)?;
            (kind, true)
        }
    };
    Ok(*chosen.insert(now))
}

/// Makes a device MLX's default. Fails with the reason.
fn set_default(kind: DeviceKind) -> Result<(), String> {
    let device = match kind {
        DeviceKind::Cpu => Device::cpu(),
        DeviceKind::Gpu if mlx_sys::has_gpu() => Device::gpu(),
        DeviceKind::Gpu => return Err("is gpu, but MLX finds no GPU here; use cpu".to_owned()),
    };
    Device::set_default(&device);
    Ok(())
}

fn default_kind() -> Result<DeviceKind> {
    Ok(match Device::try_default()?.get_type()? {
        DeviceType::Gpu => DeviceKind::Gpu,
        DeviceType::Cpu => DeviceKind::Cpu,
    })
}

/// The default device in messages and reports: `cpu` or `gpu`.
pub fn device_name() -> Result<&'static str> {
    Ok(if is_gpu()? { "gpu" } else { "cpu" })
}

/// The memory that a GPU shares with the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuMemory {
    /// What the system recommends that a program uses at a time, in bytes.
    pub(crate) recommended: u64,
    /// All memory, in bytes.
    pub(crate) total: u64,
}

/// What a Mac says of its GPU's memory; `None` on other devices.
pub(crate) fn gpu_memory() -> Result<Option<GpuMemory>> {
    if !is_gpu()? {
        return Ok(None);
    }
    let recommended = mlx_sys::device_size(c"max_recommended_working_set_size")?;
    let total = mlx_sys::device_size(c"memory_size")?;
    Ok(recommended.zip(total).map(|(recommended, total)| GpuMemory { recommended, total }))
}

/// The bytes that arrays may take unless options say otherwise: what the system recommends for a Mac's GPU, and MLX's own limit
/// elsewhere.
pub fn default_memory_budget() -> Result<u64> {
    let memory = gpu_memory()?;
    let limit = mlx_rs::memory::memory_limit()? as u64;
    Ok(match memory {
        Some(memory) => memory.recommended.min(limit),
        None if is_gpu()? => limit / 3 * 2,
        None => processor_budget(limit, macos::memory()),
    })
}

/// The budget on a CPU. MLX's limit is four fifths of all memory there, but on a Mac it is that of the GPU: almost all memory.
fn processor_budget(limit: u64, memory: Option<u64>) -> u64 {
    memory.map_or(limit, |memory| limit.min(memory / 5 * 4))
}

/// Whether the GPU is NVIDIA's, whose architectures are called `sm_90` and the like.
fn is_cuda() -> Result<bool> {
    Ok(mlx_sys::device_text(c"architecture")?.is_some_and(|name| name.starts_with("sm_")))
}

fn is_gpu() -> Result<bool> {
    chosen()?;
    Ok(default_kind()? == DeviceKind::Gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_or_refused() {
        for kind in [DeviceKind::Cpu, DeviceKind::Gpu] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("cuda".parse::<DeviceKind>(), Err("it must be cpu or gpu".to_owned()));
    }

    #[test]
    fn a_process_stays_on_its_device() {
        let _turn = crate::device_lock::device();
        let name = device_name().expect("a device");
        let (own, other) = match name {
            "gpu" => (DeviceKind::Gpu, DeviceKind::Cpu),
            _ => (DeviceKind::Cpu, DeviceKind::Gpu),
        };
        use_device(own).expect("it is chosen already");
        let refused = use_device(other).expect_err("arrays may be on the first").to_string();
        assert_eq!(refused, format!("device: is {other}, but this process computes on the {own} already"));
        assert_eq!(device_name().expect("a device"), name);
    }

    #[test]
    fn the_system_keeps_a_fifth_of_the_memory() {
        assert_eq!(processor_budget(70, Some(75)), 60);
        assert_eq!(processor_budget(50, Some(75)), 50);
        assert_eq!(processor_budget(70, None), 70);
    }
}
