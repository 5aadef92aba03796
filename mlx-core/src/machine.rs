//! The device, libraries and speed of this machine, for reports.

mod metal_library;

use std::path::PathBuf;
use std::time::Instant;

use mlx_rs::ops::{arange, matmul};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use crate::backend::Backend;
use crate::error::Result;
use crate::macos;
use crate::mlx_sys;
use crate::quantization::QuantizedMatrix;
use crate::quantization::{Mode, QuantScheme};
use crate::{array, backend};

pub use self::metal_library::MetalLibrary;

/// The hardware and libraries that an engine would use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// `cpu` or `gpu`.
    pub device: &'static str,
    /// True if `--device` or MLX_DEVICE names the device.
    pub is_device_selected: bool,
    /// The architecture of a GPU, such as `applegpu_g13s`, if it reports one.
    pub architecture: Option<String>,
    /// The name of the device, such as `Apple M4 Pro`, if it reports one.
    pub device_name: Option<String>,
    /// The version of MLX.
    pub mlx_version: String,
    /// MLX's compiled kernels, on a Mac.
    pub metal_library: Option<MetalLibrary>,
    /// The library that multiplies matrices on a CPU, as far as it can be detected.
    pub blas: Blas,
    /// The number of hardware threads available to this process.
    pub threads: usize,
    /// The total memory in bytes, if the system reports it.
    pub memory: Option<u64>,
    /// True if a GPU may reduce the precision of f32 products to TF32; see [`set_mlx_defaults`](crate::set_mlx_defaults).
    pub tf32: bool,
    /// The default memory budget of an engine, in bytes.
    pub default_budget: u64,
}

/// The library that multiplies matrices on a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blas {
    /// Apple's Accelerate, on every Mac.
    Accelerate,
    /// The path of OpenBLAS, combined with the kernels for few rows that `cargo xtask setup` builds.
    OpenBlas(PathBuf),
    /// Neither was detected in this process.
    Unknown,
}

impl Blas {
    /// The name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accelerate => "Accelerate",
            Self::OpenBlas(_) => "OpenBLAS with kernels for few rows",
            Self::Unknown => "unknown",
        }
    }

    fn find() -> Self {
        if cfg!(target_os = "macos") {
            return Self::Accelerate;
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let loaded = |name: &str| {
            let path = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
            path.map(PathBuf::from)
                .find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().contains(name)))
        };
        match (loaded("libscipy_openblas"), loaded("libmlxc")) {
            (Some(path), Some(_)) => Self::OpenBlas(path),
            _ => Self::Unknown,
        }
    }
}

impl Machine {
    /// Returns true if the device is a GPU without bf16 hardware: the first two generations of Apple silicon.
    pub fn lacks_bf16(&self) -> bool {
        let is_old = |name: &String| ["applegpu_g13", "applegpu_g14"].iter().any(|old| name.starts_with(old));
        self.architecture.as_ref().is_some_and(is_old)
    }

    /// Returns true if the GPU has the matrix units of M5 and later. MLX uses them on macOS 26.2 or newer.
    pub fn has_m5_units(&self) -> bool {
        let generation = |name: &String| {
            let digits = name.strip_prefix("applegpu_g")?;
            digits.trim_end_matches(|letter: char| letter.is_ascii_lowercase()).parse::<u32>().ok()
        };
        self.architecture.as_ref().and_then(generation).is_some_and(|generation| generation >= 17)
    }

    /// Returns true if the GPU is that of a virtual Mac. MLX's kernels may abort on it.
    pub fn is_virtual(&self) -> bool {
        self.device_name.as_ref().is_some_and(|name| name.to_lowercase().contains("paravirtual"))
    }

    /// Inspects this machine.
    pub fn detect() -> Result<Self> {
        Ok(Self {
            device: backend::device_name()?,
            is_device_selected: backend::is_device_selected()?,
            architecture: mlx_sys::device_text(c"architecture")?,
            device_name: mlx_sys::device_text(c"device_name")?,
            mlx_version: mlx_version()?,
            metal_library: MetalLibrary::find(),
            blas: Blas::find(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory(),
            tf32: std::env::var(mlx_sys::TF32).map_or(true, |value| value.trim() != "0"),
            default_budget: backend::default_memory_budget()?,
        })
    }
}

/// The version of MLX.
pub fn mlx_version() -> Result<String> {
    mlx_sys::version()
}

fn memory() -> Option<u64> {
    if let Ok(Some(shared)) = backend::gpu_memory() {
        return Some(shared.total);
    }
    macos::memory().or_else(|| kilobytes("/proc/meminfo", "MemTotal:"))
}

/// Returns the size of an entry in bytes, from a file with sizes in kB.
fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Returns the memory use of this process in bytes, if the system reports it. On a Mac, this is Activity Monitor's value, which includes
/// GPU memory. Elsewhere, it is the resident memory.
pub fn footprint() -> Option<u64> {
    macos::footprint().or_else(|| kilobytes("/proc/self/status", "VmRSS:"))
}

/// Measures how many bytes per second the device reads from its memory.
pub fn read_speed() -> Result<f64> {
    const NUMBERS: i32 = 32 << 20;
    Backend::detect()?;
    let numbers = arange::<_, f32>(None, NUMBERS, None)?;
    numbers.eval()?;
    let time = || -> Result<f64> {
        let begun = Instant::now();
        numbers.max(None)?.eval()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    time()?;
    let fastest = (0..3).map(|_| time()).collect::<Result<Vec<f64>>>()?.into_iter().fold(f64::MAX, f64::min);
    Ok(4.0 * f64::from(NUMBERS) / fastest.max(1e-9))
}

/// The speed of multiplying 64 rows by a matrix, in billions of operations per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProductRates {
    /// In f32.
    pub single: f64,
    /// With f16 weights, in the type that the backend uses for them.
    pub half: f64,
    /// With 4-bit quantized weights.
    pub packed: f64,
}

/// The rows and columns of the matrix.
const WIDTH: i32 = 1024;
const ROWS: i32 = 64;

impl ProductRates {
    /// Measures each rate for a few milliseconds.
    pub fn measure() -> Result<Self> {
        let count = WIDTH * WIDTH;
        let numbers = arange::<_, f32>(None, count, None)?.sin()?;
        let matrix = numbers.reshape(&[WIDTH, WIDTH])?;
        let rows = array::slice_axis(&matrix, 0, 0, ROWS)?.contiguous()?;
        let packing = QuantScheme { mode: Mode::Affine, bits: 4, group_size: 64 };
        let packed = QuantizedMatrix::quantize(&matrix, packing)?.evaluated()?;
        let dtype = if Backend::detect()?.keep_float_type { Dtype::Float16 } else { Dtype::Float32 };
        let half_rows = rows.as_dtype(dtype)?;
        // The layout of a model's matrices.
        let [single, half] = [matrix.swap_axes(0, 1)?, matrix.as_dtype(Dtype::Float16)?.swap_axes(0, 1)?];
        eval([&rows, &half_rows, &single, &half])?;
        Ok(Self {
            single: rate(|| Ok(matmul(&rows, &single)?))?,
            half: rate(|| Ok(matmul(&half_rows, &half)?))?,
            packed: rate(|| packed.multiply(&rows))?,
        })
    }
}

/// Returns the best rate of five runs. Other load on the machine can only make a run slower.
fn rate(product: impl Fn() -> Result<Array>) -> Result<f64> {
    let operations = 2.0 * f64::from(ROWS) * f64::from(WIDTH) * f64::from(WIDTH);
    product()?.eval()?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        product()?.eval()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(operations / best / 1e9)
}

/// Returns true if the device computes a small matrix product correctly.
pub fn computes() -> Result<bool> {
    let side = 12_usize;
    let numbers: Vec<f32> = (0..side * side).map(|index| (index % 31) as f32 - 15.0).collect();
    let matrix = Array::from_slice(&numbers, &[side as i32, side as i32]);
    let expected = (0..side * side).map(|index| {
        let (row, column) = (index / side, index % side);
        (0..side).map(|inner| numbers[row * side + inner] * numbers[inner * side + column]).sum::<f32>()
    });
    let product = matmul(&matrix, &matrix)?;
    // The values are integers, so every order of summation gives the same result.
    Ok(expected.map(f32::to_bits).eq(array::host::<f32>(&product)?.iter().map(|number| number.to_bits())))
}

/// Returns the batch sizes among 1, 2, 4 ... 32 at which a row of a small matrix product has the same bits as at batch size 8.
pub fn exact_batch_sizes() -> Result<Vec<i32>> {
    let matrix = arange::<_, f32>(None, WIDTH * WIDTH, None)?.sin()?.reshape(&[WIDTH, WIDTH])?;
    let row = |width| -> Result<Vec<u32>> {
        let product = matmul(array::slice_axis(&matrix, 0, 0, width)?, &matrix)?;
        let numbers = array::host::<f32>(&product)?;
        Ok(numbers[..WIDTH as usize].iter().map(|number| number.to_bits()).collect())
    };
    let standard = row(8)?;
    let mut widths = Vec::new();
    for width in [1, 2, 4, 8, 16, 32] {
        if row(width)? == standard {
            widths.push(width);
        }
    }
    Ok(widths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(architecture: &str, name: &str) -> Machine {
        Machine {
            device: "gpu",
            is_device_selected: false,
            architecture: Some(architecture.to_owned()),
            device_name: Some(name.to_owned()),
            mlx_version: String::new(),
            metal_library: None,
            blas: Blas::Accelerate,
            threads: 1,
            memory: None,
            tf32: false,
            default_budget: 0,
        }
    }

    #[test]
    fn generations_of_apples_gpus_are_told_apart() {
        let known = [
            ("applegpu_g13s", "Apple M1 Max", [true, false, false]),
            ("applegpu_g14g", "Apple M2", [true, false, false]),
            ("applegpu_g16p", "Apple A18 Pro", [false, false, false]),
            ("applegpu_g16s", "Apple M4 Max", [false, false, false]),
            ("applegpu_g17g", "Apple M5", [false, true, false]),
            ("applegpu_g18x", "Apple M6 Ultra", [false, true, false]),
            ("applegpu_g13g", "Apple Paravirtual device", [true, false, true]),
            ("sm_90", "NVIDIA H100 80GB HBM3", [false, false, false]),
        ];
        for (architecture, name, expected) in known {
            let machine = gpu(architecture, name);
            let found = [machine.lacks_bf16(), machine.has_m5_units(), machine.is_virtual()];
            assert_eq!(found, expected, "{architecture}");
        }
    }
}
