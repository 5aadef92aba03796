//! The unit file of a user service of systemd.

use super::definition::{Definition, STOP_SECONDS};

/// The name of the unit.
pub(super) const UNIT: &str = "mlx.service";

/// Returns the unit file. After five failures within a minute, systemd gives up.
pub(super) fn unit(definition: &Definition) -> String {
    let Definition { command, folder, variables } = definition;
    let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    let variable = |(name, value): &(String, String)| {
        ["Environment=".to_owned(), quoted(&format!("{name}={value}")), "\n".to_owned()].concat()
    };
    let variables: String = variables.iter().map(variable).collect();
    // The colon turns the substitution of variables off. Only the first process gets the signal to stop: it passes it on.
    format!(
        "[Unit]\n\
         Description=mlx, a server of language models\n\
         StartLimitIntervalSec=60\n\
         StartLimitBurst=5\n\
         \n\
         [Service]\n\
         ExecStart=:{}\n\
         WorkingDirectory={}\n\
         {variables}\
         Restart=on-failure\n\
         RestartSec=2\n\
         KillMode=mixed\n\
         TimeoutStopSec={STOP_SECONDS}\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        command.join(" "),
        without_specifiers(folder),
    )
}

/// Returns a word in quotes, as systemd unquotes it.
fn quoted(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", without_specifiers(&escaped))
}

/// Doubles percent signs, which introduce systemd's own variables.
fn without_specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use mlx_tests::skipped::needed;

    use super::*;

    fn definition(words: &[&str], folder: &str) -> Definition {
        let command = words.iter().map(|word| (*word).to_owned()).collect();
        let variables = vec![("HF_HOME".to_owned(), "/a b/%h \"x\" $HOME \\".to_owned())];
        Definition { command, folder: folder.to_owned(), variables }
    }

    #[test]
    fn words_reach_the_program_unchanged() {
        let text = unit(&definition(&["/bin/mlx", "a \"b\" 'c'", "100%", "$HOME \\ é"], "/a b/50%"));
        let line = r#"ExecStart=:"/bin/mlx" "a \"b\" 'c'" "100%%" "$HOME \\ é""#;
        assert!(text.lines().any(|it| it == line), "{text}");
        assert!(text.lines().any(|it| it == "WorkingDirectory=/a b/50%%"), "{text}");
        let variable = r#"Environment="HF_HOME=/a b/%%h \"x\" $HOME \\""#;
        assert!(text.lines().any(|it| it == variable), "{text}");
    }

    #[test]
    fn systemd_accepts_the_unit() {
        let folder = tempfile::Builder::new().prefix("a b%").tempdir().expect("a temporary folder");
        let program = std::env::current_exe().expect("this program has a path");
        let (program, place) = (program.display().to_string(), folder.path().display().to_string());
        let text = unit(&definition(&[&program, "a \"b\" 'c'", "100%", "$X \\ ;", "--"], &place));
        let path = folder.path().join(UNIT);
        std::fs::write(&path, text).expect("it can be written");
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--user"]).arg(&path).env("XDG_RUNTIME_DIR", folder.path());
        let Some(output) = needed(verify.output().ok(), "systemd-analyze") else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        // It would say more about a unit with a mistake.
        std::fs::write(&path, unit(&definition(&["/no/such"], &place))).expect("it can be written");
        assert!(!verify.output().expect("it runs").stderr.is_empty());
    }
}
