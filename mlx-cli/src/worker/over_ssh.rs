//! `mlx worker --hostfile`: a worker on each other machine, started over ssh. Workers end with this command: they read the key from their
//! standard input and end where that ends, so no process of theirs is left behind whatever becomes of this one.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use mlx_core::distributed::{Host, Key};
use mlx_options::printable;

use super::WorkerArgs;
use crate::exit_code::Failure;
use crate::{shell_word, terminal};

/// How long after its end a worker is started again.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs the command: starts the workers, or prints how.
pub(super) fn run(args: &WorkerArgs, hostfile: &Path) -> Result<(), Failure> {
    let model = model(args)?;
    let Some(key_file) = &args.worker_key_file else {
        return Err(Failure::usage("--hostfile", "is for other machines; give --worker-key-file too"));
    };
    let key = Key::read(key_file)?;
    let hosts = Host::read(hostfile)?;
    if args.print_commands {
        let key_file = key_file.display().to_string();
        let lines = hosts.iter().map(|host| {
            let line = shell_word::line(&command(args, &model, host, &key_file));
            format!("# on {}\n{line}\n", host.ssh)
        });
        return terminal::show(&lines.collect::<String>());
    }
    let (failed, failures) = channel();
    for host in hosts {
        let line = shell_word::line(&command(args, &model, &host, "-"));
        let (key, failed) = (key.clone(), failed.clone());
        std::thread::spawn(move || keep(&host.ssh, &line, &key, &failed));
    }
    drop(failed);
    match failures.recv() {
        Ok(why) => Err(Failure::usage("--hostfile", why)),
        Err(_) => Ok(()),
    }
}

/// What the other machines call the model: a folder by its whole path.
fn model(args: &WorkerArgs) -> Result<String, Failure> {
    let Some(given) = args.model.given()? else {
        return Err(Failure::usage(
            "--hostfile",
            "needs the name of a model: what is usual differs by machine",
        ));
    };
    let whole = given.is_dir().then(|| given.canonicalize().ok()).flatten();
    Ok(whole.as_deref().unwrap_or(given).display().to_string())
}

/// The words that start a worker on its machine.
fn command(args: &WorkerArgs, model: &str, host: &Host, key_file: &str) -> Vec<String> {
    let ip = host.name.trim_matches(['[', ']']).parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let (ip, port) = (ip.to_string(), host.port.to_string());
    let mut words = Vec::new();
    if !host.envs.is_empty() {
        words.push("env".to_owned());
        words.extend(host.envs.iter().cloned());
    }
    let start = [&args.remote_mlx, "worker", "-m", model, "--host", &ip, "--port", &port];
    words.extend(start.map(str::to_owned));
    words.extend(["--worker-key-file".to_owned(), key_file.to_owned()]);
    if let Some(budget) = args.memory_budget {
        words.extend(["--memory-budget".to_owned(), budget.0.to_string()]);
    }
    words
}

/// Runs this line on a machine, again and again unless it fails at first.
fn keep(machine: &str, line: &str, key: &Key, failed: &Sender<String>) {
    let mut has_listened = false;
    loop {
        let outcome = run_once(machine, line, key, &mut has_listened);
        let why = outcome.unwrap_or_else(|error| format!("ssh cannot be run: {error}"));
        if !has_listened {
            failed.send(format!("got no worker on {machine}: {why}")).ok();
            return;
        }
        terminal::note(&format!("{machine}: {why}; the worker is started again"));
        std::thread::sleep(PAUSE);
    }
}

/// Runs it once and shows what it says; gives how it ended.
fn run_once(machine: &str, line: &str, key: &Key, has_listened: &mut bool) -> std::io::Result<String> {
    let mut child = Command::new("ssh")
        .args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "--", machine, line])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // Open until the worker has ended.
    let input: Option<ChildStdin> = child.stdin.take();
    if let Some(mut input) = input.as_ref() {
        // Where nothing reads it, the end says why.
        key.write(&mut input).ok();
    }
    if let Some(output) = child.stderr.take() {
        for said in BufReader::new(output).lines().map_while(Result::ok) {
            *has_listened |= said.starts_with(super::LISTENING);
            terminal::note(&format!("{machine}: {}", printable(&said)));
        }
    }
    Ok(format!("ssh ended with {}", child.wait()?))
}
