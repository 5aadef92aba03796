//! `cargo xtask check-aarch64`: checks Linux on Arm, from Linux on another processor. Runs the steps of the set-up with a cross compiler and
//! type-checks the workspace. Then runs the library's tests and two answers in qemu.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{output, succeeds};
use crate::setup::compile::Compiler;
use crate::setup::recipe::{self, Recipe};
use crate::setup::system::System;
use crate::setup::{assemble, bindings, wheels};
use crate::workspace;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-g++";
const INSTALL: &str = "install a cross compiler and an emulator (on Debian or Ubuntu: `apt install g++-aarch64-linux-gnu qemu-user`)";
/// The platforms of the packages of MLX and OpenBLAS.
const PLATFORMS: [&str; 2] = ["manylinux_2_35_aarch64", "manylinux_2_28_aarch64"];
/// A processor without SME. With SME, as in qemu's processor `max`, OpenBLAS computes wrong products in qemu 7.2.
const PROCESSOR: &str = "neoverse-n1";
/// A model with plain weights and one with packed weights.
const MODELS: [&str; 2] = ["llama-f32", "llama-q4-f16"];

pub(crate) fn run() -> Result<()> {
    let root = workspace::root()?;
    output(Command::new("rustup").args(["target", "add", TARGET]), "install Rust with rustup")?;
    let emulator = emulator()?;
    let folder = root.join("target/check-aarch64");
    let home = libraries(&folder, &emulator)?;
    println!("the self-check of the native libraries passes");

    let config = folder.join("cargo.toml");
    fs::write(&config, config_text(&home, &emulator))?;
    let cargo = |words: &[&str]| {
        let mut command = workspace::cargo();
        command
            .args(words)
            .args(["--locked", "--target", TARGET, "--config"])
            .arg(&config)
            .current_dir(&root);
        command
    };
    ensure!(
        cargo(&["check", "--workspace"]).status()?.success(),
        "the workspace does not compile; see above"
    );
    let tests = cargo(&["test", "--package", "mlx-core", "--lib"]).status()?;
    ensure!(tests.success(), "tests of mlx-core fail in qemu; see above");
    for model in MODELS {
        let mut generate = cargo(&["run", "--quiet", "--package", "mlx-cli", "--bin", "mlx"]);
        answer(&root.join("tests/golden"), model, generate.args(["--", "generate"]))?;
        println!("{model}: all tokens match the reference");
    }
    Ok(())
}

/// Returns the command of qemu, with the cross compiler's folder for the system's libraries.
fn emulator() -> Result<Vec<String>> {
    let loader = output(Command::new(COMPILER).arg("-print-file-name=ld-linux-aarch64.so.1"), INSTALL)?;
    let loader =
        Path::new(loader.trim()).canonicalize().context("the cross compiler has no dynamic loader")?;
    let system = loader.parent().and_then(Path::parent).context("the loader is in a folder lib")?;
    let qemu = ["qemu-aarch64", "qemu-aarch64-static"].into_iter();
    let mut qemu = qemu.filter(|name| succeeds(Command::new(name).arg("--version")));
    let qemu = qemu.next().with_context(|| format!("qemu-aarch64 does not start: {INSTALL}"))?;
    Ok([qemu, "-cpu", PROCESSOR, "-L", &system.display().to_string()].map(str::to_owned).to_vec())
}

/// Runs the steps of `cargo xtask setup`, and its self-check in qemu.
fn libraries(folder: &Path, emulator: &[String]) -> Result<PathBuf> {
    let recipe = Recipe::new()?;
    let home = folder.join(format!("mlx-{}", recipe.mlx));
    let wheels = System::Linux.wheels(&recipe.mlx);
    if !home.join("mlx").exists() {
        // MLX and its BLAS are for the target; libclang is for this machine.
        wheels::unpack(&wheels[..2], &PLATFORMS, &home)?;
        wheels::unpack(&wheels[2..], &[], &home)?;
    }
    recipe::write_helpers(&home)?;
    let compiler = Compiler::new(System::Linux, vec![COMPILER.to_owned()], &home, &recipe.mlx_c);
    let clang = assemble::find_file(&home, System::Linux.libclang())?;
    let clang = clang.parent().context("a library has a folder")?;
    let prelude = home.join("helpers/portability.h");
    let system = emulator.last().context("the emulator's system comes last")?;
    let options = [format!("--target={TARGET}"), format!("-isystem{system}/include")];
    let builtin = compiler.builtin_headers()?;
    bindings::write_with(clang, &recipe.mlx_c, &prelude, &builtin, &options, &home.join("bindings.rs"))?;
    compiler.library(&home)?;
    let program = compiler.self_check(&home)?;
    output(Command::new(&emulator[0]).args(&emulator[1..]).arg(program), INSTALL)
        .context("the native libraries were built, but their self-check fails")?;
    Ok(home)
}

/// Returns the Cargo config for linking and running programs of the target. It also replaces the build script of mlx-sys.
fn config_text(home: &Path, emulator: &[String]) -> String {
    let home = home.display().to_string();
    [
        format!("[target.{TARGET}]"),
        format!("linker = {COMPILER:?}"),
        format!("runner = {emulator:?}"),
        format!("[target.{TARGET}.mlx]"),
        format!("rustc-link-search = [{:?}]", format!("native={home}")),
        "rustc-link-lib = [\"dylib=mlxc\"]".to_owned(),
        format!("rustc-env = {{ OUT_DIR = {home:?} }}\n"),
    ]
    .join("\n")
}

/// Runs `generate` on a golden prompt and compares the tokens.
fn answer(golden: &Path, model: &str, generate: &mut Command) -> Result<()> {
    let path = golden.join(format!("expected/{model}.json"));
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let expected: Value = serde_json::from_str(&text)?;
    let case = &expected["cases"][0];
    let prompt = case["prompt"].as_str().context("a golden case has a prompt")?;
    let reference = case["tokens"].as_array().context("a golden case has tokens")?;
    generate.arg("--model").arg(golden.join("models").join(model));
    generate.args(["--json", "--raw", "--temperature", "0", "--max-tokens", &reference.len().to_string()]);
    let printed: Value = serde_json::from_str(&output(generate.args(["--prompt", prompt]), INSTALL)?)?;
    let tokens: Vec<&Value> =
        printed["tokens"].as_array().into_iter().flatten().map(|token| &token["id"]).collect();
    ensure!(tokens == reference.iter().collect::<Vec<_>>(), "{model}: {tokens:?} instead of {reference:?}");
    Ok(())
}
