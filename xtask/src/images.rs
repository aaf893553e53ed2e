//! `cargo xtask images`: builds static programs and writes them as container images, without
//! a container engine. The same sources on the same system give the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::archive::{Capability, Image};
use crate::workspace::{self, Workspace};
use crate::{cluster, setup, ui};

mod debug;
mod iptables;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Make only this image; may be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Build fast instead of building fast programs
    #[arg(long)]
    quick: bool,
    /// Where the archives go [default: dist/images]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The first part of the images' names
    #[arg(long, default_value = REGISTRY)]
    registry: String,
    /// The images' tag [default: the version of this tree]
    #[arg(long)]
    tag: Option<String>,
    /// The local cluster to load the images into, if it is up
    #[arg(long, value_name = "NAME", default_value = cluster::DEFAULT_NAME)]
    cluster: String,
}

pub(crate) const REGISTRY: &str = "localhost/linkerd";

/// How well to optimise; see the profiles in Cargo.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Profile {
    /// The data plane: everything for speed.
    Release,
    /// Control plane, CLI, sample: nearly as good, much sooner.
    Control,
    /// The inner loop: everything for a short build.
    Quick,
}

#[derive(Debug)]
struct Program {
    package: &'static str,
    bin: &'static str,
    profile: Profile,
}

/// What goes into one image.
struct Recipe {
    name: &'static str,
    programs: &'static [Program],
    fill: fn(Image, &Programs) -> Result<Image>,
}

/// The content of built programs, by name.
#[derive(Debug, Default)]
struct Programs(BTreeMap<&'static str, Vec<u8>>);

const PROXY: Program = Program {
    package: "linkerd-proxy",
    bin: "linkerd-proxy",
    profile: Profile::Release,
};
const INIT: Program = Program {
    package: "linkerd-init",
    bin: "linkerd-init",
    profile: Profile::Release,
};
const VALIDATOR: Program = Program {
    package: "linkerd-init",
    bin: "linkerd-network-validator",
    profile: Profile::Release,
};
const CNI: Program = Program {
    package: "linkerd-cni",
    bin: "linkerd-cni",
    profile: Profile::Control,
};
const CNI_INSTALL: Program = Program {
    package: "linkerd-cni",
    bin: "linkerd-cni-install",
    profile: Profile::Control,
};
const SLEEP: Program = Program {
    package: "linkerd-runtime",
    bin: "linkerd-sleep",
    profile: Profile::Release,
};
const CONTROLLER: Program = Program {
    package: "linkerd-controller",
    bin: "linkerd-controller",
    profile: Profile::Control,
};

const COMMAND_LINE: Program = Program {
    package: "linkerd-cli",
    bin: "linkerd",
    profile: Profile::Control,
};
const SAMPLE: Program = Program {
    package: "linkerd-sample",
    bin: "emojivoto",
    profile: Profile::Control,
};
/// Measures the proxy; in no image.
const BENCH: Program = Program {
    package: "linkerd-bench",
    bin: "linkerd-bench",
    profile: Profile::Release,
};

/// Every image there is. An image appears here together with its program.
const RECIPES: &[Recipe] = &[
    Recipe {
        name: "proxy",
        programs: &[PROXY, INIT, VALIDATOR, SLEEP],
        fill: proxy,
    },
    Recipe {
        name: "proxy-init",
        programs: &[INIT],
        fill: proxy_init,
    },
    Recipe {
        name: "controller",
        programs: &[CONTROLLER],
        fill: controller,
    },
    Recipe {
        name: "cni-plugin",
        programs: &[CNI, CNI_INSTALL],
        fill: cni_plugin,
    },
    Recipe {
        name: "debug",
        programs: &[],
        fill: |image, _| debug::fill(image),
    },
    Recipe {
        name: "emojivoto",
        programs: &[SAMPLE],
        fill: sample,
    },
];

/// What the firewall's programs must be allowed to do when a non-root user runs them.
const FIREWALL: [Capability; 2] = [Capability::NetAdmin, Capability::NetRaw];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let archives = make(args)?;
    let load = !cluster::is_foreign() && cluster::is_up(&args.cluster)?;
    if !load {
        ui::note(format_args!(
            "  not loaded: {}",
            match (cluster::is_foreign(), crate::machine::is_root()) {
                (true, _) => "KUBECONFIG names a cluster that is not local".to_owned(),
                (_, false) => "that needs root".to_owned(),
                _ => format!("cluster {} is not up", args.cluster),
            }
        ));
    }
    for archive in archives {
        if load {
            let content =
                fs::read(&archive).with_context(|| format!("reading {}", archive.display()))?;
            cluster::load(&args.cluster, &content)?;
        }
        ui::out(archive.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The arguments of `--quick` and nothing else.
pub(crate) fn quick(quick: bool) -> Args {
    Args {
        only: Vec::new(),
        quick,
        out: None,
        registry: REGISTRY.to_owned(),
        tag: None,
        cluster: cluster::DEFAULT_NAME.to_owned(),
    }
}

/// Every image, and the `linkerd` command built along with them: alone, it would get its
/// dependencies with other features, all built once more. Gives the archives and the command.
pub(crate) fn with_command_line(quickly: bool) -> Result<(Vec<PathBuf>, PathBuf)> {
    let archives = make_and_build(&quick(quickly), &[COMMAND_LINE])?;
    let workspace = Workspace::find()?;
    Ok((archives, COMMAND_LINE.path(&workspace, quickly)))
}

/// Builds the `linkerd` command, as static as the programs of the images; gives its path.
pub(crate) fn command_line(quick: bool) -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    build(&workspace, &[&COMMAND_LINE], quick)?;
    Ok(COMMAND_LINE.path(&workspace, quick))
}

/// The version of this tree, which also is the default tag.
pub(crate) fn version() -> String {
    std::env::var("LINKERD_VERSION")
        .ok()
        .filter(|version| !version.is_empty())
        .unwrap_or_else(|| concat!("edge-", env!("CARGO_PKG_VERSION")).to_owned())
}

/// Builds and writes the images that were asked for; gives the archives.
pub(crate) fn make(args: &Args) -> Result<Vec<PathBuf>> {
    make_and_build(args, &[])
}

fn make_and_build(args: &Args, also: &'static [Program]) -> Result<Vec<PathBuf>> {
    let recipes = chosen(&args.only)?;
    setup::ensure(&[setup::Purpose::Build])?;
    let workspace = Workspace::find()?;
    let programs = recipes.iter().flat_map(|recipe| recipe.programs);
    let programs: Vec<&Program> = programs.chain(also).collect();
    let programs = build(&workspace, &programs, args.quick)?;
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| workspace.root.join("dist/images"));
    let tag = args.tag.clone().unwrap_or_else(version);
    let mut archives = Vec::new();
    for recipe in recipes {
        let archive = out.join(format!("{}.tar", recipe.name));
        let reference = format!("{}/{}:{tag}", args.registry, recipe.name);
        ui::step(format_args!("image {reference}"), || {
            let image = identified(Image::new(&reference), &tag);
            (recipe.fill)(image, &programs)?.write_to(&archive)
        })?;
        archives.push(archive);
    }
    Ok(archives)
}

fn chosen(only: &[String]) -> Result<Vec<&'static Recipe>> {
    let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(ui::hint(
            format!("there is no image {unknown}"),
            format!("choose among {}", names.join(", ")),
        ));
    }
    let wanted = |recipe: &&Recipe| only.is_empty() || only.iter().any(|name| name == recipe.name);
    Ok(RECIPES.iter().filter(wanted).collect())
}

// === the images ===

fn proxy(image: Image, programs: &Programs) -> Result<Image> {
    Ok(image
        .entrypoint(["/usr/lib/linkerd/linkerd2-proxy-identity"])
        .user("2102")
        .file(
            "/usr/lib/linkerd/linkerd2-proxy",
            0o755,
            programs.get(&PROXY)?,
        )
        .symlink("/usr/lib/linkerd/linkerd2-proxy-identity", "linkerd2-proxy")
        .symlink("/usr/lib/linkerd/linkerd-await", "linkerd2-proxy")
        .file("/bin/sleep", 0o755, programs.get(&SLEEP)?)
        .file(
            "/usr/lib/linkerd/linkerd2-network-validator",
            0o755,
            programs.get(&VALIDATOR)?,
        )
        // A capability of a file that its user may not have makes exec fail: nothing else may
        // be this file.
        .file_with_capabilities(
            "/usr/lib/linkerd/linkerd2-proxy-init",
            0o755,
            programs.get(&INIT)?,
            &FIREWALL,
        ))
}

fn proxy_init(image: Image, programs: &Programs) -> Result<Image> {
    let image = image
        .entrypoint(["/usr/lib/linkerd/linkerd2-proxy-init"])
        .user("65534")
        .file_with_capabilities(
            "/usr/lib/linkerd/linkerd2-proxy-init",
            0o755,
            programs.get(&INIT)?,
            &FIREWALL,
        );
    iptables::add(image, &FIREWALL)
}

/// Run by root: the node's directories are root's.
fn cni_plugin(image: Image, programs: &Programs) -> Result<Image> {
    let install = "/usr/lib/linkerd/linkerd-cni-install";
    Ok(image
        .entrypoint([install])
        .user("0")
        .file(install, 0o755, programs.get(&CNI_INSTALL)?)
        .file("/opt/cni/bin/linkerd-cni", 0o755, programs.get(&CNI)?))
}

fn controller(image: Image, programs: &Programs) -> Result<Image> {
    Ok(image.entrypoint(["/controller"]).user("2103").file(
        "/controller",
        0o755,
        programs.get(&CONTROLLER)?,
    ))
}

fn sample(image: Image, programs: &Programs) -> Result<Image> {
    Ok(image.entrypoint(["/emojivoto"]).user("65534").file(
        "/emojivoto",
        0o755,
        programs.get(&SAMPLE)?,
    ))
}

/// What every image has: a version, and names for the users it may run as.
fn identified(image: Image, version: &str) -> Image {
    image
        .label("org.opencontainers.image.version", version)
        .label("org.opencontainers.image.licenses", "Apache-2.0")
        .file("/usr/lib/linkerd/version.txt", 0o644, format!("{version}\n"))
        .file(
            "/etc/passwd",
            0o644,
            *b"root:x:0:0:root:/:/sbin/nologin\nlinkerd:x:2102:2102:proxy:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n",
        )
        .file("/etc/group", 0o644, *b"root:x:0:\nlinkerd:x:2102:\nnobody:x:65534:\n")
        .file("/etc/nsswitch.conf", 0o644, *b"hosts: files dns\n")
        .dir("/tmp", 0o1777)
}

// === building ===

/// Builds programs, one cargo run a profile, and reads them.
fn build(workspace: &Workspace, programs: &[&'static Program], quick: bool) -> Result<Programs> {
    let mut by_profile: BTreeMap<Profile, Vec<&'static Program>> = BTreeMap::new();
    for program in programs {
        if !workspace.has_program(program.package, program.bin) {
            bail!(
                "the workspace has no program {} in {}",
                program.bin,
                program.package
            );
        }
        let programs = by_profile.entry(program.profile(quick)).or_default();
        if !programs.iter().any(|known| known.bin == program.bin) {
            programs.push(program);
        }
    }
    let mut built = Programs::default();
    for (profile, programs) in by_profile {
        let names: Vec<&str> = programs.iter().map(|program| program.bin).collect();
        ui::long_step(
            format_args!("building {} ({})", names.join(", "), profile.name()),
            || compile(workspace, profile, &programs),
        )?;
        for program in programs {
            let path = program.path(workspace, quick);
            let content = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            require_static(&path, &content)?;
            built.0.insert(program.bin, content);
        }
    }
    Ok(built)
}

/// Builds the proxy as it ships and the program that measures it; gives both.
pub(crate) fn proxy_to_measure(workspace: &Workspace) -> Result<(PathBuf, PathBuf)> {
    compile(workspace, Profile::Release, &[&PROXY, &BENCH])?;
    Ok((PROXY.path(workspace, false), BENCH.path(workspace, false)))
}

fn compile(workspace: &Workspace, profile: Profile, programs: &[&Program]) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(&workspace.root)
        .args(["build", "--locked"]);
    as_shipped(&mut cargo, profile);
    for program in programs {
        cargo.args(["--package", program.package, "--bin", program.bin]);
    }
    ui::patiently("building", &mut cargo).map(drop)
}

/// Makes cargo build for images, whatever it builds: programs built alike share their dependencies.
pub(crate) fn as_shipped(cargo: &mut Command, profile: Profile) {
    cargo
        .args(["--target", &triple(), "--profile", profile.name()])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", rust_flags());
}

/// Static, and without the place where cargo's sources happen to lie. Our own are named relative to
/// the workspace; its place must not appear here, or every clone would build everything anew.
fn rust_flags() -> String {
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let mut flags = vec!["-C target-feature=+crt-static".to_owned()];
    if let Some(home) = cargo_home {
        flags.push(format!("--remap-path-prefix={}=/cargo", home.display()));
    }
    flags.join(" ")
}

/// The target is always named: then build scripts and macros, which cannot be static, are not.
pub(crate) fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// A program that asks for a loader would not start in an image without one.
fn require_static(path: &Path, content: &[u8]) -> Result<()> {
    const LOADER: &[u8] = b"/ld-linux";
    let head = &content[..content.len().min(4096)];
    if head.windows(LOADER.len()).any(|part| part == LOADER) {
        bail!("{} is not linked statically", path.display());
    }
    Ok(())
}

// === impl Program ===

impl Program {
    fn profile(&self, quick: bool) -> Profile {
        match quick {
            true => Profile::Quick,
            false => self.profile,
        }
    }

    /// Where cargo puts it.
    fn path(&self, workspace: &Workspace, quick: bool) -> PathBuf {
        let dir = workspace.target.join(triple());
        dir.join(self.profile(quick).name()).join(self.bin)
    }
}

// === impl Profile ===

impl Profile {
    /// What cargo calls it, and the directory it builds in.
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Control => "control",
            Self::Quick => "quick",
        }
    }
}

// === impl Programs ===

impl Programs {
    fn get(&self, program: &Program) -> Result<Vec<u8>> {
        let content = self.0.get(program.bin);
        content
            .cloned()
            .with_context(|| format!("{} was not built", program.bin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fakes() -> Programs {
        let programs = RECIPES.iter().flat_map(|recipe| recipe.programs);
        Programs(
            programs
                .map(|p| (p.bin, p.bin.as_bytes().to_vec()))
                .collect(),
        )
    }

    #[test]
    fn packing_twice_gives_the_same_bytes() {
        for recipe in RECIPES {
            let pack = || {
                let image = identified(Image::new(format!("{REGISTRY}/{}:1", recipe.name)), "1");
                (recipe.fill)(image, &fakes())
                    .and_then(|image| image.to_bytes())
                    .expect("packed")
            };
            assert!(pack() == pack(), "{} differs", recipe.name);
        }
    }

    #[test]
    fn the_samples_manifest_names_its_image() {
        let workspace = Workspace::find().expect("cargo metadata");
        let manifest = fs::read_to_string(workspace.root.join("sample/emojivoto.yml"));
        let manifest = manifest.expect("the manifest is there");
        let expected = format!(
            "image: {REGISTRY}/emojivoto:edge-{}",
            env!("CARGO_PKG_VERSION")
        );
        let images = manifest.lines().filter(|line| line.contains("image: "));
        assert!(images.clone().count() > 0 && images.clone().all(|line| line.trim() == expected));
    }

    #[test]
    fn an_unknown_image_is_refused_with_the_known_ones() {
        assert_eq!(chosen(&[]).expect("all").len(), RECIPES.len());
        let Err(error) = chosen(&["nothing".to_owned()]) else {
            panic!("it does not exist")
        };
        assert_eq!(error.to_string(), "there is no image nothing");
    }

    #[test]
    fn a_program_with_a_loader_is_refused() {
        let path = Path::new("program");
        require_static(path, b"\x7fELF static").expect("no loader is named");
        require_static(path, b"\x7fELF /lib64/ld-linux-x86-64.so.2\0")
            .expect_err("a loader is named");
    }

    #[test]
    fn every_program_belongs_to_the_workspace() {
        let workspace = Workspace::find().expect("cargo metadata");
        for program in RECIPES.iter().flat_map(|recipe| recipe.programs) {
            assert!(
                workspace.has_program(program.package, program.bin),
                "{}",
                program.bin
            );
        }
    }
}
