//! The property list of a user agent of launchd.

use super::definition::{Definition, STOP_SECONDS};

/// The label of the agent.
pub(super) const LABEL: &str = "mlx.serve";

/// A value of a property list.
enum Plist {
    Text(String),
    Number(u32),
    Bool(bool),
    List(Vec<Plist>),
    Dictionary(Vec<(String, Plist)>),
}

/// Returns the property list. launchd starts the server again after a failure, at most every ten seconds.
pub(super) fn agent(definition: &Definition) -> String {
    let Definition { command, folder, variables } = definition;
    let text = |text: &str| Plist::Text(text.to_owned());
    let entry = |(name, value): &(String, String)| (name.clone(), text(value));
    let entries = [
        ("Label", text(LABEL)),
        ("ProgramArguments", Plist::List(command.iter().map(|word| text(word)).collect())),
        ("WorkingDirectory", text(folder)),
        ("EnvironmentVariables", Plist::Dictionary(variables.iter().map(entry).collect())),
        ("RunAtLoad", Plist::Bool(true)),
        ("KeepAlive", Plist::Dictionary(vec![("SuccessfulExit".to_owned(), Plist::Bool(false))])),
        ("ExitTimeOut", Plist::Number(STOP_SECONDS)),
        // Other types are slowed down while the user works.
        ("ProcessType", text("Interactive")),
    ];
    let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\">\n",
    );
    Plist::Dictionary(entries).write(&mut out, 0);
    out + "</plist>\n"
}

impl Plist {
    /// Writes the value as XML, on lines of its own.
    fn write(&self, out: &mut String, depth: usize) {
        match self {
            Self::Text(text) => element(out, depth, "string", &escaped(text)),
            Self::Number(number) => element(out, depth, "integer", &number.to_string()),
            Self::Bool(true) => line(out, depth, "<true/>"),
            Self::Bool(false) => line(out, depth, "<false/>"),
            Self::List(values) => {
                line(out, depth, "<array>");
                for value in values {
                    value.write(out, depth + 1);
                }
                line(out, depth, "</array>");
            }
            Self::Dictionary(entries) => {
                line(out, depth, "<dict>");
                for (key, value) in entries {
                    element(out, depth + 1, "key", &escaped(key));
                    value.write(out, depth + 1);
                }
                line(out, depth, "</dict>");
            }
        }
    }
}

/// Writes an element with a text.
fn element(out: &mut String, depth: usize, name: &str, text: &str) {
    line(out, depth, &format!("<{name}>{text}</{name}>"));
}

/// Writes an indented line.
fn line(out: &mut String, depth: usize, text: &str) {
    out.extend(["\t".repeat(depth).as_str(), text, "\n"]);
}

/// Returns a text for the content of an XML element. It has no control characters.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use mlx_tests::skipped::needed;
    use serde_json::{Value, json};

    use super::*;

    const WORDS: [&str; 4] = ["/a b/mlx", "<x> & \"y\" 'z'", "]]> &amp; %h $HOME \\", "é\u{1f600}"];

    fn definition() -> Definition {
        let command = WORDS.map(str::to_owned).to_vec();
        let variables = vec![("HF_HOME".to_owned(), "/m & n".to_owned())];
        Definition { command, folder: "/a <b>".to_owned(), variables }
    }

    #[test]
    fn the_agent_starts_at_login_and_after_failures() {
        let text = agent(&definition());
        for part in [
            "<key>Label</key>\n\t<string>mlx.serve</string>",
            "<string>&lt;x&gt; &amp; \"y\" 'z'</string>",
            "<key>RunAtLoad</key>\n\t<true/>",
            "<key>SuccessfulExit</key>\n\t\t<false/>",
            "<key>ExitTimeOut</key>\n\t<integer>45</integer>",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn plutil_accepts_the_agent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("mlx.serve.plist");
        std::fs::write(&path, agent(&definition())).expect("it can be written");
        let checked = Command::new("plutil").arg("-lint").arg(&path).output().ok();
        let Some(output) = needed(checked, "plutil") else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    /// Python's reader of property lists gets the words unchanged.
    #[test]
    fn another_reader_of_property_lists_reads_it() {
        const SCRIPT: &str =
            "import json, plistlib, sys; print(json.dumps(plistlib.loads(sys.stdin.buffer.read())))";
        let python = Command::new("python3")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok();
        let Some(mut python) = needed(python, "python3") else { return };
        let mut input = python.stdin.take().expect("a pipe");
        input.write_all(agent(&definition()).as_bytes()).expect("it reads");
        drop(input);
        let output = python.wait_with_output().expect("it ends");
        let read: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            read,
            json!({
                "Label": LABEL,
                "ProgramArguments": WORDS,
                "WorkingDirectory": "/a <b>",
                "EnvironmentVariables": {"HF_HOME": "/m & n"},
                "RunAtLoad": true,
                "KeepAlive": {"SuccessfulExit": false},
                "ExitTimeOut": STOP_SECONDS,
                "ProcessType": "Interactive",
            })
        );
    }
}
