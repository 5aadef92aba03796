//! The licences of all crates, wheels and scripts of the page in a release, and a bill of materials (CycloneDX 1.5).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{process, workspace::cargo};

/// The package of the program in a release.
const PROGRAM: &str = "mlx-cli";

/// Name prefixes of files with licence terms.
const TERMS: [&str; 6] = ["license", "licence", "copying", "notice", "copyright", "unlicense"];

/// A third-party component of the release.
struct Part {
    name: String,
    version: String,
    /// The licence as an SPDX expression.
    terms: String,
    /// The type in package URLs.
    ecosystem: &'static str,
    folder: PathBuf,
}

/// Writes `licenses/` and `bill-of-materials.json` into `release`. `wheels` is the folder of unpacked wheels.
pub(super) fn write(root: &Path, host: &str, wheels: &Path, release: &Path) -> Result<()> {
    let mut parts = crates(root, host)?;
    parts.extend(unpacked(wheels)?);
    parts.extend(scripts(&root.join("mlx-server/page/vendor"))?);
    parts.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    for part in &parts {
        let into = release.join("licenses").join(format!("{}-{}", part.name, part.version));
        copy_terms(&part.folder, &into)?;
        if !into.exists() {
            // Some crates declare their terms but have no file with them.
            fs::create_dir_all(&into)?;
            fs::write(into.join("TERMS"), format!("{}\n", part.terms))?;
        }
    }
    let component = |part: &Part| {
        let Part { name, version, terms, ecosystem, .. } = part;
        json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:{ecosystem}/{name}@{version}"),
            "licenses": [{ "expression": terms }],
        })
    };
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "mlx", "version": env!("CARGO_PKG_VERSION") } },
        "components": parts.iter().map(component).collect::<Vec<_>>(),
    });
    fs::write(release.join("bill-of-materials.json"), format!("{bill:#}\n"))?;
    Ok(())
}

/// Returns the third-party crates of the program.
fn crates(root: &Path, host: &str) -> Result<Vec<Part>> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--filter-platform", host]).current_dir(root);
    let text = process::output(&mut command, "run this as `cargo xtask`")?;
    let metadata: Value = serde_json::from_str(&text).context("`cargo metadata` printed no valid json")?;
    let used = reachable(&metadata)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let foreign =
        packages.filter(|package| used.contains(text_of(&package["id"])) && !package["source"].is_null());
    let part = |package: &Value| {
        let manifest = Path::new(text_of(&package["manifest_path"]));
        Ok(Part {
            name: text_of(&package["name"]).to_owned(),
            version: text_of(&package["version"]).to_owned(),
            terms: package["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR "),
            ecosystem: "cargo",
            folder: manifest.parent().context("a manifest lies in a folder")?.to_owned(),
        })
    };
    foreign.map(part).collect()
}

/// Returns the ids of the program and its run-time dependencies.
fn reachable(metadata: &Value) -> Result<BTreeSet<&str>> {
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let program = packages().find(|package| package["name"] == PROGRAM).context("the program is missing")?;
    let mut open = vec![text_of(&program["id"])];
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
        let node = nodes.into_iter().find(|node| node["id"] == id).context("a package is not resolved")?;
        let runs = |dependency: &&Value| {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            kinds.into_iter().any(|kind| kind["kind"].is_null())
        };
        let dependencies = node["deps"].as_array().into_iter().flatten().filter(runs);
        open.extend(dependencies.map(|dependency| text_of(&dependency["pkg"])));
    }
    Ok(found)
}

/// Returns the wheels with shipped libraries.
fn unpacked(wheels: &Path) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(wheels)? {
        let folder = entry?.path();
        let metadata = folder.join("METADATA");
        let is_shipped = |name: &str| !name.starts_with("libclang");
        let stem = folder.file_name().and_then(|name| name.to_str()?.strip_suffix(".dist-info"));
        if !stem.is_some_and(is_shipped) {
            continue;
        }
        let text =
            fs::read_to_string(&metadata).with_context(|| format!("cannot read {}", metadata.display()))?;
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
        };
        parts.push(Part {
            name: field("Name:").context("a wheel has no name")?,
            version: field("Version:").context("a wheel has no version")?,
            terms: field("License-Expression:")
                .or_else(|| field("License:"))
                .unwrap_or_else(|| "NOASSERTION".to_owned()),
            ecosystem: "pypi",
            folder,
        });
    }
    ensure!(!parts.is_empty(), "{} holds no wheels", wheels.display());
    Ok(parts)
}

/// Returns the third-party scripts of the server's page. Each is a folder with the package's `package.json` and licence.
fn scripts(vendor: &Path) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(vendor)? {
        let folder = entry?.path();
        let manifest = folder.join("package.json");
        let text =
            fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
        let package: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no json", manifest.display()))?;
        let field = |name: &str| {
            let value = package[name].as_str();
            value.map(str::to_owned).with_context(|| format!("{} has no {name}", manifest.display()))
        };
        parts.push(Part {
            name: field("name")?,
            version: field("version")?,
            terms: field("license")?,
            ecosystem: "npm",
            folder,
        });
    }
    Ok(parts)
}

/// Copies files with licence terms, including those in `licenses/`.
fn copy_terms(from: &Path, into: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_terms = TERMS.iter().any(|term| name.to_lowercase().starts_with(term));
        if path.is_dir() && is_terms {
            copy_terms(&path, &into.join(&name))?;
        } else if is_terms || from.file_name().is_some_and(|folder| folder == "licenses") && path.is_file() {
            fs::create_dir_all(into)?;
            fs::write(into.join(&name), fs::read(&path)?)?;
        }
    }
    Ok(())
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_the_page_have_a_version_and_a_licence() {
        let root = crate::workspace::root().expect("the tests run in the workspace");
        let parts = scripts(&root.join("mlx-server/page/vendor")).expect("each has a package.json");
        assert!(parts.iter().any(|part| part.name == "temml" && part.terms == "MIT"));
        assert!(parts.iter().all(|part| part.folder.join("LICENSE").is_file()));
    }

    #[test]
    fn what_only_builds_or_tests_is_left_out() {
        let dependency = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let node = |name: &str, deps: Value| json!({"id": name, "deps": deps});
        let metadata = json!({
            "packages": [{"name": PROGRAM, "id": "program"}],
            "resolve": {"nodes": [
                node("program", json!([dependency("used", Value::Null), dependency("test", json!("dev"))])),
                node("used", json!([dependency("deep", Value::Null), dependency("tool", json!("build"))])),
                node("deep", json!([dependency("program", Value::Null)])),
            ]},
        });
        assert_eq!(reachable(&metadata).expect("it is whole"), ["deep", "program", "used"].into());
    }
}
