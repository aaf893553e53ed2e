//! Programs that are not Debian packages, built from Go modules (and one C file) and kept
//! in the cache by version. Beside each lies its checksum: a product that does not match
//! it is built again.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::{archive, machine, program, ui};

mod gomod;

pub(crate) const KUBERNETES_VERSION: &str = "1.34.4";
pub(crate) const COREDNS_VERSION: &str = "1.12.4";
pub(crate) const HELM_VERSION: &str = "3.19.0";
const H2SPEC_VERSION: &str = "2.2.1";
const GRPC_VERSION: &str = "1.76.0";

/// The oldest Go that the Kubernetes modules accept.
const GO_NEEDED: (u32, u32) = (1, 24);

/// The names under which the one Kubernetes program answers.
const KUBERNETES_PROGRAMS: [&str; 6] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];

const KUBE_SOURCE: &str = include_str!("../assets/cluster/kube.go");
const H2SPEC_MODULE: &str = include_str!("../assets/tools/h2spec.mod");
const PAUSE_SOURCE: &str = include_str!("../assets/cluster/pause.c");

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    tool: Tool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Tool {
    GrpcInteropClient,
    GrpcInteropServer,
    H2spec,
    Helm,
    Kubectl,
}

/// `cargo xtask tool NAME`: prints where a tool is, building it when it is not cached.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let path = match args.tool {
        Tool::GrpcInteropClient => grpc_interop("grpc-interop-client", "client")?,
        Tool::GrpcInteropServer => grpc_interop("grpc-interop-server", "server")?,
        Tool::H2spec => h2spec()?,
        Tool::Helm => helm()?,
        Tool::Kubectl => kubectl()?,
    };
    ui::out(path.display());
    Ok(ExitCode::SUCCESS)
}

/// The directory with every Kubernetes program, kubectl included; built when it is not cached.
pub(crate) fn kubernetes() -> Result<PathBuf> {
    let product = Product::new("kube", KUBERNETES_VERSION, KUBE_SOURCE)?;
    let file = product.get(6000, "Kubernetes (7 minutes on two cores, once)", |dir| {
        build_kubernetes(dir)?;
        for name in KUBERNETES_PROGRAMS {
            std::os::unix::fs::symlink("kube", dir.join(name))?;
        }
        Ok(())
    })?;
    Ok(file
        .parent()
        .context("a product lies in a directory")?
        .to_owned())
}

/// A kubectl: ours when it is built, else the machine's, else ours is built.
pub(crate) fn kubectl() -> Result<PathBuf> {
    let ours = Product::new("kube", KUBERNETES_VERSION, KUBE_SOURCE)?
        .dir
        .join("kubectl");
    if ours.exists() {
        return Ok(ours);
    }
    if let Some(found) = program::find("kubectl") {
        return Ok(found);
    }
    Ok(kubernetes()?.join("kubectl"))
}

pub(crate) fn coredns() -> Result<PathBuf> {
    Product::new("coredns", COREDNS_VERSION, "1")?.get(3000, "CoreDNS (3 minutes, once)", |dir| {
        go_install(dir, "github.com/coredns/coredns", COREDNS_VERSION, "")
    })
}

/// The real Helm client; only tests need it.
pub(crate) fn helm() -> Result<PathBuf> {
    let stamp = format!("-X helm.sh/helm/v3/internal/version.version=v{HELM_VERSION}");
    Product::new("helm", HELM_VERSION, &stamp)?.get(2000, "Helm (2 minutes, once)", |dir| {
        go_install(dir, "helm.sh/helm/v3/cmd/helm", HELM_VERSION, &stamp)
    })
}

/// The HTTP/2 conformance suite; only tests need it. Its module is older than go.mod files, so ours
/// names what it is built with.
fn h2spec() -> Result<PathBuf> {
    Product::new("h2spec", H2SPEC_VERSION, H2SPEC_MODULE)?.get(500, "h2spec (once)", |dir| {
        let source = dir.join("source");
        fs::create_dir_all(&source)?;
        fs::write(source.join("go.mod"), H2SPEC_MODULE)?;
        run_go(
            program::command(go()?, ["build", "-mod=mod", "-trimpath", "-o"])
                .arg(dir.join("h2spec"))
                .arg("github.com/summerwind/h2spec/cmd/h2spec")
                .env("CGO_ENABLED", "0")
                .current_dir(&source),
            "compiling",
        )?;
        fs::remove_dir_all(&source)?;
        Ok(())
    })
}

/// One side of gRPC's interoperability suite; only tests need it.
fn grpc_interop(name: &'static str, side: &str) -> Result<PathBuf> {
    Product::new(name, GRPC_VERSION, "1")?.get(1500, "a gRPC interop program (once)", |dir| {
        let package = format!("google.golang.org/grpc/interop/{side}");
        go_install(dir, &package, GRPC_VERSION, "")?;
        fs::rename(dir.join(side), dir.join(name))?;
        Ok(())
    })
}

/// The program that holds the namespaces of a pod, and of a node.
pub(crate) fn pause() -> Result<PathBuf> {
    Product::new("pause", "1", PAUSE_SOURCE)?.get(10, "the pause program", |dir| {
        let source = dir.join("pause.c");
        fs::write(&source, PAUSE_SOURCE)?;
        program::output(
            program::command("cc", ["-static", "-Os", "-s", "-o"])
                .arg(dir.join("pause"))
                .arg(&source),
        )?;
        Ok(())
    })
}

/// One cached build product: `tools/NAME/VERSION-RECIPE/NAME` and its checksum.
#[derive(Debug)]
struct Product {
    name: &'static str,
    dir: PathBuf,
}

impl Product {
    fn new(name: &'static str, version: &str, recipe: &str) -> Result<Self> {
        let recipe = &archive::hex_digest(recipe.as_bytes())[..8];
        let dir = machine::cache_dir()?.join("tools").join(name);
        Ok(Self {
            name,
            dir: dir.join(format!("{version}-{recipe}")),
        })
    }

    /// The product's file; `build` makes it in the directory it is given.
    fn get(
        &self,
        megabytes: u64,
        label: &str,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let file = self.dir.join(self.name);
        if self.is_whole()? {
            return Ok(file);
        }
        let shelf = self.dir.parent().context("a product lies on a shelf")?;
        let _lock = machine::Lock::wait(&shelf.join("lock"), &format!("building {label}"))?;
        if self.is_whole()? {
            return Ok(file);
        }
        if file.exists() {
            ui::note(format_args!(
                "  {} does not match its checksum: building it again",
                file.display()
            ));
        }
        machine::require_disk(shelf, megabytes, &format!("building {label}"))?;
        remove_partial(shelf)?;
        let partial = shelf.join(format!("partial-{}", std::process::id()));
        fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
        ui::long_step(format_args!("building {label}"), || build(&partial))?;
        fs::write(
            partial.join(format!("{}.sha256", self.name)),
            format!(
                "{}  {}\n",
                file_digest(&partial.join(self.name))?,
                self.name
            ),
        )?;
        // Programs of a running cluster may still use the damaged file: moving it away keeps them.
        if self.dir.exists() {
            fs::rename(
                &self.dir,
                shelf.join(format!("partial-old-{}", std::process::id())),
            )?;
        }
        fs::rename(&partial, &self.dir)?;
        remove_partial(shelf)?;
        Ok(file)
    }

    fn is_whole(&self) -> Result<bool> {
        let Ok(noted) = fs::read_to_string(self.dir.join(format!("{}.sha256", self.name))) else {
            return Ok(false);
        };
        let file = self.dir.join(self.name);
        Ok(file.exists() && noted.split_whitespace().next() == Some(file_digest(&file)?.as_str()))
    }
}

/// What runs that were killed left behind; the caller holds the shelf's lock.
fn remove_partial(shelf: &Path) -> Result<()> {
    for entry in fs::read_dir(shelf)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("partial-") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn file_digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file
            .read(&mut buffer)
            .with_context(|| format!("reading {}", path.display()))?;
        if read == 0 {
            return Ok(archive::hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
    }
}

/// The go command, new enough for the modules we build.
pub(crate) fn go() -> Result<PathBuf> {
    let next = format!(
        "install Go {}.{} or newer (Debian 13 or newer: apt-get install golang-go; \
         elsewhere the archive from the Go project's download page), put it on PATH and run this again",
        GO_NEEDED.0, GO_NEEDED.1
    );
    let found = program::find("go")
        .or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|go| go.exists()));
    let Some(go) = found else {
        return Err(ui::hint(
            "the Go toolchain is not here; it fetches the Gateway API and builds Kubernetes",
            next,
        ));
    };
    let version = program::output(&mut program::command(&go, ["env", "GOVERSION"]))?;
    let version = version.trim();
    if go_version(version).is_none_or(|found| found < GO_NEEDED) {
        return Err(ui::hint(
            format!("{} is {version}, which is too old", go.display()),
            next,
        ));
    }
    Ok(go)
}

/// `go1.26.8` → (1, 26)
fn go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("go")?.split(['.', 'r', 'b', ' ']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn build_kubernetes(dir: &Path) -> Result<()> {
    let go = go()?;
    let source = dir.join("source");
    fs::create_dir_all(&source)?;
    let module = format!("k8s.io/kubernetes@v{KUBERNETES_VERSION}");
    let about = run_go(
        program::command(&go, ["mod", "download", "-json", &module]).current_dir(&source),
        "downloading the Kubernetes sources",
    )?;
    let about: serde_json::Value = serde_json::from_str(&about).context("reading go's answer")?;
    let upstream = PathBuf::from(about["Dir"].as_str().context("go named no directory")?);
    let staging = KUBERNETES_VERSION.replacen('1', "0", 1);
    let their_mod = fs::read_to_string(upstream.join("go.mod"))?;
    let ours = gomod::wrapper(&their_mod, KUBERNETES_VERSION, &staging);
    fs::write(source.join("go.mod"), ours)?;
    fs::write(source.join("go.sum"), fs::read(upstream.join("go.sum"))?)?;
    fs::write(source.join("main.go"), KUBE_SOURCE)?;
    let minor = KUBERNETES_VERSION
        .split('.')
        .nth(1)
        .context("a version has three parts")?;
    let package = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {package}.gitVersion=v{KUBERNETES_VERSION} \
         -X {package}.gitMajor=1 -X {package}.gitMinor={minor}"
    );
    run_go(
        program::command(
            &go,
            ["build", "-mod=mod", "-trimpath", "-ldflags", &flags, "-o"],
        )
        .arg(dir.join("kube"))
        .arg(".")
        .env("CGO_ENABLED", "0")
        .current_dir(&source),
        "compiling Kubernetes",
    )?;
    fs::remove_dir_all(&source)?;
    Ok(())
}

fn go_install(dir: &Path, package: &str, version: &str, stamp: &str) -> Result<()> {
    let flags = format!("-ldflags=-s -w {stamp}");
    let package = format!("{package}@v{version}");
    run_go(
        program::command(go()?, ["install", "-trimpath", &flags, &package])
            .env("CGO_ENABLED", "0")
            .env("GOBIN", dir)
            .current_dir(dir),
        "compiling",
    )?;
    Ok(())
}

fn run_go(command: &mut Command, what: &str) -> Result<String> {
    match ui::patiently(what, command) {
        Ok(text) => Ok(text),
        Err(error) => {
            let text = format!("{error:#}");
            if text.contains("dial tcp")
                || text.contains("no such host")
                || text.contains("proxyconnect")
            {
                return Err(ui::hint(
                    text,
                    "check that the Go module proxy can be reached (`go env GOPROXY`) and run this again",
                ));
            }
            bail!("{text}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_read() {
        let cases = [
            ("release", "go1.26.8", Some((1, 26))),
            ("candidate", "go1.25rc1", Some((1, 25))),
            ("development", "devel +abc", None),
        ];
        for (name, text, expected) in cases {
            assert_eq!(go_version(text), expected, "{name}");
        }
    }

    #[test]
    fn a_damaged_product_is_built_again() {
        let shelf = std::env::temp_dir().join(format!("xtask-product-{}", std::process::id()));
        let product = Product {
            name: "thing",
            dir: shelf.join("1-x"),
        };
        let build = |dir: &Path| Ok(fs::write(dir.join("thing"), "good")?);
        let file = product.get(1, "a thing", build).expect("built");
        fs::write(&file, "bad").expect("ours");
        assert!(!product.is_whole().expect("readable"));
        product.get(1, "a thing", build).expect("built again");
        assert_eq!(fs::read_to_string(&file).expect("there"), "good");
        fs::remove_file(shelf.join("1-x/thing.sha256")).expect("ours");
        assert!(
            !product.is_whole().expect("readable"),
            "no checksum, no trust"
        );
        let error = product
            .get(1, "a thing", |_| bail!("no"))
            .expect_err("cannot build");
        assert_eq!(error.to_string(), "no");
        fs::remove_dir_all(&shelf).expect("ours");
    }
}
