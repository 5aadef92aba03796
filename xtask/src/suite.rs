//! All tests of the product, in several concurrent processes, because most tests lock the device of their process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The maximum number of tests per process. Loading MLX takes a while, but the last processes should end together.
const TESTS_AT_ONCE: usize = 30;

/// The maximum number of concurrent processes. Each has its own models and threads.
const MAX_PROCESSES: usize = 4;

/// A test executable.
struct Program {
    name: String,
    path: PathBuf,
    /// The folder of its package, which Cargo uses as the working directory.
    folder: PathBuf,
}

/// Some of the tests of a program.
struct Share<'a> {
    program: &'a Program,
    title: String,
    tests: Vec<String>,
}

/// Builds the tests with `cargo`, runs all of them with these variables, and repeats the failures at the end.
pub(crate) fn run(cargo: impl Fn() -> Command, variables: &[(&str, String)]) -> Result<()> {
    let mut command = cargo();
    command
        .args(["test", "--no-run", "--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit());
    let output = command.output().context("cargo does not start")?;
    ensure!(output.status.success(), "the tests do not build");
    let programs = programs(&String::from_utf8_lossy(&output.stdout))?;
    let mut queue = VecDeque::new();
    for program in &programs {
        queue.extend(shares(program, &tests(program)?));
    }
    let total: usize = queue.iter().map(|share: &Share| share.tests.len()).sum();
    let failures = Mutex::new(Vec::new());
    let count = thread::available_parallelism().map_or(1, usize::from).min(MAX_PROCESSES);
    side_by_side(count, queue, |share| {
        if let Err(error) = share.run(variables) {
            lock(&failures).push(format!("\n{}: {error:#}\n", share.title));
        }
    });
    // Examples in the docs are not part of the executables.
    let mut docs = cargo();
    let are_docs_right = docs.args(["test", "--doc", "--quiet"]).status()?.success();
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    print(&failures.concat());
    ensure!(failures.is_empty() && are_docs_right, "tests fail");
    print(&format!("\nall {total} tests pass\n"));
    Ok(())
}

/// Does `work` for every item of the queue, with `count` threads.
fn side_by_side<T: Send>(count: usize, queue: VecDeque<T>, work: impl Fn(T) + Sync) {
    let queue = Mutex::new(queue);
    // A separate closure, because in the condition of the loop the guard would stay locked during the work.
    let next = || lock(&queue).pop_front();
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while let Some(item) = next() {
                    work(item);
                }
            });
        }
    });
}

/// Returns the test executables in Cargo's messages. The executable with the longest tests is first, so that no long test runs last.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line)?;
        let is_test = message["profile"]["test"] == true;
        let Some(path) = message["executable"].as_str().filter(|_| is_test) else { continue };
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a message without a name");
        let mut folder = PathBuf::from(text(&message["manifest_path"])?);
        folder.pop();
        found.push(Program { name: text(&message["target"]["name"])?, path: path.into(), folder });
    }
    found.sort_by_key(|program| program.name != "promises");
    Ok(found)
}

/// Returns the names of a program's tests.
fn tests(program: &Program) -> Result<Vec<String>> {
    let listed = Command::new(&program.path)
        .args(["--list", "--format", "terse"])
        .current_dir(&program.folder)
        .output()?;
    ensure!(listed.status.success(), "{} does not list its tests", program.path.display());
    let text = String::from_utf8(listed.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Divides the tests. Tests of one module take similar times, so they go into different shares.
fn shares<'a>(program: &'a Program, tests: &[String]) -> Vec<Share<'a>> {
    let count = tests.len().div_ceil(TESTS_AT_ONCE);
    let share = |number: usize| Share {
        program,
        title: format!("{}, {} of {count}", program.name, number + 1),
        tests: tests.iter().skip(number).step_by(count).cloned().collect(),
    };
    (0..count).map(share).collect()
}

impl Share<'_> {
    /// Runs the tests and prints their output as it arrives. The error contains the report of failed tests.
    fn run(&self, variables: &[(&str, String)]) -> Result<()> {
        let mut command = Command::new(&self.program.path);
        command.current_dir(&self.program.folder).env("CARGO_MANIFEST_DIR", &self.program.folder);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.arg("--exact").args(&self.tests).stdout(Stdio::piped()).spawn()?;
        let (mut report, mut unfinished) = (String::new(), self.tests.clone());
        for line in BufReader::new(child.stdout.take().context("a pipe")?).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            unfinished.retain(|test| !line.starts_with(&format!("test {test} ... ")));
            let title =
                if line.starts_with("test result: ") { format!("{}:\n", self.title) } else { String::new() };
            print(&format!("{title}{line}\n"));
            if !report.is_empty() || line == "failures:" {
                report += &(line + "\n");
            }
        }
        let status = child.wait()?;
        ensure!(status.success(), "{status}, unfinished: {unfinished:?}\n{report}");
        Ok(())
    }
}

fn print(text: &str) {
    stdout().lock().write_all(text.as_bytes()).ok();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_side_by_side() {
        let both = std::sync::Barrier::new(2);
        // Without the other, either would wait forever.
        side_by_side(2, VecDeque::from([1, 2]), |_| {
            both.wait();
        });
    }

    #[test]
    fn every_test_is_in_one_share() {
        let program = Program { name: "promises".into(), path: PathBuf::new(), folder: PathBuf::new() };
        let tests: Vec<String> = (0..61).map(|number| number.to_string()).collect();
        let shares = shares(&program, &tests);
        assert_eq!(shares.iter().map(|share| share.tests.len()).collect::<Vec<_>>(), [21, 20, 20]);
        assert_eq!(shares[1].title, "promises, 2 of 3");
        let mut all: Vec<String> = shares.into_iter().flat_map(|share| share.tests).collect();
        all.sort_by_key(|test| test.parse::<usize>().ok());
        assert_eq!(all, tests);
    }

    #[test]
    fn programs_are_those_of_tests_and_the_longest_is_first() {
        let message = |name: &str, is_test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/a/Cargo.toml", "target": { "name": name },
                "profile": { "test": is_test }, "executable": format!("/a/{name}"),
            })
        };
        let messages = [message("cli", true), message("mlx", false), message("promises", true)];
        let text = messages.map(|it| it.to_string()).join("\n");
        let found = programs(&format!("a note\n{text}\n")).expect("it is valid");
        assert_eq!(found.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["promises", "cli"]);
        assert_eq!(found[0].folder, PathBuf::from("/a"));
    }
}
