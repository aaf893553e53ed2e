//! `install.sh` puts the program where Linkerd's own script puts it, and says so.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../install.sh")
}

fn install(file: &Path, root: &Path, version: Option<&str>) -> Output {
    let mut command = Command::new("sh");
    command
        .arg(script())
        .arg(file)
        .env("INSTALLROOT", root)
        .env_remove("LINKERD2_VERSION");
    if let Some(version) = version {
        command.env("LINKERD2_VERSION", version);
    }
    command.output().expect("sh starts")
}

#[test]
fn a_program_and_a_link_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    let program = Path::new(env!("CARGO_BIN_EXE_linkerd"));
    let version = linkerd_runtime::version::VERSION;
    // Twice: the second one replaces the first.
    for _ in 0..2 {
        let ran = install(program, &root, Some(version));
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        assert!(said.starts_with(&format!("Linkerd {version} was successfully installed")));
        assert!(
            said.contains(&format!("export PATH=$PATH:{}/bin", root.display())),
            "{said}"
        );
        let gateway = format!(
            "/{}/standard-install.yaml",
            linkerd_cli::install::gateway::VERSION
        );
        assert!(said.contains(&gateway), "{said}");
    }
    let link = fs::read_link(root.join("bin/linkerd")).expect("a link");
    assert_eq!(link, Path::new(&format!("linkerd-{version}")));
    let files = fs::read_dir(root.join("bin")).expect("a directory");
    assert_eq!(files.count(), 2, "nothing else is left behind");
    let shown = Command::new(root.join("bin/linkerd"))
        .args(["version", "--client", "--short"])
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), version);
}

#[test]
fn an_archive_holds_the_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let version = linkerd_runtime::version::VERSION;
    let name = format!("linkerd2-cli-{version}-linux-amd64");
    fs::copy(env!("CARGO_BIN_EXE_linkerd"), dir.path().join(&name)).expect("ours");
    let archive = dir.path().join("linkerd.tar.gz");
    let packed = Command::new("tar")
        .args(["-C", &dir.path().display().to_string(), "-czf"])
        .args([archive.as_os_str(), name.as_ref()])
        .status()
        .expect("tar starts");
    assert!(packed.success());
    let root = dir.path().join("root");
    let ran = install(&archive, &root, None);
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(root.join(format!("bin/linkerd-{version}")).is_file());
}

#[test]
fn what_cannot_be_installed_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    let program = Path::new(env!("CARGO_BIN_EXE_linkerd"));
    for (file, version, expected) in [
        (
            Path::new("/nowhere/linkerd"),
            None,
            "there is no file /nowhere/linkerd",
        ),
        (
            program,
            Some("edge-1.1.1"),
            "LINKERD2_VERSION asks for edge-1.1.1",
        ),
    ] {
        let ran = install(file, &root, version);
        assert_eq!(ran.status.code(), Some(1));
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains(expected), "{said}");
    }
    assert!(!root.exists(), "nothing was installed");
}
