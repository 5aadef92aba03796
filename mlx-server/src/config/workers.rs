//! The machines among which the served model is divided, and the settings that are rejected then.

use std::time::Duration;

use mlx_core::distributed::Workers;
use mlx_options::describe;

use super::{Config, StartError};

/// The time limit of one attempt to connect to a worker. The server then tries again, and reports the missing worker meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Config {
    /// Returns the workers of the served model.
    ///
    /// # Errors
    /// Returns an error that names a setting that a model on several machines does not support.
    pub(crate) fn workers(&self) -> Result<Option<Workers>, StartError> {
        let in_words = |error| StartError(describe(&error));
        let Some(workers) = self.engine.workers.read().map_err(in_words)? else { return Ok(None) };
        if self.models.model.len() > 1 {
            return Err(StartError::new("--hostfile", "divides one model among machines; give one"));
        }
        let conflict =
            |flag, reason| Err(StartError::new(flag, format!("cannot be used with --hostfile: {reason}")));
        if self.models.models_budget.is_some() {
            return conflict(
                "--models-budget",
                "there is only one model; --memory-budget limits the memory on this machine",
            );
        }
        if self.models.idle_timeout.is_some() {
            return conflict("--idle-timeout", "the model must stay loaded");
        }
        if self.models.in_process {
            return conflict(
                "--in-process",
                "only a process of its own can join the other machines, and end",
            );
        }
        Ok(Some(Workers { connect_timeout: CONNECT_TIMEOUT, ..workers }))
    }
}

#[cfg(test)]
mod tests {
    use mlx_core::distributed::{GroupBackend, Parallel};
    use mlx_options::{ByteSize, Seconds};

    use super::*;

    /// Changes a setting.
    type Change = fn(&mut Config);

    fn refusal(config: &Config) -> String {
        config.workers().expect_err("it is refused").to_string()
    }

    #[test]
    fn what_a_divided_model_does_not_have_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let hosts = folder.path().join("hosts.json");
        std::fs::write(&hosts, r#"[{"ssh": "a"}, {"ssh": "b"}]"#).expect("writes");
        let mut divided = Config::default();
        divided.engine.workers.hostfile = Some(hosts);
        divided.models.model = vec!["a".into()];
        let found = divided.workers().expect("nothing is wrong");
        assert_eq!(found.expect("there is a hosts file").addresses, ["b:32323"]);
        let changes: [(Change, &str); 8] = [
            (|it| it.models.model.push("b".into()), "--hostfile: divides one model"),
            (
                |it| it.models.models_budget = Some(ByteSize(1)),
                "--models-budget: cannot be used with --hostfile",
            ),
            (
                |it| it.models.idle_timeout = Some(Seconds(9.0)),
                "--idle-timeout: cannot be used with --hostfile",
            ),
            (|it| it.models.in_process = true, "--in-process: cannot be used with --hostfile"),
            (|it| it.engine.workers.worker_timeout = Some(Seconds(0.0)), "--worker-timeout is 0 s"),
            (|it| it.engine.workers.backend = Some(GroupBackend::Mpi), "--backend is mpi, which needs"),
            (|it| it.engine.workers.backend = Some(GroupBackend::Jaccl), "--backend is jaccl, which "),
            (|it| it.engine.workers.worker_key_file = Some("no-such-key".into()), "no-such-key: "),
        ];
        for (change, message) in changes {
            let mut config = divided.clone();
            change(&mut config);
            let found = refusal(&config);
            assert!(found.starts_with(message), "{found}");
        }
    }

    #[test]
    fn the_way_to_divide_is_that_of_the_flag() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let hosts = folder.path().join("hosts.json");
        std::fs::write(&hosts, r#"[{"ssh": "a"}, {"ssh": "b"}]"#).expect("writes");
        let mut config = Config::default();
        config.engine.workers.hostfile = Some(hosts);
        config.models.model = vec!["a".into()];
        let way = |config: &Config| {
            let workers = config.workers().expect("nothing is wrong");
            workers.expect("there is a hosts file").parallel
        };
        assert_eq!(way(&config), Parallel::Pipeline);
        config.engine.workers.parallel = Some(Parallel::Tensor);
        assert_eq!(way(&config), Parallel::Tensor);
    }

    #[test]
    fn what_needs_a_hosts_file_is_refused_without_one() {
        let mut config = Config::default();
        config.engine.workers.parallel = Some(Parallel::Tensor);
        assert!(refusal(&config).starts_with("--parallel is for a model on several machines"));
        config.engine.workers.parallel = None;
        config.engine.workers.backend = Some(GroupBackend::Ring);
        assert!(refusal(&config).starts_with("--backend is for a model on several machines"));
        config.engine.workers.backend = None;
        config.engine.workers.worker_timeout = Some(Seconds(7.0));
        let reason = "is for a model on several machines; give --hostfile too";
        assert_eq!(refusal(&config), format!("--worker-timeout {reason}"));
        config.engine.workers.worker_key_file = Some("key".into());
        assert_eq!(refusal(&config), format!("--worker-key-file {reason}"));
    }
}
