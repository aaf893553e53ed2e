//! The plugin: called by the container runtime for each sandbox, with the configuration on stdin and
//! the command in the environment. Stdout is the protocol; logs go to stderr.

use anyhow::{Context as _, Result, anyhow};
use linkerd_cni::{
    cluster::Cluster,
    conf::NetConf,
    plugin::{self, Failure, PodName},
};
use linkerd_init::{
    apply,
    args::Args,
    kernel,
    log::{Format, Level, Logger},
};
use std::{
    env,
    io::{self, Read as _, Write as _},
    process::ExitCode,
};

/// A configuration with the results of the plugins before it is a few kilobytes.
const MAX_CONF: u64 = 4 << 20;

fn main() -> ExitCode {
    let command = env::var("CNI_COMMAND").unwrap_or_default();
    let mut version = String::new();
    // Read for every command: a runtime still writing when its plugin ends sees a broken pipe.
    let input = stdin();
    let answer = match command.as_str() {
        "VERSION" => Ok(plugin::versions()),
        "ADD" => input.and_then(|bytes| {
            let conf = NetConf::read(&bytes)?;
            version.clone_from(&conf.cni_version);
            add(conf).map_err(Failure::from)
        }),
        // Rules go with the network namespace they are in: there is nothing to undo or to check.
        "DEL" => {
            tell("linkerd-cni: delete called but not implemented");
            Ok(String::new())
        }
        "CHECK" | "GC" | "STATUS" => input.and_then(|bytes| {
            let conf = NetConf::read(&bytes)?;
            version.clone_from(&conf.cni_version);
            plugin::allowed(&command, &version)?;
            if command == "CHECK" {
                tell("linkerd-cni: check called but not implemented");
            }
            Ok(String::new())
        }),
        other => Err(anyhow!("linkerd-cni: unknown CNI_COMMAND: {other}").into()),
    };
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(failure) => (plugin::failed(&version, &failure), ExitCode::FAILURE),
    };
    let _ = io::stdout().write_all(text.as_bytes());
    code
}

/// One line of the log.
fn tell(message: &str) {
    Logger::new(Format::Text, Level::Info, Box::new(io::stderr())).info(message);
}

fn stdin() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    io::stdin()
        .take(MAX_CONF)
        .read_to_end(&mut bytes)
        .context("linkerd-cni: cannot read stdin")?;
    Ok(bytes)
}

fn add(conf: NetConf) -> Result<String> {
    conf.check_previous()?;
    let level = match conf.log_level.as_str() {
        "debug" => Level::Debug,
        "info" => Level::Info,
        _ => Level::Warn,
    };
    let pod = plugin::pod_of(&env::var("CNI_ARGS").unwrap_or_default())?;
    if let Some(pod) = pod
        && !plugin::is_installer(&pod, &conf.kubernetes.namespace)
        && let Some(mut rules) = wanted(&conf, &pod)?
    {
        let netns = env::var("CNI_NETNS").context("linkerd-cni: CNI_NETNS is not set")?;
        rules.netns.clone_from(&netns);
        redirect(rules, level)?;
    }
    Ok(plugin::answer(&conf.cni_version, conf.prev_result))
}

/// The rules of the pod, when it is one of ours.
fn wanted(conf: &NetConf, name: &PodName) -> Result<Option<Args>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("linkerd-cni: no runtime")?;
    runtime.block_on(async {
        let cluster = Cluster::of(&conf.kubernetes.kubeconfig).await?;
        let pod = cluster.pod(&name.namespace, &name.name).await?;
        if !plugin::is_ours(&pod) {
            return Ok(None);
        }
        let namespace = cluster.annotations(&name.namespace).await?;
        let ports = if plugin::is_control_plane(&pod) {
            cluster.api_ports().await
        } else {
            Vec::new()
        };
        plugin::rules(&conf.linkerd, &pod, &namespace, &ports).map(Some)
    })
}

/// Applies the rules in the sandbox's network namespace, on a thread of its own, because a network
/// namespace is entered by threads.
fn redirect(rules: Args, level: Level) -> Result<()> {
    let worker = std::thread::spawn(move || -> Result<()> {
        let config = rules
            .resolve()
            .map_err(|error| anyhow!("linkerd-cni: {error}"))?;
        let log = Logger::new(Format::Text, level, Box::new(io::stderr()));
        let netns = config.netns.clone().unwrap_or_default();
        kernel::enter_netns(&netns).map_err(|error| anyhow!("linkerd-cni: {error}"))?;
        apply::run(&config, &log).map_err(|error| anyhow!("linkerd-cni: {error}"))
    });
    worker
        .join()
        .unwrap_or_else(|_| Err(anyhow!("linkerd-cni: the rules could not be applied")))
}
