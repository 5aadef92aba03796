//! The Rust bindings of mlx-c, in the form that mlx-sys' own build script writes on macOS.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::process::output;

/// The language version of the bindings. mlx-rs expects the version that mlx-sys' build script uses.
const RUST_TARGET: &str = "1.73.0";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The root of mlx-c's sources
    mlx_c: PathBuf,
    /// A header to include first
    prelude: PathBuf,
    /// The C compiler's own headers
    builtin: PathBuf,
    /// The output file
    into: PathBuf,
    /// More options for libclang, such as the path of system headers
    #[arg(last = true)]
    clang: Vec<String>,
}

/// Runs [`fn@write`] in a separate process. libclang is found through an environment variable, which can only be set safely for a new
/// process.
pub(crate) fn write_with(
    libclang: &Path,
    mlx_c: &Path,
    prelude: &Path,
    builtin: &Path,
    clang: &[String],
    into: &Path,
) -> Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("bindings").args([mlx_c, prelude, builtin, into]).arg("--").args(clang);
    command.env("LIBCLANG_PATH", libclang);
    output(&mut command, "run this as `cargo xtask`").context("cannot generate the bindings of mlx-c")?;
    Ok(())
}

/// Runs the hidden subcommand.
pub(crate) fn write(arguments: &Arguments) -> Result<()> {
    let headers = headers(&arguments.mlx_c.join("mlx/c"))?;
    ensure!(!headers.is_empty(), "no header in {}", arguments.mlx_c.display());
    let mut builder = bindgen::Builder::default()
        .rust_target(RUST_TARGET.parse().context("bindgen no longer knows that Rust version")?)
        .clang_args(["-include".to_owned(), arguments.prelude.display().to_string()])
        .clang_arg(format!("-I{}", arguments.mlx_c.display()))
        .clang_args(["-isystem".to_owned(), arguments.builtin.display().to_string()])
        .clang_args(&arguments.clang)
        .blocklist_function("malloc")
        .blocklist_function("realloc");
    for header in headers {
        builder = builder.header(header.display().to_string());
    }
    fs::write(&arguments.into, with_modes_of_i8(&builder.generate()?.to_string()))?;
    Ok(())
}

/// Fixes the type of a padding mode: mlx-rs passes `*const i8`, but on Linux for Arm C's `char` is u8.
fn with_modes_of_i8(bindings: &str) -> String {
    const FUNCTION: &str = "pub fn mlx_pad";
    let mut parts = bindings.split(FUNCTION);
    let before = parts.next().unwrap_or_default().to_owned();
    let parts = parts.map(|part| part.replacen("mode: *const ::std::os::raw::c_char", "mode: *const i8", 1));
    std::iter::once(before).chain(parts).collect::<Vec<_>>().join(FUNCTION)
}

fn headers(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut headers = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_paddings_alone_become_i8() {
        let function =
            |name: &str, mode: &str| format!("pub fn {name}(a: mlx_array, mode: *const {mode});\n");
        let text = |of_pad: &str| {
            let names = ["mlx_open", "mlx_pad", "mlx_pad_symmetric", "mlx_quantize"];
            let modes = ["::std::os::raw::c_char", of_pad, of_pad, "::std::os::raw::c_char"];
            names.iter().zip(modes).map(|(name, mode)| function(name, mode)).collect::<String>()
        };
        assert_eq!(with_modes_of_i8(&text("::std::os::raw::c_char")), text("i8"));
        assert_eq!(with_modes_of_i8(""), "");
    }
}
