//! The image with the program `linkerd-e2e-house`: built statically, packed and loaded into
//! the local cluster, once for a test run. For a cluster that is not ours,
//! LINKERD_E2E_HOUSE_IMAGE names an image it can pull.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{Kubectl, workspace};

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
    let words = ["cluster", "load", "--name", &cluster, "--image", &image];
    // The cluster is named: a KUBECONFIG of another would only be in the way.
    workspace::output(
        workspace::xtask(&words)
            .arg("--program")
            .arg(&program)
            .env_remove("KUBECONFIG"),
    );
    image
}

/// One of the product's images, built quickly and loaded; gives its name. For a cluster that is
/// not ours, LINKERD_IMAGE_REGISTRY and LINKERD_IMAGE_VERSION say
/// where it can pull them; `cargo xtask test` sets them after loading the images itself.
///
/// # Panics
/// When the image cannot be made, or not be loaded into the cluster.
pub fn product_image(kubectl: &Kubectl, name: &str) -> String {
    let set = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    if let (Some(registry), Some(tag)) =
        (set("LINKERD_IMAGE_REGISTRY"), set("LINKERD_IMAGE_VERSION"))
    {
        return format!("{registry}/{name}:{tag}");
    }
    let cluster = local_cluster(kubectl.kubeconfig()).unwrap_or_else(|| {
        panic!(
            "{} is not a cluster of `cargo xtask cluster up`: set LINKERD_IMAGE_REGISTRY and \
             LINKERD_IMAGE_VERSION to images it can pull",
            kubectl.kubeconfig().display()
        )
    });
    let tag = format!("e2e-{}", std::process::id());
    let registry = "localhost/linkerd-e2e";
    let out = std::env::temp_dir().join(format!("linkerd-images-{}", std::process::id()));
    let mut make = workspace::xtask(&["images"]);
    make.args(["--quick", "--only", name, "--registry", registry])
        .args(["--tag", &tag, "--cluster", &cluster, "--out"])
        .arg(&out);
    workspace::output(&mut make);
    // The cluster has its own copy now.
    let _ = std::fs::remove_dir_all(&out);
    format!("{registry}/{name}:{tag}")
}

/// The name of the local cluster a kubeconfig belongs to: `…/linkerd-rs/NAME/kubeconfig`.
fn local_cluster(kubeconfig: &Path) -> Option<String> {
    let dir = kubeconfig.parent()?;
    dir.join("cluster.json").exists().then_some(())?;
    Some(dir.file_name()?.to_string_lossy().into_owned())
}

fn build() -> PathBuf {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = workspace::cargo(&["build", "--quiet", "--package", "linkerd-e2e"]);
    build
        .args(["--bin", PROGRAM])
        .args(["--profile", PROFILE, "--target", &target])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", rust_flags());
    workspace::output(&mut build);
    workspace::target_dir()
        .join(target)
        .join(PROFILE)
        .join(PROGRAM)
}

/// The flags `cargo xtask images` builds with: the same flags share the built dependencies.
fn rust_flags() -> String {
    let mut flags = "-C target-feature=+crt-static".to_owned();
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    if let Some(home) = cargo_home {
        flags.push_str(&format!(" --remap-path-prefix={}=/cargo", home.display()));
    }
    flags
}
