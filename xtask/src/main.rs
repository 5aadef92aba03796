//! `cargo xtask`: development tasks, from the native libraries to the house rules.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a terminal program prints its report")]

mod bench;
mod chaos;
mod charts;
mod check_aarch64;
mod check_macos;
mod clients;
mod cross_macos;
mod dist;
mod fuzz;
mod golden;
mod mach_o;
mod page;
mod process;
mod product;
mod proxies;
mod python;
mod real;
mod real_model;
mod recording;
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
    /// Assemble the native libraries from packages; does nothing if they exist
    Setup {
        /// Let mlx-sys compile MLX in the next build, on macOS; needs Xcode and CMake
        #[arg(long)]
        from_source: bool,
        /// Use MLX for NVIDIA GPUs, on Linux; downloads 1.5 GB
        #[arg(long, conflicts_with = "from_source")]
        cuda: bool,
        /// Use MLX's package without our CPU kernels, on Linux; many times slower
        #[arg(long, conflicts_with_all = ["from_source", "cuda"])]
        plain: bool,
    },
    /// Set up, build with optimization and run `mlx chat` with these arguments; --real chats with a small trained model from PyPI
    #[command(disable_help_flag = true)]
    Chat {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Set up and run all tests; --full runs more cases; other arguments go to `cargo test`
    #[command(disable_help_flag = true)]
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Regenerate the golden fixtures with mlx-lm and transformers from PyPI
    Golden {
        /// The output folder instead of tests/golden
        arguments: Vec<String>,
    },
    /// Run third-party clients against the server
    Clients,
    /// Test replicas of the server behind the installed proxies: nginx, HAProxy and Envoy
    Proxies,
    /// Test the server's page in a headless Chromium; the variable CHROMIUM selects another browser
    Page {
        /// Skip the test on a machine without Chromium or Node.js, unless CHROMIUM is set
        #[arg(long)]
        if_installed: bool,
        /// Measure the browser's time for a growing answer instead of running the test
        #[arg(long)]
        speed: bool,
        /// Write mlx-server/page/vendor from the npm packages of tests/page/package-lock.json instead of running the test
        #[arg(long)]
        vendor: bool,
    },
    /// Measure speed and memory, compared with other programs from PyPI; --svg draws the charts of docs/benchmarks.md
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Kill engines at random moments under 64 clients of four protocols, and compare all answers with those without deaths; or disturb ranks
    Chaos(chaos::Arguments),
    /// Measure the quality of answers on two small trained models from PyPI, and write docs/quality.md
    Real {
        /// Also measure llama.cpp on the same files
        #[arg(long)]
        peers: bool,
    },
    /// Record the terminal and picture the page for the README, with a small trained model from PyPI
    Recording,
    /// Fuzz the readers of files and requests; needs nightly and cargo-fuzz
    Fuzz {
        /// One target of fuzz/fuzz_targets; by default all of them, one after the other
        target: Option<String>,
        /// Seconds per target
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Make a release in target/dist: a relocatable folder, its archive and the checksum
    Dist(dist::Arguments),
    /// Check the house rules
    Tidy,
    /// Type-check the workspace for macOS; needs rustup, Python with venv, and access to PyPI
    CheckMacos {
        /// Skip the check if rustup has not installed Rust's library for macOS
        #[arg(long)]
        if_installed: bool,
    },
    /// Check Linux on Arm in qemu, from Linux on another processor; needs rustup, a cross compiler, Python with pip, and access to PyPI
    CheckAarch64,
    /// Write the bindings of mlx-c; `setup` runs this step in a separate process
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
        Task::Chaos(arguments) => chaos::run(&arguments),
        Task::Real { peers } => real::run(peers),
        Task::Recording => recording::run(),
        Task::Clients => clients::run(),
        Task::Proxies => proxies::run(),
        Task::Page { vendor: true, .. } => page::vendor(),
        Task::Page { if_installed, speed, .. } => page::run(if_installed, speed),
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
