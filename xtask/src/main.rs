//! `cargo xtask`: tasks around the code, from the native libraries to the house rules.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a terminal program prints its report")]

mod bench;
mod charts;
mod check_aarch64;
mod check_macos;
mod clients;
mod dist;
mod fuzz;
mod golden;
mod mach_o;
mod page;
mod process;
mod product;
mod proxies;
mod python;
mod setup;
mod suite;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks around the code")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Assemble the native libraries from packages; a second run has nothing to do
    Setup {
        /// Leave MLX to be compiled with the next build, on macOS; needs Xcode and CMake
        #[arg(long)]
        from_source: bool,
        /// Take MLX for a GPU of NVIDIA, on Linux; downloads 1.5 GB
        #[arg(long, conflicts_with = "from_source")]
        cuda: bool,
        /// Leave out our kernels for processors, on Linux: MLX as it is in its package, many times slower
        #[arg(long, conflicts_with_all = ["from_source", "cuda"])]
        plain: bool,
    },
    /// Set up, build with optimization and run `mlx chat` with these arguments
    #[command(disable_help_flag = true)]
    Chat {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Set up and run all tests, more cases of each with `--full`; with other arguments, run `cargo test` with them
    #[command(disable_help_flag = true)]
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Regenerate the golden fixtures with mlx-lm and transformers from PyPI
    Golden {
        /// The folder to write to instead of tests/golden
        arguments: Vec<String>,
    },
    /// Run third-party clients against the server
    Clients,
    /// Try replicas of the server behind nginx, HAProxy and Envoy, whichever are installed
    Proxies,
    /// Try the server's page in a headless Chromium; CHROMIUM names another browser of its kind
    Page {
        /// Skip it on a machine without Chromium or Node.js, unless CHROMIUM is set
        #[arg(long)]
        if_installed: bool,
        /// Measure what a growing answer costs the browser, in place of the test
        #[arg(long)]
        speed: bool,
    },
    /// Measure speed and memory beside other programs, with their packages from PyPI; --svg draws the charts of docs/benchmarks.md
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fuzz the readers of files and requests; needs nightly and cargo-fuzz
    Fuzz {
        /// One target of fuzz/fuzz_targets; without it all of them, one after the other
        target: Option<String>,
        /// How long each of them runs
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Make a release: a folder that can be moved, its archive and the checksum, in target/dist
    Dist(dist::Arguments),
    /// Check the house rules that a machine can check
    Tidy,
    /// Type-check the workspace for macOS; needs rustup, Python with venv, and access to PyPI
    CheckMacos {
        /// Skip it where rustup has not installed Rust's library for macOS
        #[arg(long)]
        if_installed: bool,
    },
    /// Check Linux on Arm from Linux on another processor, in qemu; needs rustup, a cross compiler, Python with pip, and access to PyPI
    CheckAarch64,
    /// Write the bindings of mlx-c: a step of `setup` that runs as a process of its own
    #[command(hide = true)]
    Bindings(setup::bindings::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup { from_source: true, .. } => setup::leave_to_mlx_sys(),
        Task::Setup { cuda: true, .. } => setup::assemble_for_cuda(),
        Task::Setup { plain: true, .. } => setup::assemble_plain(),
        Task::Setup { .. } => setup::assemble(),
        Task::Chat { arguments } => product::chat(&arguments),
        Task::Test { arguments } => product::test(&arguments),
        Task::Golden { arguments } => golden::run(&arguments),
        Task::Bench { arguments } => bench::run(&arguments),
        Task::Clients => clients::run(),
        Task::Proxies => proxies::run(),
        Task::Page { if_installed, speed } => page::run(if_installed, speed),
        Task::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Task::Tidy => tidy::run(),
        Task::Dist(arguments) => dist::run(&arguments),
        Task::CheckMacos { if_installed } => check_macos::run(if_installed),
        Task::CheckAarch64 => check_aarch64::run(),
        Task::Bindings(arguments) => setup::bindings::write(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
