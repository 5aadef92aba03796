//! `mlx bench`: measures prefill and decode speed and compares them with another program.

mod card;
mod compare;
mod measure;
mod report;

use std::path::PathBuf;

use clap::Args;
use mlx_core::Error;
use mlx_core::engine::{EngineOptions, Speculate};
use mlx_core::machine::Machine;
use mlx_options::PrefixCacheArgs;
use serde_json::json;

use crate::exit_code::Failure;
use crate::model_args::ModelArgs;
use crate::terminal;
pub(crate) use measure::{Case, Measurement, prompt};
pub(crate) use report::to_json;

/// Examples shown after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx bench -m FOLDER
  mlx bench -m FOLDER --prompt-lengths 512 --batch 1,8,32 --json > figures.json
  mlx bench -m FOLDER --batch 1 --compare 'python -m mlx_lm benchmark --model {model} -p {prompt_tokens} -g {generate} -n 1'

Prompts are synthetic, and speculation is off unless --speculate is given, because answers to such prompts often repeat themselves.
Prefill is the rate of prompt tokens until every prompt has its first token. Decode is the rate of later tokens in the additional time. The
shell runs the command of --compare, alternating with `mlx generate` on a prompt of the same length. Both are timed from start to end,
including loading. (mlx_lm benchmark warms up with the same work once.)";

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Prompt lengths in tokens; lengths beyond the model's context are skipped
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [128, 512, 2048])]
    prompt_lengths: Vec<usize>,

    /// Tokens to generate after each prompt, at least 2
    #[arg(long, value_name = "N", default_value_t = 64)]
    generate: usize,

    /// Numbers of concurrent requests
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 4, 8])]
    batch: Vec<usize>,

    /// Runs per case; the median is shown
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,

    /// Command of another program to time on the same work, one request at a time; {model}, {prompt_tokens} and {generate} are filled in
    #[arg(long, value_name = "COMMAND")]
    compare: Option<String>,

    /// Write an SVG picture with the figures of the first case to this file
    #[arg(long, value_name = "FILE.svg")]
    card: Option<PathBuf>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    args.check()?;
    let options = EngineOptions {
        // Synthetic prompts often lead to repetitive answers, and drafts would make those look fast.
        speculate: args.model.speculate.speculate.unwrap_or(Speculate::Off),
        max_running: args.batch.iter().copied().max().unwrap_or(1),
        // Every run must compute its prompts.
        prefix_cache: Some(0),
        ..args.model.engine_options(&PrefixCacheArgs::default())?
    };
    let engine = args.model.start(&options)?;
    let cases = args.cases(engine.spec().context_length)?;
    let about = report::about(&Machine::detect()?, &engine);
    if !args.json {
        terminal::show(&report::heading(&about, args.repeat))?;
    }
    // Warm-up, for work that is done once.
    measure::run_once(&engine, Case { length: cases[0].length, batch: 1, generate: 2 }, 0)?;
    let mut measured: Vec<Measurement> = Vec::new();
    for case in cases {
        let one = Measurement::run(&engine, case, args.repeat)?;
        if !args.json {
            terminal::show(&report::line(&one))?;
        }
        measured.push(one);
    }
    if let (Some(file), Some(first)) = (&args.card, measured.first()) {
        std::fs::write(file, card::svg(&about, first)).map_err(|error| Error::io(file, error))?;
        terminal::note(&format!("wrote {}", file.display()));
    }
    let vocabulary = engine.spec().vocab_size;
    // The other program needs the machine to itself.
    drop(engine);
    let comparisons = args.compare(&measured, vocabulary)?;
    if args.json {
        let results: Vec<_> = measured.iter().map(report::to_json).collect();
        let comparisons: Vec<_> = comparisons.iter().map(compare::Comparison::to_json).collect();
        let repeat = args.repeat;
        let object =
            json!({ "about": about, "repeat": repeat, "results": results, "comparisons": comparisons });
        terminal::show(&format!("{object}\n"))?;
    }
    Ok(())
}

impl BenchArgs {
    fn check(&self) -> Result<(), Failure> {
        for (flag, min, given) in [
            ("--prompt-lengths", 1, self.prompt_lengths.iter().copied().min()),
            ("--batch", 1, self.batch.iter().copied().min()),
            ("--generate", 2, Some(self.generate)),
            ("--repeat", 1, Some(self.repeat)),
        ] {
            if given.is_some_and(|given| given < min) {
                return Err(Failure::usage(flag, format!("must be at least {min}")));
            }
        }
        Ok(())
    }

    /// Returns the cases that fit into the model's context.
    fn cases(&self, context: usize) -> Result<Vec<Case>, Failure> {
        let (fitting, others): (Vec<usize>, Vec<usize>) =
            self.prompt_lengths.iter().partition(|length| length.saturating_add(self.generate) <= context);
        if fitting.is_empty() {
            let message = format!(
                "leave no room for {} more tokens; the model's context holds {context}",
                self.generate
            );
            return Err(Failure::usage("--prompt-lengths", message));
        }
        for length in others {
            terminal::note(&format!(
                "skipped: a prompt of {length} tokens; the model's context holds {context}"
            ));
        }
        let of_length = |length: usize| {
            self.batch.iter().map(move |&batch| Case { length, batch, generate: self.generate })
        };
        Ok(fitting.into_iter().flat_map(of_length).collect())
    }

    fn compare(
        &self,
        measured: &[Measurement],
        vocabulary: usize,
    ) -> Result<Vec<compare::Comparison>, Failure> {
        let Some(command) = &self.compare else { return Ok(Vec::new()) };
        let mut lengths: Vec<usize> = measured.iter().map(|one| one.case.length).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let mut all = Vec::new();
        for length in lengths {
            let work = compare::Workload {
                model: &self.model,
                command,
                vocabulary,
                length,
                generate: self.generate,
            };
            let one = work.compare(self.repeat)?;
            if !self.json {
                terminal::show(&one.text())?;
            }
            all.push(one);
        }
        Ok(all)
    }
}
