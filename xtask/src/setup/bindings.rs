//! The Rust bindings of mlx-c, as mlx-sys' own build script writes them on macOS.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::process::output;

/// mlx-rs is written for bindings of this language version, as mlx-sys' build script makes them.
const RUST_TARGET: &str = "1.73.0";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The root of mlx-c's sources
    mlx_c: PathBuf,
    /// A header that is read first
    prelude: PathBuf,
    /// The C compiler's own headers
    builtin: PathBuf,
    /// The file to write
    into: PathBuf,
    /// Where the system's headers are, if libclang does not know
    #[arg(long)]
    sdk: Option<PathBuf>,
}

/// Runs [`fn@write`] in a process of its own: libclang is found through an environment variable, which can only be set safely for a
/// new process.
pub(super) fn write_with(
    libclang: &Path,
    mlx_c: &Path,
    prelude: &Path,
    builtin: &Path,
    sdk: Option<&Path>,
    into: &Path,
) -> Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("bindings").args([mlx_c, prelude, builtin, into]).env("LIBCLANG_PATH", libclang);
    if let Some(sdk) = sdk {
        command.arg("--sdk").arg(sdk);
    }
    output(&mut command, "run this as `cargo xtask`").context("the bindings for mlx-c could not be made")?;
    Ok(())
}

/// The hidden subcommand.
pub(crate) fn write(arguments: &Arguments) -> Result<()> {
    let headers = headers(&arguments.mlx_c.join("mlx/c"))?;
    ensure!(!headers.is_empty(), "no header in {}", arguments.mlx_c.display());
    let mut builder = bindgen::Builder::default()
        .rust_target(RUST_TARGET.parse().context("bindgen no longer knows that Rust version")?)
        .clang_args(["-include".to_owned(), arguments.prelude.display().to_string()])
        .clang_arg(format!("-I{}", arguments.mlx_c.display()))
        .clang_args(["-isystem".to_owned(), arguments.builtin.display().to_string()])
        .blocklist_function("malloc")
        .blocklist_function("realloc");
    if let Some(sdk) = &arguments.sdk {
        builder = builder.clang_args(["-isysroot".to_owned(), sdk.display().to_string()]);
    }
    for header in headers {
        builder = builder.header(header.display().to_string());
    }
    builder.generate()?.write_to_file(&arguments.into)?;
    Ok(())
}

fn headers(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut headers = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();
    Ok(headers)
}
