//! The image with the program `linkerd-e2e-house`: built statically, packed and loaded into
//! the local cluster, once for a test run. For a cluster that is not ours,
//! LINKERD_E2E_HOUSE_IMAGE names an image it can pull.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::Kubectl;

const PROGRAM: &str = "linkerd-e2e-house";
/// The profile of all programs that cluster tests run.
const PROFILE: &str = "quick";

/// The image's name; it is in the cluster when this returns.
///
/// # Panics
/// When the program cannot be built, or not be loaded into the cluster.
pub fn house_image(kubectl: &Kubectl) -> &'static str {
    static IMAGE: OnceLock<String> = OnceLock::new();
    IMAGE.get_or_init(|| match std::env::var("LINKERD_E2E_HOUSE_IMAGE") {
        Ok(image) if !image.is_empty() => image,
        _ => load(kubectl),
    })
}

fn load(kubectl: &Kubectl) -> String {
    let cluster = local_cluster(kubectl.kubeconfig()).unwrap_or_else(|| {
        panic!(
            "{} is not a cluster of `cargo xtask cluster up`: set LINKERD_E2E_HOUSE_IMAGE to an \
             image with {PROGRAM} that it can pull",
            kubectl.kubeconfig().display()
        )
    });
    let program = build();
    let image = format!("localhost/linkerd-e2e/house:{}", std::process::id());
    let mut load = cargo();
    load.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--",
        "cluster",
        "load",
    ])
    .args(["--name", &cluster, "--image", &image, "--program"])
    .arg(&program);
    must_succeed(&mut load);
    image
}

/// The name of the local cluster a kubeconfig belongs to: `…/linkerd-rs/NAME/kubeconfig`.
fn local_cluster(kubeconfig: &Path) -> Option<String> {
    let dir = kubeconfig.parent()?;
    dir.join("cluster.json").exists().then_some(())?;
    Some(dir.file_name()?.to_string_lossy().into_owned())
}

fn build() -> PathBuf {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cargo();
    build
        .args([
            "build",
            "--quiet",
            "--package",
            "linkerd-e2e",
            "--bin",
            PROGRAM,
        ])
        .args(["--profile", PROFILE, "--target", &target])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", rust_flags());
    must_succeed(&mut build);
    target_dir().join(target).join(PROFILE).join(PROGRAM)
}

/// The flags `cargo xtask images` builds with: the same flags share the built dependencies.
fn rust_flags() -> String {
    let mut flags = format!(
        "-C target-feature=+crt-static --remap-path-prefix={}=/linkerd",
        workspace().display()
    );
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    if let Some(home) = cargo_home {
        flags.push_str(&format!(" --remap-path-prefix={}=/cargo", home.display()));
    }
    flags
}

fn workspace() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    dir.ancestors()
        .nth(2)
        .expect("this package lies two directories deep")
        .to_owned()
}

fn target_dir() -> PathBuf {
    // This test program lies in TARGET/PROFILE/deps.
    let own = std::env::current_exe().expect("a program knows where it is");
    own.ancestors()
        .nth(3)
        .expect("a test lies below the target directory")
        .to_owned()
}

fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command
        .current_dir(workspace())
        .env("CARGO_TARGET_DIR", target_dir());
    command
}

fn must_succeed(command: &mut Command) {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(
        done.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}
