//! Compares with another program on the same workload, in alternating runs. Both run as whole processes, so that neither reports its own time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use mlx_core::Error;
use mlx_core::engine::Speculate;
use mlx_options::{
    DeviceArgs, ExactArgs, KvCacheArgs, LoadArgs, PrefixCacheArgs, SpeculateArgs, WorkersArgs,
};
use serde_json::{Value, json};

use super::measure::{Spread, prompt};
use super::report::spread;
use crate::exit_code::Failure;
use crate::model_args::ModelArgs;

/// The longest single argument that Linux passes to a program, in bytes.
const MAX_ARGUMENT_LEN: usize = 128 << 10;

/// The workload that both programs run.
pub(super) struct Workload<'a> {
    pub(super) model: &'a ModelArgs,
    /// The other program's command, with placeholders.
    pub(super) command: &'a str,
    pub(super) vocabulary: usize,
    pub(super) length: usize,
    pub(super) generate: usize,
}

/// The wall times of both programs.
pub(super) struct Comparison {
    command: String,
    length: usize,
    generate: usize,
    ours: Spread,
    theirs: Spread,
}

impl Workload<'_> {
    /// Runs each program `repeat` times, alternating.
    pub(super) fn compare(&self, repeat: usize) -> Result<Comparison, Failure> {
        let command = fill_placeholders(self.command, &self.model.folder()?, self.length, self.generate);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..repeat {
            ours.push(seconds(self.own_command()?, "mlx generate")?);
            let mut shell = Command::new("sh");
            shell.args(["-c", &command]);
            theirs.push(seconds(shell, &command)?);
        }
        let (ours, theirs) = (Spread::from_values(ours), Spread::from_values(theirs));
        Ok(Comparison { command, length: self.length, generate: self.generate, ours, theirs })
    }

    /// Returns this program's command for the workload.
    fn own_command(&self) -> Result<Command, Failure> {
        let program = std::env::current_exe().map_err(|error| Error::io("the program itself", error))?;
        let ids: Vec<String> = prompt(self.length, 0, self.vocabulary).iter().map(u32::to_string).collect();
        let ids = ids.join(",");
        if ids.len() > MAX_ARGUMENT_LEN {
            let message =
                format!("a prompt of {} tokens is too long to pass to another program", self.length);
            return Err(Failure::usage("--compare", message));
        }
        let mut command = Command::new(program);
        // This program must compute its prompt in every round, as the other program does, so saved prompts are off.
        for flag in PrefixCacheArgs::augment_args(clap::Command::new("kept")).get_arguments() {
            flag.get_env().map(|variable| command.env_remove(variable));
        }
        command.arg("generate").arg("-m").arg(self.model.folder()?).args(["--prompt-ids", &ids]);
        command.args(["--max-tokens", &self.generate.to_string(), "--temperature", "0", "--ignore-eos"]);
        command.args(flags(self.model).into_iter().flat_map(|(flag, value)| [flag.into(), value]));
        Ok(command)
    }
}

/// Returns the model flags given on the command line. Speculation is off unless --speculate was given.
fn flags(model: &ModelArgs) -> Vec<(&'static str, OsString)> {
    fn text(given: Option<impl ToString>) -> Option<OsString> {
        given.map(|value| value.to_string().into())
    }
    let file = |given: &Option<PathBuf>| given.clone().map(OsString::from);
    // All fields are named, so that a new field must be passed on. The output of --verbose is not shown.
    let ModelArgs { name: _, verbose: _, adapter, device, exact, speculate, load, kv_cache, workers } = model;
    let DeviceArgs { device } = *device;
    let ExactArgs { exact } = *exact;
    let SpeculateArgs { speculate, draft_model } = speculate;
    let LoadArgs { memory_budget, ctx_size, dtype, pipeline, keep_quantized } = *load;
    let KvCacheArgs { kv_bits } = *kv_cache;
    let WorkersArgs { hostfile, parallel, backend, worker_key_file, worker_timeout } = workers;
    let all = [
        ("--adapter", file(adapter)),
        ("--device", text(device)),
        ("--exact", text(exact)),
        ("--speculate", text(Some(speculate.unwrap_or(Speculate::Off)))),
        ("--draft-model", file(draft_model)),
        ("--memory-budget", text(memory_budget)),
        ("--ctx-size", text(ctx_size)),
        ("--dtype", text(dtype)),
        ("--pipeline", text(pipeline)),
        ("--keep-quantized", text(keep_quantized)),
        ("--kv-bits", text(kv_bits)),
        ("--hostfile", file(hostfile)),
        ("--parallel", text(*parallel)),
        ("--backend", text(*backend)),
        ("--worker-key-file", file(worker_key_file)),
        ("--worker-timeout", text(worker_timeout.map(|timeout| timeout.0))),
    ];
    all.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
}

/// Returns the wall time of a process, or an error if it fails.
fn seconds(mut command: Command, name: &str) -> Result<f64, Failure> {
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output().map_err(|error| Error::io(name, error))?;
    let seconds = begin.elapsed().as_secs_f64();
    if output.status.success() {
        return Ok(seconds);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("without a message");
    Err(Failure::usage("--compare", format!("failed: `{name}` ended with {}: {last}", output.status)))
}

/// Returns the shell command with its placeholders filled in.
fn fill_placeholders(command: &str, model: &Path, length: usize, generate: usize) -> String {
    let quoted = format!("'{}'", model.display().to_string().replace('\'', r"'\''"));
    let counts =
        command.replace("{prompt_tokens}", &length.to_string()).replace("{generate}", &generate.to_string());
    counts.replace("{model}", &quoted)
}

impl Comparison {
    pub(super) fn text(&self) -> String {
        let Self { command, length, generate, ours, theirs } = self;
        let show = |name: &str, it: &Spread| {
            format!("{:>9.2} s ({:.2} - {:.2})  {name}\n", it.median, it.min, it.max)
        };
        format!(
            "\nwhole processes, {length} tokens in, {generate} out:\n{}{}{:>9.2}    theirs over ours\n",
            show("mlx generate", ours),
            show(command, theirs),
            theirs.median / ours.median
        )
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "command": self.command,
            "prompt_tokens": self.length,
            "generate": self.generate,
            "ours_s": spread(&self.ours),
            "theirs_s": spread(&self.theirs),
            "theirs_over_ours": self.theirs.median / self.ours.median,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        model: ModelArgs,
    }

    #[test]
    fn places_are_filled_in_and_paths_quoted() {
        let command = fill_placeholders(
            "peer {model} -p {prompt_tokens} -g {generate}",
            Path::new("it's here"),
            128,
            64,
        );
        assert_eq!(command, r"peer 'it'\''s here' -p 128 -g 64");
    }

    #[test]
    fn ours_takes_no_prompt_from_a_round_before() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("config.json"), "{}").expect("it can be written");
        let folder = folder.path().to_str().expect("utf-8");
        let Program { model } = clap::Parser::parse_from(["mlx", "-m", folder]);
        let workload = Workload { model: &model, command: "", vocabulary: 9, length: 2, generate: 2 };
        let own = workload.own_command().expect("the folder is there");
        let removed: Vec<&OsStr> = own.get_envs().filter(|it| it.1.is_none()).map(|it| it.0).collect();
        for variable in ["MLX_PREFIX_CACHE", "MLX_PROMPT_CACHE_DIR", "MLX_PROMPT_CACHE_SIZE"] {
            assert!(removed.contains(&OsStr::new(variable)), "{removed:?}");
        }
    }

    #[test]
    fn ours_has_the_same_flags() {
        let given = [
            ("--adapter", "a"),
            ("--exact", "true"),
            ("--speculate", "draft"),
            ("--draft-model", "d"),
            ("--memory-budget", "8GB"),
            ("--ctx-size", "512"),
            ("--dtype", "f32"),
            ("--pipeline", "off"),
            ("--keep-quantized", "true"),
            ("--kv-bits", "8"),
            ("--hostfile", "h.json"),
            ("--parallel", "tensor"),
            ("--backend", "ring"),
            ("--worker-key-file", "key"),
            ("--worker-timeout", "7.5"),
        ];
        let words = given.iter().flat_map(|&(flag, value)| [flag, value]);
        let Program { model } = clap::Parser::parse_from(["mlx", "-m", "m"].into_iter().chain(words));
        let passed = flags(&model);
        let expected: Vec<(&str, OsString)> = given.map(|(flag, value)| (flag, value.into())).into();
        assert_eq!(passed, expected);
    }

    #[test]
    fn ours_drafts_nothing_unless_it_is_asked_to() {
        let Program { model } = clap::Parser::parse_from(["mlx", "-m", "m"]);
        assert_eq!(flags(&model), [("--speculate", OsString::from("off"))]);
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo no such model >&2; exit 3"]);
        let message = seconds(shell, "peer").expect_err("it fails").message().expect("a message");
        assert!(message.contains("no such model") && message.contains('3'), "{message}");
    }
}
