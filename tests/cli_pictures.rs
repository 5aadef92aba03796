//! Pictures on the command line: `mlx generate --image`, `@picture.png` in a chat, and their replays.

use std::path::PathBuf;
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlx_tests::{golden_folder, model_folder, piped};
use serde_json::Value;

fn mlx(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments);
    piped(command, input)
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder() -> PathBuf {
    golden_folder().join("pictures/mistral3-f32")
}

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Returns the path of a fixture's picture.
fn picture(name: &str) -> String {
    text(&folder().join(name).with_extension("png"))
}

#[test]
fn generate_sees_pictures_and_can_be_replayed() {
    let golden = std::fs::read_to_string(folder().join("cases.json")).expect("the fixture has cases");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let (model, image) = (text(&folder()), picture("48x32"));
    let arguments = [
        "generate",
        "-m",
        &model,
        "-p",
        "What is this?",
        "--image",
        &image,
        "--temperature",
        "0",
        "--max-tokens",
        "48",
        "--ignore-eos",
        "--json",
    ];
    let record = out(&mlx(&arguments, ""));
    let answer: Value = serde_json::from_str(&record).expect("JSON");
    let ids: Vec<&Value> = answer["tokens"].as_array().expect("a list").iter().map(|it| &it["id"]).collect();
    let expected: Vec<&Value> = golden["cases"][1]["tokens"].as_array().expect("a list").iter().collect();
    assert_eq!(ids, expected);
    assert_eq!(answer["request"]["images"].as_array().map(Vec::len), Some(1));
    let other = picture("41x30");
    // A record may come from another machine, so its pictures must be given again.
    assert!(out(&mlx(&["replay", "--image", &other, "--image", &image], &record)).contains("identical"));
    for more in [&[][..], &["--image", &other]] {
        let refused = mlx(&[&["replay"], more].concat(), &record);
        assert!(
            error(&refused).contains("--image is needed: record 1 uses images (1)"),
            "{}",
            error(&refused)
        );
    }
    let tokens = |images: &[&str]| {
        let flags: Vec<&str> = images.iter().flat_map(|image| ["--image", *image]).collect();
        let answer = mlx(
            &[&["generate", "-m", &model, "-p", "a", "--max-tokens", "1", "--json"], &flags[..]].concat(),
            "",
        );
        let answer: Value = serde_json::from_str(&out(&answer)).expect("JSON");
        answer["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    // Two rows of three columns, each with a break or end token.
    assert_eq!((tokens(&[&image]), tokens(&[&image, &other])), (tokens(&[]) + 8, tokens(&[]) + 16));
}

#[test]
fn what_cannot_be_seen_is_named() {
    let (model, image) = (text(&folder()), picture("48x32"));
    let config = text(&folder().join("config.json"));
    let base = ["generate", "-m", &model, "-p", "x", "--image"];
    assert!(error(&mlx(&[&base[..], &["no-such-file.png"]].concat(), "")).contains("no-such-file.png"));
    assert!(
        error(&mlx(&[&base[..], &[&config]].concat(), "")).contains("is not a png, jpeg, webp or gif file")
    );
    let text_only = text(&model_folder("llama-f32"));
    let refused = mlx(&["generate", "-m", &text_only, "-p", "x", "--image", &image], "");
    assert!(error(&refused).starts_with("error: --image cannot be given to llama"), "{}", error(&refused));
    let work = tempfile::tempdir().expect("a folder");
    let broken = text(&work.path().join("broken.gif"));
    std::fs::write(&broken, "GIF89a").expect("it can be written");
    let refused = mlx(&[&base[..], &[&image, "--image", &broken]].concat(), "");
    assert!(
        error(&refused).starts_with(&format!("error: --image {broken} is refused: ")),
        "{}",
        error(&refused)
    );
    let chat = mlx(&["chat", "-m", &text_only, "--max-tokens", "2"], &format!("what is @{image}?\n"));
    assert!(
        error(&chat).contains("48x32.png is a picture, and this model reads only text"),
        "{}",
        error(&chat)
    );
    let raw = mlx(&["generate", "-m", &model, "-p", "x", "--raw", "--image", &image], "");
    assert!(error(&raw).contains("--raw"));
}

/// 16 x 16 gray pixels.
const JPEG: &str = "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx\
    5moq6T/wAALCAAQABABAREA/8QAFwAAAwEAAAAAAAAAAAAAAAAAAAMEBf/EACQQAQABAgUDBQAAAAAAAAAAAAECAxEABBIxYQUUISJBQlFS/9oACAEBAAA/AM/pvT6dai1\
    qyRpxLsnFnaZYDRlYi2YlT1SkWfibeTe9sGTsZPLQtdI6yKFpSfEef1fjDgKpUlKrqjKyrEPbd5+jYAULY//Z";

#[test]
fn a_jpeg_that_was_cut_is_refused() {
    let (model, folder) = (text(&folder()), tempfile::tempdir().expect("a folder"));
    let bytes = STANDARD.decode(JPEG).expect("base64");
    let seen = |length: usize| {
        let file = folder.path().join("picture.jpg");
        std::fs::write(&file, &bytes[..length]).expect("it can be written");
        mlx(&["generate", "-m", &model, "-p", "x", "--max-tokens", "1", "--image", &text(&file)], "")
    };
    out(&seen(bytes.len()));
    for percent in [50, 90] {
        let refused = error(&seen(bytes.len() * percent / 100));
        assert!(refused.contains("cannot be decoded"), "{percent} %: {refused}");
    }
}

#[test]
fn a_chat_sees_pictures_and_goes_on_after_one_that_it_cannot_see() {
    let (model, image) = (text(&folder()), picture("48x32"));
    let saved = tempfile::tempdir().expect("a folder");
    let file = text(&saved.path().join("chat.json"));
    let broken = saved.path().join("broken.gif");
    std::fs::write(&broken, "GIF89a").expect("it can be written");
    let lines = format!("What is @{image}?\n/tokens\nAnd @{}?\n/save {file}\n", broken.display());
    let output = mlx(&["chat", "-m", &model, "--max-tokens", "4", "--temperature", "0"], &lines);
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(notes.contains(&format!("attached {image}, a picture")), "{notes}");
    assert!(notes.contains("cannot be decoded"), "{notes}");
    let messages = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("it was saved: {notes}"));
    let messages: Value = serde_json::from_str(&messages).expect("JSON");
    assert_eq!(messages.as_array().map(Vec::len), Some(2), "the second question was not kept");
    assert!(messages[0]["content"][0]["image"]["file"].is_string());
    // The answer is recomputed from the saved conversation.
    let again = format!("/load {file}\n/retry\n/save! {file}\n");
    let again = out(&mlx(&["chat", "-m", &model, "--max-tokens", "4", "--temperature", "0"], &again));
    let answer = messages[1]["content"].as_str().expect("a text");
    assert!(!answer.is_empty() && again.contains(answer), "{again:?} has not {answer:?}");
    let saved = std::fs::read_to_string(&file).expect("it was saved");
    assert_eq!(serde_json::from_str::<Value>(&saved).expect("JSON"), messages);
}

#[test]
fn a_pasted_path_is_a_picture_for_a_model_that_sees() {
    let (model, image) = (text(&folder()), picture("48x32"));
    let saved = tempfile::tempdir().expect("a folder");
    for (place, line) in [image.clone(), format!("'{image}' and file://{image}")].iter().enumerate() {
        let file = text(&saved.path().join(format!("{place}.json")));
        let lines = format!("{line}\n/save {file}\n");
        let output = mlx(&["chat", "-m", &model, "--max-tokens", "2", "--temperature", "0"], &lines);
        out(&output);
        let notes = String::from_utf8_lossy(&output.stderr);
        assert_eq!(notes.matches(&format!("attached {image}, a picture")).count(), place + 1, "{notes}");
        let messages = std::fs::read_to_string(&file).expect("it was saved");
        let messages: Value = serde_json::from_str(&messages).expect("JSON");
        assert!(messages[0]["content"][place]["image"]["file"].is_string());
        assert_eq!(messages[0]["content"][place + 1]["text"], line.as_str());
        assert!(!String::from_utf8_lossy(&output.stdout).contains('\u{1b}'), "no thumbnail is in a pipe");
    }
    let text_only = text(&model_folder("llama-f32"));
    let output = mlx(&["chat", "-m", &text_only, "--max-tokens", "2"], &format!("{image} what is it?\n"));
    out(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is a picture, and this model reads only text"));
}
