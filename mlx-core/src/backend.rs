//! Selects the device for models, and collects the choices that differ between a GPU and a CPU. Invariant: only this file queries the
//! kind of device.

use std::sync::{Mutex, PoisonError};

use mlx_rs::{Device, DeviceType};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::macos;
use crate::mlx_sys;
use crate::stream_errors::report_to_waits_only;
use crate::variant_names::impl_variant_names;

/// True if the Linux setup has replaced MLX's CPU operations by our kernels. MLX's own products convert a whole half-precision matrix to
/// f32 each time, and its rope and attention are a dozen operations each.
const HAS_KERNELS: bool = option_env!("MLX_CPU_KERNELS").is_some();

/// The choices for computing models on a device. No choice changes the model's function; only speed and rounding differ. They are
/// made once, when a model is loaded, and then passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the choices are independent of each other")]
pub struct Backend {
    /// Computes attention as one operation, for GPUs with an MLX kernel for it. Otherwise it consists of several operations.
    pub fused_attention: bool,
    /// The kernels of this operation. They determine the memory of a pass, and so the lengths of prefill chunks.
    pub attention_kernels: AttentionKernels,
    /// Computes attention of a single row as one operation, even if more rows use several.
    pub fused_row_attention: bool,
    /// Computes rotary embeddings as one operation.
    pub fused_rope: bool,
    /// Computes the error function fast. MLX's CPU backend computes one number at a time.
    pub fast_erf: bool,
    /// Like `fused_rope`, if fewer than 32 numbers of a head are rotated. There MLX 0.32.2 for NVIDIA GPUs requests blocks that no GPU
    /// supports if rows times a fourth of the heads reach 128.
    pub fused_narrow_rope: bool,
    /// Multiplies several steps at once by a stack of packed matrices. MLX 0.32.2 for NVIDIA GPUs uses the first matrix for all of them.
    pub broadcast_stacks: bool,
    /// Computes a step of the gated delta rule as one operation, after a check at load. MLX has kernels for it only on Metal. A CPU uses
    /// separate operations, which are the reference.
    pub fused_gated_delta: bool,
    /// Keeps packed weights packed.
    pub keeps_packed: bool,
    /// Computes in the checkpoint's type. MLX has no fast half-precision CPU kernels, so models compute in f32 there.
    pub keep_float_type: bool,
    /// Keeps half-precision matrices if a model computes in f32. The f32 products read them directly.
    pub keep_f16_matrices: bool,
    /// Supports half-precision experts. MLX's CPU backend multiplies experts only in f32.
    pub half_experts: bool,
    /// Starts the next decode step before the tokens of the last one are emitted. On a CPU, the host's work takes a core from the
    /// overlapping step, which gained nothing on two cores.
    pub pipelined: bool,
    /// Issues the first layers of the next decode step before the tokens of the last step are drawn, with tokens that the device guesses.
    /// This keeps the device busy.
    pub lookahead: bool,
    /// Computes attention of all rows of a decode step at once, over pools of their keys and values. The number of operations then does not
    /// depend on the number of rows. Exact steps do not use it.
    pub batched_decode: bool,
}

impl Backend {
    /// The choices for a CPU.
    pub const CPU: Self = Self {
        fused_attention: false,
        attention_kernels: AttentionKernels::None,
        fused_row_attention: HAS_KERNELS,
        fused_rope: HAS_KERNELS,
        fast_erf: false,
        fused_narrow_rope: true,
        broadcast_stacks: true,
        fused_gated_delta: false,
        keeps_packed: true,
        keep_float_type: false,
        keep_f16_matrices: HAS_KERNELS,
        half_experts: false,
        pipelined: false,
        lookahead: false,
        batched_decode: false,
    };

    /// The choices for a Mac's GPU.
    pub const GPU: Self = Self {
        fused_attention: true,
        attention_kernels: AttentionKernels::Metal,
        fused_row_attention: true,
        fused_rope: true,
        fast_erf: true,
        fused_narrow_rope: true,
        broadcast_stacks: true,
        fused_gated_delta: true,
        keeps_packed: true,
        keep_float_type: true,
        keep_f16_matrices: false,
        half_experts: true,
        pipelined: true,
        lookahead: true,
        batched_decode: true,
    };

    /// The choices for an NVIDIA GPU.
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

/// The set of attention kernels of a device. Each kernel covers some shapes. MLX uses several operations for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKernels {
    /// No kernels, as on a CPU.
    None,
    /// Metal kernels.
    Metal,
    /// MLX's kernels for NVIDIA GPUs, and cuDNN.
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

/// The environment variable that selects the device of processes without `--device`.
pub const DEVICE: &str = "MLX_DEVICE";

/// The selected device of this process, and true if a flag or the variable selected it.
static SELECTED: Mutex<Option<(DeviceKind, bool)>> = Mutex::new(None);

/// Selects the device of this process. Call it before any computation: arrays and streams belong to the device that was the default
/// when they were created.
///
/// # Errors
/// Fails if there is no such device, or if this process has already computed on the other one.
pub fn use_device(kind: DeviceKind) -> Result<()> {
    let mut chosen = SELECTED.lock().unwrap_or_else(PoisonError::into_inner);
    match *chosen {
        Some((before, _)) if before != kind => Err(Error::option(
            "device",
            format!("is {kind}, but this process already computes on the {before}"),
        )),
        _ => {
            set_default(kind).map_err(|why| Error::option("device", why))?;
            *chosen = Some((kind, true));
            Ok(())
        }
    }
}

/// Returns true if a flag or the variable selected the device. By default the device is the GPU, if one exists.
pub fn is_device_selected() -> Result<bool> {
    Ok(chosen()?.1)
}

/// Returns the device of this process. The first call selects it, unless [`use_device`] did.
fn chosen() -> Result<(DeviceKind, bool)> {
    let mut chosen = SELECTED.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Makes a device MLX's default. An error contains the reason.
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

/// The name of the default device in messages and reports: `cpu` or `gpu`.
pub fn device_name() -> Result<&'static str> {
    Ok(if is_gpu()? { "gpu" } else { "cpu" })
}

/// The memory that a GPU shares with the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuMemory {
    /// The memory that the system recommends as a program's maximum, in bytes.
    pub(crate) recommended: u64,
    /// The total memory, in bytes.
    pub(crate) total: u64,
}

/// Returns the GPU memory of a Mac; `None` on other devices.
pub(crate) fn gpu_memory() -> Result<Option<GpuMemory>> {
    if !is_gpu()? {
        return Ok(None);
    }
    let recommended = mlx_sys::device_size(c"max_recommended_working_set_size")?;
    let total = mlx_sys::device_size(c"memory_size")?;
    Ok(recommended.zip(total).map(|(recommended, total)| GpuMemory { recommended, total }))
}

/// The default memory budget for arrays, in bytes. For a Mac's GPU, it is the smaller of the system's recommendation and MLX's limit. For
/// other GPUs, it is two thirds of MLX's limit. For CPUs, it is MLX's limit, but on a Mac at most four fifths of the memory.
pub fn default_memory_budget() -> Result<u64> {
    let memory = gpu_memory()?;
    let limit = mlx_rs::memory::memory_limit()? as u64;
    Ok(match memory {
        Some(memory) => memory.recommended.min(limit),
        None if is_gpu()? => limit / 3 * 2,
        None => processor_budget(limit, macos::memory()),
    })
}

/// Returns the budget on a CPU. MLX's limit is four fifths of the memory there. On a Mac, however, it is the GPU's: almost all memory.
fn processor_budget(limit: u64, memory: Option<u64>) -> u64 {
    memory.map_or(limit, |memory| limit.min(memory / 5 * 4))
}

/// Returns true if the GPU is NVIDIA's. Its architecture has a name like `sm_90`.
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
        assert_eq!(refused, format!("device: is {other}, but this process already computes on the {own}"));
        assert_eq!(device_name().expect("a device"), name);
    }

    #[test]
    fn the_system_keeps_a_fifth_of_the_memory() {
        assert_eq!(processor_budget(70, Some(75)), 60);
        assert_eq!(processor_budget(50, Some(75)), 50);
        assert_eq!(processor_budget(70, None), 70);
    }
}
