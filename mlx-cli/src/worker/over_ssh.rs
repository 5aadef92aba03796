//! `mlx worker --hostfile`: starts a worker over ssh on each other machine. Workers read the key from standard input and exit when it
//! closes, so none is left running however this command ends.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use mlx_core::Error;
use mlx_core::distributed::{Host, Key};
use mlx_hub::expanded;
use mlx_options::printable;

use super::WorkerArgs;
use crate::exit_code::Failure;
use crate::{shell_word, terminal};

/// The delay before a worker that exited is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// Runs the command: starts the workers, or prints the commands.
pub(super) fn run(args: &WorkerArgs, hostfile: &Path) -> Result<(), Failure> {
    let model = model(args)?;
    let Some(key_file) = &args.worker_key_file.as_deref().map(expanded) else {
        return Err(Failure::usage("--hostfile", "is for other machines; give --worker-key-file too"));
    };
    if args.print_commands {
        return print(args, &model, hostfile, key_file);
    }
    let key = super::read_key(key_file)?;
    let hosts = Host::read(hostfile)?;
    let (failed, failures) = channel();
    for host in hosts {
        let line = shell_word::line(&command(args, &model, &host, "-"));
        let (key, failed) = (key.clone(), failed.clone());
        std::thread::spawn(move || keep_running(&host.ssh, &line, &key, &failed));
    }
    drop(failed);
    match failures.recv() {
        Ok(reason) => Err(Failure::usage("--hostfile", reason)),
        Err(_) => Ok(()),
    }
}

/// Prints the commands for each machine, the first machine's last.
fn print(args: &WorkerArgs, model: &str, hostfile: &Path, key_file: &Path) -> Result<(), Failure> {
    if super::is_stdin(key_file) {
        return Err(Failure::usage("--worker-key-file", "is -, but printed commands need a key file"));
    }
    Key::read(key_file)?;
    let hosts = Host::read(hostfile)?;
    let (hostfile, key_file) = (absolute(hostfile)?, absolute(key_file)?);
    let workers = hosts.iter().map(|host| (host.ssh.as_str(), command(args, model, host, &key_file)));
    let first = ["mlx", "serve", "-m", model, "--hostfile", &hostfile, "--worker-key-file", &key_file];
    let mut first = first.map(str::to_owned).to_vec();
    for adapter in &args.adapter {
        let name = adapter.file_name().unwrap_or_default().to_string_lossy();
        first.extend(["--adapter".to_owned(), format!("{name}={}", everywhere(adapter))]);
    }
    let commands = workers.chain([("the first", first)]);
    let lines = commands.map(|(machine, words)| format!("# on {machine}\n{}\n", shell_word::line(&words)));
    terminal::show(&lines.collect::<String>())
}

/// Returns the absolute path of a file.
fn absolute(path: &Path) -> mlx_core::Result<String> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io(path, error))?;
    Ok(absolute.display().to_string())
}

/// Returns the model's name for the other machines.
fn model(args: &WorkerArgs) -> Result<String, Failure> {
    let Some(given) = args.model.given()? else {
        return Err(Failure::usage(
            "--hostfile",
            "needs a model: the default model may differ between machines",
        ));
    };
    Ok(everywhere(given))
}

/// Returns the name for the other machines of a model or an adapter: a folder or a file as its absolute path.
fn everywhere(given: &Path) -> String {
    let absolute = match given {
        file if file.is_file() => std::path::absolute(file).ok(),
        folder if folder.is_dir() => folder.canonicalize().ok(),
        _ => None,
    };
    super::path_text(absolute.as_deref().unwrap_or(given))
}

/// Returns the command that starts a worker on its machine.
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
    for adapter in &args.adapter {
        words.extend(["--adapter".to_owned(), everywhere(adapter)]);
    }
    words.extend(args.machine.flags.iter().cloned());
    words
}

/// Runs this line on a machine and restarts it when it ends, unless it fails before it ever listened.
fn keep_running(machine: &str, line: &str, key: &Key, failed: &Sender<String>) {
    let mut has_listened = false;
    loop {
        let outcome = run_once(machine, line, key, &mut has_listened);
        let reason = outcome.unwrap_or_else(|error| format!("ssh cannot be run: {error}"));
        if !has_listened {
            failed.send(format!("could not start a worker on {machine}: {reason}")).ok();
            return;
        }
        terminal::note(&format!("{machine}: {reason}; restarting the worker"));
        std::thread::sleep(RESTART_DELAY);
    }
}

/// Runs the line once, prints its output and returns how it ended.
fn run_once(machine: &str, line: &str, key: &Key, has_listened: &mut bool) -> std::io::Result<String> {
    let mut child = Command::new("ssh")
        .args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "--", machine, line])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // The pipe stays open until the worker has ended.
    let input: Option<ChildStdin> = child.stdin.take();
    if let Some(mut input) = input.as_ref() {
        // If nothing reads the key, the exit status shows the reason.
        key.write(&mut input).ok();
    }
    if let Some(output) = child.stderr.take() {
        // Output before the worker's own, such as a login banner, may have any encoding.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&line);
            *has_listened |= text.starts_with(super::LISTENING);
            terminal::note(&format!("{machine}: {}", printable(text.trim_end_matches('\r'))));
        }
    }
    Ok(format!("ssh ended with {}", child.wait()?))
}
