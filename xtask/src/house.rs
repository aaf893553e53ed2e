//! Tests that keep the house as its documents say it is: files that are named exist, every
//! dependency has its reason, and no room sees a room it should not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::program;
use crate::workspace::{Workspace, cargo};

/// Which rooms a room may see, beside crates that are not ours. A new room needs a line here.
const WALLS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("http1", &[]),
    ("runtime", &[]),
    ("api", &["core"]),
    ("tls", &["core"]),
    ("k8s", &["core", "runtime"]),
    ("init", &["core"]),
    // The same rules, for pods that the node redirects.
    ("cni", &["core", "init", "k8s", "runtime"]),
    ("proxy", &["api", "core", "http1", "runtime", "tls"]),
    ("destination", SHARED),
    ("identity", SHARED),
    ("policy", SHARED),
    ("injector", SHARED),
    (
        "controller",
        &[
            "api",
            "core",
            "k8s",
            "runtime",
            "tls",
            "destination",
            "identity",
            "policy",
            "injector",
            "viz",
        ],
    ),
    ("viz", SHARED),
    (
        "cli",
        &["api", "core", "k8s", "runtime", "tls", "injector", "viz"],
    ),
    ("testkit", &["api", "core"]),
    // For measuring only, like a test: nothing depends on it.
    ("bench", &["http1", "testkit"]),
    ("sample", &["runtime"]),
    ("e2e", &["api", "core", "k8s", "runtime", "tls"]),
];

/// What every service may see; services never see each other.
const SHARED: &[&str] = &["api", "core", "k8s", "runtime", "tls"];

/// The rooms that may talk to the API server; deny.toml says the same for cargo-deny.
const TALK_TO_KUBERNETES: &[&str] = &[
    "cli",
    "cni",
    "controller",
    "destination",
    "e2e",
    "identity",
    "injector",
    "k8s",
    "policy",
    "viz",
];

/// Where a path in a document begins when it means a file of the repository.
const PLACES: [&str; 12] = [
    ".cargo/", ".ci/", "bench/", "benches/", "charts/", "crates/", "docker/", "docs/", "fuzz/",
    "sample/", "tests/", "xtask/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is in the root")
        .to_owned()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What stands between backticks, outside of code blocks.
fn quoted(text: &str) -> Vec<&str> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

#[test]
fn every_file_the_documents_name_exists() {
    for document in [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "README.md",
        "docker/README.md",
        "docs/cli.md",
        "docs/operators.md",
    ] {
        let text = read(document);
        let named = quoted(&text)
            .into_iter()
            .filter(|word| !word.contains('*'))
            .filter(|word| PLACES.iter().any(|place| word.starts_with(place)));
        let missing: Vec<&str> = named.filter(|path| !root().join(path).exists()).collect();
        assert!(
            missing.is_empty(),
            "{document} names what is not there: {missing:?}"
        );
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = read("Cargo.toml");
    let section = manifest
        .split("[workspace.dependencies]")
        .nth(1)
        .expect("the section is there");
    let used: BTreeSet<&str> = section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.contains("path = "))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .filter(|name| !name.starts_with('#'))
        .collect();
    let text = read("CONTRIBUTING.md");
    let explained: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `")?
                .split_once("` | ")
                .map(|(name, _)| name)
        })
        .collect();
    let unexplained: Vec<_> = used.difference(&explained).collect();
    let gone: Vec<_> = explained.difference(&used).collect();
    assert!(
        unexplained.is_empty(),
        "CONTRIBUTING.md gives no reason for {unexplained:?}"
    );
    assert!(
        gone.is_empty(),
        "CONTRIBUTING.md explains what is no longer used: {gone:?}"
    );
}

/// A test target with another name would never run, and nobody would be told.
#[test]
fn every_test_target_is_on_a_floor() {
    let workspace = Workspace::find().expect("cargo metadata");
    let floors = ["process_", "netns_", "cluster_"];
    let nowhere: Vec<&str> = workspace
        .test_targets("")
        .into_iter()
        .filter(|target| !floors.iter().any(|floor| target.starts_with(floor)))
        .collect();
    assert!(nowhere.is_empty(), "no floor runs {nowhere:?}");
}

#[test]
fn every_dependency_is_used_by_a_room() {
    let manifest = read("Cargo.toml");
    let section = manifest
        .split("[workspace.dependencies]")
        .nth(1)
        .expect("the section is there");
    let folders = std::fs::read_dir(root().join("crates")).expect("crates");
    let mut rooms: Vec<String> = folders
        .map(|folder| folder.expect("a folder").path().join("Cargo.toml"))
        .filter(|manifest| manifest.exists())
        .map(|manifest| std::fs::read_to_string(manifest).expect("readable"))
        .collect();
    rooms.extend(["tests/e2e/Cargo.toml", "xtask/Cargo.toml"].map(read));
    let uses = |room: &String, name: &str| {
        room.lines().any(|line| {
            line.strip_prefix(name).is_some_and(|rest| {
                rest.starts_with(".workspace") || rest.starts_with(" = { workspace")
            })
        })
    };
    let unused: Vec<&str> = section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .filter(|name| !rooms.iter().any(|room| uses(room, name)))
        .collect();
    assert!(unused.is_empty(), "no room uses {unused:?}");
}

/// The dependencies of every package of the workspace, without those for its tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut command = cargo();
    command
        .current_dir(root())
        .args(["metadata", "--no-deps", "--format-version=1"]);
    let text = program::output(&mut command).expect("cargo metadata");
    let metadata: Value = serde_json::from_str(&text).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().expect("a name").to_owned();
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let normal = dependencies
                .iter()
                .filter(|dependency| dependency["kind"] != "dev");
            let names = normal.filter_map(|dependency| dependency["name"].as_str());
            (name, names.map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn no_room_sees_through_a_wall() {
    let mut broken = Vec::new();
    for (package, dependencies) in dependencies() {
        let Some(room) = package.strip_prefix("linkerd-") else {
            continue;
        };
        let Some((_, allowed)) = WALLS.iter().find(|(name, _)| *name == room) else {
            broken.push(format!("{package} has no line in the table of walls"));
            continue;
        };
        for dependency in &dependencies {
            let seen = dependency.strip_prefix("linkerd-");
            if seen.is_some_and(|seen| !allowed.contains(&seen)) {
                broken.push(format!("{package} must not see {dependency}"));
            }
        }
        if dependencies.contains("kube") && !TALK_TO_KUBERNETES.contains(&room) {
            broken.push(format!("{package} must not talk to the API server"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
