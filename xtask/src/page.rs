//! `cargo xtask page`: tests the server's page in a headless Chromium, with the built-in guide and a scripted model.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{output, succeeds};
use crate::{setup, workspace};

const INSTALL_NODE: &str = "install Node.js 20 or newer with npm (on Debian or Ubuntu: `apt install npm`)";

/// Chromium and similar browsers, by name or by path.
const BROWSERS: [&str; 5] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/// Builds the server and runs tests/page/flow.mjs, or speed.mjs if `measures`. With `may_skip`, a machine without Chromium or Node.js skips the
/// test with a message, unless `CHROMIUM` names a browser.
pub(crate) fn run(may_skip: bool, measures: bool) -> Result<()> {
    let may_skip = may_skip && named().is_none();
    let browser = match named_or_known_browser() {
        Err(missing) if may_skip => {
            println!("skipped the test of the page: {missing:#}");
            return Ok(());
        }
        found => found?,
    };
    setup::run()?;
    let root = workspace::root()?;
    let folder = root.join("target/page");
    install(&root.join("tests/page"), &folder)?;
    let mut build = workspace::cargo();
    // Without --package, the features are the same as in the tests, so nothing is compiled twice.
    build.args(["build", "--locked", "--bin", "mlx-server"]).current_dir(&root);
    ensure!(build.status()?.success(), "the server does not build");
    let script = if measures { "tests/page/speed.mjs" } else { "tests/page/flow.mjs" };
    let mut flow = Command::new("node");
    flow.arg(root.join(script)).arg(root.join("target/debug/mlx-server")).arg(browser).arg(&folder);
    ensure!(flow.status()?.success(), "the test of the page failed; screenshots are in {}", folder.display());
    Ok(())
}

/// Writes the third-party files of the page.
pub(crate) fn vendor() -> Result<()> {
    let root = workspace::root()?;
    let folder = root.join("target/page");
    install(&root.join("tests/page"), &folder)?;
    let mut write = Command::new("node");
    write.arg(root.join("tests/page/vendor.mjs")).arg(&folder);
    output(&mut write, INSTALL_NODE).map(drop)
}

/// Returns the browser in `CHROMIUM`.
fn named() -> Option<PathBuf> {
    env::var_os("CHROMIUM").filter(|it| !it.is_empty()).map(PathBuf::from)
}

/// Returns the browser in `CHROMIUM`, or the first known one that starts. Fails without Node.js and npm.
pub(crate) fn named_or_known_browser() -> Result<PathBuf> {
    let version = output(Command::new("node").arg("--version"), INSTALL_NODE)?;
    let major =
        version.trim().trim_start_matches('v').split('.').next().and_then(|it| it.parse::<u32>().ok());
    ensure!(major.is_some_and(|it| it >= 20), "Node.js is {}: {INSTALL_NODE}", version.trim());
    output(Command::new("npm").arg("--version"), INSTALL_NODE)?;
    if let Some(named) = named() {
        return started(&named).with_context(|| {
            format!("CHROMIUM is {}, which does not start; name a browser", named.display())
        });
    }
    BROWSERS.iter().find_map(|it| started(Path::new(it))).context(
        "Chromium was not found: install it (on Debian: `apt install chromium`), or name it in CHROMIUM",
    )
}

/// Returns the absolute path of a browser, if it exists and starts.
fn started(browser: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Joining an absolute path to a folder leaves it unchanged.
    let whole = env::split_paths(&path).map(|folder| folder.join(browser)).find(|it| it.is_file())?;
    succeeds(Command::new(&whole).arg("--version")).then_some(whole)
}

/// Installs the packages of package-lock.json, without running their scripts.
pub(crate) fn install(from: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let lock = "package-lock.json";
    let is_same = || std::fs::read(from.join(lock)).ok() == std::fs::read(folder.join(lock)).ok();
    if folder.join("node_modules/.package-lock.json").exists() && is_same() {
        return Ok(());
    }
    for name in ["package.json", lock] {
        std::fs::copy(from.join(name), folder.join(name))?;
    }
    let mut install = Command::new("npm");
    install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]).arg(folder);
    output(&mut install, INSTALL_NODE).map(drop)
}
