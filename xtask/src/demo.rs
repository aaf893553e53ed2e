//! `cargo xtask demo`: from nothing to a meshed application, with the quick start's own commands.
//! What each one says is shown, and then what the mesh can tell; running it again upgrades.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::mesh::scrape::{Figures, Scrape};
use crate::mesh::{Mesh, SAMPLE};
use crate::{charts, cluster, images, program, setup, ui};

/// How long traffic is watched for the figures.
const WINDOW: Duration = Duration::from_secs(15);
/// How much longer it may take until both sides of every request are counted.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Build the programs fast instead of building fast programs
    #[arg(long)]
    quick: bool,

    /// Where the cluster of KUBECONFIG pulls the images from; the local cluster needs none
    #[arg(long, value_name = "NAME")]
    registry: Option<String>,

    /// Take the demo's cluster down, with everything in it; from the cluster of KUBECONFIG only the
    /// mesh and the sample go
    #[arg(long, conflicts_with = "registry")]
    down: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.down {
        return down(args);
    }
    let start = Instant::now();
    setup::ensure(&[setup::Purpose::Build])?;
    charts::run()?;
    let (mesh, kubeconfig) = place(args)?;
    mesh.gateway_api()?;
    if !mesh.is_installed() {
        mesh.check(&["--pre", "--wait=10s"])?;
    }
    mesh.install()?;
    mesh.check(&["--wait=5m"])?;
    mesh.sample()?;
    mesh.inject(SAMPLE)?;
    mesh.check(&["--proxy", "--namespace", SAMPLE, "--wait=5m"])?;
    tell(&mesh)?;
    ui::out(format_args!(
        "\nThe mesh and its sample are up ({}). To look around:\n  export KUBECONFIG={}\n  \
         export PATH={}:{}:$PATH\n  kubectl -n {SAMPLE} port-forward svc/web-svc 8080:80   # then open http://localhost:8080\n  \
         linkerd check --proxy\n  kubectl -n {SAMPLE} rollout restart deploy               # nobody notices\n\
         `cargo xtask demo` again upgrades it, `cargo xtask demo --down` removes it.",
        ui::seconds(start.elapsed()),
        kubeconfig.display(),
        mesh.linkerd.parent().unwrap_or(&mesh.linkerd).display(),
        mesh.kubectl.parent().unwrap_or(&mesh.kubectl).display(),
    ));
    Ok(ExitCode::SUCCESS)
}

/// A cluster of ours goes as a whole; from a foreign one goes what the demo brought.
fn down(args: &Args) -> Result<ExitCode> {
    if cluster::is_foreign() {
        let kubeconfig = PathBuf::from(std::env::var_os("KUBECONFIG").unwrap_or_default());
        let linkerd = images::command_line(args.quick)?;
        Mesh::new(linkerd, &kubeconfig, images::REGISTRY)?.remove()?;
        ui::note("  the Gateway API's definitions stay: others may use them");
    } else {
        cluster::down(cluster::DEFAULT_NAME)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cluster of KUBECONFIG, which must be able to pull the images, or a local one that is given
/// them.
fn place(args: &Args) -> Result<(Mesh, PathBuf)> {
    if cluster::is_foreign() {
        let kubeconfig = PathBuf::from(std::env::var_os("KUBECONFIG").unwrap_or_default());
        let registry = args.registry.as_deref().ok_or_else(|| {
            ui::hint(
                "the cluster of KUBECONFIG has no images of ours",
                "push what `cargo xtask images --registry NAME` writes to a registry it can pull \
                 from and say `--registry NAME` here too, or unset KUBECONFIG to use a local cluster",
            )
        })?;
        let linkerd = images::command_line(args.quick)?;
        return Ok((Mesh::new(linkerd, &kubeconfig, registry)?, kubeconfig));
    }
    setup::ensure(&[setup::Purpose::Cluster])?;
    let kubeconfig = cluster::up(cluster::DEFAULT_NAME, None)?;
    let (archives, linkerd) = images::with_command_line(args.quick)?;
    for archive in archives {
        let content =
            std::fs::read(&archive).with_context(|| format!("reading {}", archive.display()))?;
        cluster::load(cluster::DEFAULT_NAME, &content)?;
    }
    let mesh = Mesh::new(linkerd, &kubeconfig, images::REGISTRY)?;
    Ok((mesh, kubeconfig))
}

/// What the proxies know: golden metrics, identities, rules.
fn tell(mesh: &Mesh) -> Result<()> {
    let (before, after) = ui::step(
        format_args!("watching traffic for {} s", WINDOW.as_secs()),
        || {
            let before = Scrape::take(mesh, SAMPLE)?;
            #[expect(clippy::disallowed_methods, reason = "traffic is counted over a time")]
            std::thread::sleep(WINDOW);
            ui::wait_for("requests over mTLS seen by both sides", PATIENCE, || {
                let after = Scrape::take(mesh, SAMPLE)?;
                let edges = after.edges();
                let seen = !edges.is_empty() && edges.iter().all(|e| e.client_id.is_some());
                Ok(seen.then_some(after))
            })
            .map(|after| (before, after))
        },
    )?;
    ui::out("\nRequests to each deployment, as its proxies saw them:");
    ui::out(format_args!(
        "{:<10} {:>6} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "NAME", "MESHED", "SUCCESS", "RPS", "P50", "P95", "P99"
    ));
    for row in after.since(&before) {
        ui::out(line(&row));
    }
    ui::out("\nWho speaks to whom over mTLS, with the identity each side saw of the other:");
    for edge in after.edges() {
        ui::out(format_args!("  {} -> {}", edge.from, edge.to));
        ui::out(format_args!("      the client saw  {}", edge.server_id));
        let client = edge.client_id.as_deref().unwrap_or_default();
        ui::out(format_args!("      the server saw  {client}"));
    }
    ui::out("\nRedirection in the web pod, as linkerd-init read it back:");
    for rule in rules(mesh)? {
        ui::out(format_args!("  {rule}"));
    }
    Ok(())
}

fn line(row: &Figures) -> String {
    let Figures {
        deployment,
        pods,
        traffic,
    } = row;
    match traffic {
        Some(traffic) => {
            let [p50, p95, p99] = traffic.latency_ms.map(|ms| format!("{ms}ms"));
            format!(
                "{deployment:<10} {pods:>6} {:>8.2}% {:>8.1} {p50:>8} {p95:>8} {p99:>8}",
                traffic.success * 100.0,
                traffic.rps
            )
        }
        None => format!(
            "{deployment:<10} {pods:>6} {:>9} {:>8} {:>8} {:>8} {:>8}",
            "-", "-", "-", "-", "-"
        ),
    }
}

/// The last thing the init container logs is the table as the kernel has it.
fn rules(mesh: &Mesh) -> Result<Vec<String>> {
    let logs = ["logs", "deploy/web", "-c", "linkerd-init", "-n", SAMPLE];
    let logs = program::output(&mut mesh.kubectl(&logs))?;
    let table = logs
        .lines()
        .rfind(|line| line.contains("PROXY_INIT_REDIRECT"));
    let table = table.context("linkerd-init logged no rules")?;
    let rules = table.split("\\n").filter(|rule| rule.starts_with("-A "));
    Ok(rules.map(|rule| rule.replace("\\\"", "\"")).collect())
}
