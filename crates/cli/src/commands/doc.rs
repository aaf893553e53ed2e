//! `linkerd doc`: the reference of commands and annotations as YAML, from which pages are made.

use crate::{context::Context, yaml};
use anyhow::Result;
use clap::{Arg, Command};
use linkerd_k8s::labels::{
    ACCESS_LOG, ADMIN_PORT, CLOSE_WAIT_TIMEOUT, CONTROL_PORT, DEBUG_IMAGE, DEBUG_IMAGE_PULL_POLICY,
    DEBUG_IMAGE_VERSION, DEFAULT_INBOUND_POLICY, DISABLE_INBOUND_PROTOCOL_DETECT_TIMEOUT,
    DISABLE_OUTBOUND_PROTOCOL_DETECT_TIMEOUT, ENABLE_DEBUG_SIDECAR, ENABLE_EXTERNAL_PROFILES,
    ENABLE_GATEWAY, IMAGE_PULL_POLICY, INBOUND_CONNECT_TIMEOUT,
    INBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT, INBOUND_PORT, INIT_IMAGE, INIT_IMAGE_VERSION, INJECT,
    NATIVE_SIDECAR, NATIVE_SIDECAR_ALPHA, NATIVE_SIDECAR_BETA, OPAQUE_PORTS,
    OUTBOUND_CONNECT_TIMEOUT, OUTBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT, OUTBOUND_PORT,
    POD_INBOUND_PORTS, PROXY_ADDITIONAL_ENV, PROXY_ADMIN_SHUTDOWN, PROXY_AWAIT, PROXY_CPU_LIMIT,
    PROXY_CPU_RATIO_LIMIT, PROXY_CPU_REQUEST, PROXY_EPHEMERAL_STORAGE_LIMIT,
    PROXY_EPHEMERAL_STORAGE_REQUEST, PROXY_GID, PROXY_IMAGE, PROXY_IMAGE_VERSION, PROXY_LOG_FORMAT,
    PROXY_LOG_HTTP_HEADERS, PROXY_LOG_LEVEL, PROXY_MEMORY_LIMIT, PROXY_MEMORY_REQUEST,
    PROXY_METRICS_HOSTNAME_LABELS, PROXY_UID, PROXY_WAIT_BEFORE_EXIT,
    REQUIRE_IDENTITY_ON_INBOUND_PORTS, SHUTDOWN_GRACE_PERIOD, SKIP_INBOUND_PORTS,
    SKIP_INBOUND_SUBNETS, SKIP_OUTBOUND_PORTS, SKIP_OUTBOUND_SUBNETS, SKIP_SUBNETS,
};
use serde_json::{Value, json};

/// Print the reference of commands and annotations as YAML
#[derive(Debug, clap::Args)]
pub struct Args {}

/// What people may write on pods, workloads' templates and, where it makes sense, namespaces.
const ANNOTATIONS: [(&str, &str); 54] = [
    (
        INJECT,
        "Whether pods get a proxy: enabled, disabled or ingress",
    ),
    (PROXY_IMAGE, "Image of the proxy"),
    (PROXY_IMAGE_VERSION, "Tag of the proxy's image"),
    (
        IMAGE_PULL_POLICY,
        "When the images of the proxy and of the init container are pulled",
    ),
    (INIT_IMAGE, "Image of the init container"),
    (INIT_IMAGE_VERSION, "Tag of the init container's image"),
    (DEBUG_IMAGE, "Image of the debug container"),
    (DEBUG_IMAGE_VERSION, "Tag of the debug container's image"),
    (
        DEBUG_IMAGE_PULL_POLICY,
        "When the image of the debug container is pulled",
    ),
    (
        CONTROL_PORT,
        "Port of the proxy for control requests, such as tap",
    ),
    (INBOUND_PORT, "Port of the proxy for connections to the pod"),
    (
        OUTBOUND_PORT,
        "Port of the proxy for connections from the pod",
    ),
    (ADMIN_PORT, "Port of the proxy for metrics and probes"),
    (
        POD_INBOUND_PORTS,
        "Ports the pod listens on, instead of those of its containers",
    ),
    (
        SKIP_INBOUND_PORTS,
        "Ports and ranges that skip the proxy on the way in",
    ),
    (
        SKIP_OUTBOUND_PORTS,
        "Ports and ranges that skip the proxy on the way out",
    ),
    (
        SKIP_SUBNETS,
        "Networks whose connections to the pod skip the proxy",
    ),
    (
        SKIP_INBOUND_SUBNETS,
        "The same, under a name that says the direction",
    ),
    (
        SKIP_OUTBOUND_SUBNETS,
        "Networks that connections of the pod reach without the proxy",
    ),
    (
        OPAQUE_PORTS,
        "Ports, ranges and names of ports that are forwarded without being looked into",
    ),
    (PROXY_CPU_REQUEST, "CPU the proxy requests"),
    (PROXY_CPU_LIMIT, "Most CPU the proxy may use"),
    (
        PROXY_CPU_RATIO_LIMIT,
        "Most CPU the proxy may use, as a part of the node's, between 0 and 1",
    ),
    (PROXY_MEMORY_REQUEST, "Memory the proxy requests"),
    (PROXY_MEMORY_LIMIT, "Most memory the proxy may use"),
    (
        PROXY_EPHEMERAL_STORAGE_REQUEST,
        "Ephemeral storage the proxy requests",
    ),
    (
        PROXY_EPHEMERAL_STORAGE_LIMIT,
        "Most ephemeral storage the proxy may use",
    ),
    (PROXY_UID, "User the proxy runs as"),
    (PROXY_GID, "Group the proxy runs as"),
    (
        PROXY_LOG_LEVEL,
        "Log filter of the proxy, such as warn,linkerd=info",
    ),
    (PROXY_LOG_FORMAT, "Log format of the proxy: plain or json"),
    (
        PROXY_LOG_HTTP_HEADERS,
        "Whether debug logs hold the values of headers: off or insecure",
    ),
    (ACCESS_LOG, "Access log of the proxy: apache or json"),
    (
        PROXY_ADMIN_SHUTDOWN,
        "Whether the proxy can be stopped through its admin port: enabled or disabled",
    ),
    (
        ENABLE_EXTERNAL_PROFILES,
        "Whether profiles are looked up for names outside the cluster",
    ),
    (
        REQUIRE_IDENTITY_ON_INBOUND_PORTS,
        "Ports on which only meshed clients are let in",
    ),
    (
        PROXY_METRICS_HOSTNAME_LABELS,
        "Whether outbound metrics are labelled with host names",
    ),
    (
        OUTBOUND_CONNECT_TIMEOUT,
        "How long a connection from the pod may take to be made",
    ),
    (
        INBOUND_CONNECT_TIMEOUT,
        "How long a connection to the application may take to be made",
    ),
    (
        OUTBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
        "How long the proxy keeps what it knows of a destination nobody asks for",
    ),
    (
        INBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
        "How long the proxy keeps what it knows of a port nobody connects to",
    ),
    (
        DISABLE_OUTBOUND_PROTOCOL_DETECT_TIMEOUT,
        "Whether the proxy waits without end for the first bytes of a client of the pod",
    ),
    (
        DISABLE_INBOUND_PROTOCOL_DETECT_TIMEOUT,
        "Whether the proxy waits without end for the first bytes of a client to the pod",
    ),
    (
        SHUTDOWN_GRACE_PERIOD,
        "How long a stopping proxy waits for open connections",
    ),
    (
        DEFAULT_INBOUND_POLICY,
        "What is allowed where no policy speaks: all-authenticated, all-unauthenticated, cluster-authenticated, cluster-unauthenticated, deny or audit",
    ),
    (
        ENABLE_GATEWAY,
        "Whether the proxy is a gateway between clusters",
    ),
    (
        ENABLE_DEBUG_SIDECAR,
        "Whether pods get a container with network tools",
    ),
    (
        CLOSE_WAIT_TIMEOUT,
        "How long connections stay in CLOSE_WAIT; needs proxyInit.runAsRoot or the CNI plugin",
    ),
    (
        PROXY_AWAIT,
        "Whether the application starts only when the proxy is ready: enabled or disabled",
    ),
    (
        PROXY_WAIT_BEFORE_EXIT,
        "Seconds the proxy waits before it stops",
    ),
    (
        NATIVE_SIDECAR,
        "Whether the proxy is an init container that keeps running",
    ),
    (NATIVE_SIDECAR_BETA, "The same, under its older name"),
    (NATIVE_SIDECAR_ALPHA, "The same, under its oldest name"),
    (
        PROXY_ADDITIONAL_ENV,
        "More variables of the proxy, as a JSON list",
    ),
];

pub fn run(context: &mut Context<'_>, _: &Args) -> Result<()> {
    let mut tree = super::tree();
    tree.build();
    context.printer.out(yaml::write(&reference(&tree)))?;
    Ok(())
}

fn reference(tree: &Command) -> Value {
    let mut commands = Vec::new();
    collect(tree, "", &mut commands);
    let annotations = ANNOTATIONS.iter();
    let annotations: Vec<Value> = annotations
        .map(|(name, about)| json!({"Name": name, "Description": about}))
        .collect();
    json!({"CLIReference": commands, "AnnotationsReference": annotations})
}

fn collect(command: &Command, parent: &str, out: &mut Vec<Value>) {
    let shown = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "help";
    for sub in command.get_subcommands().filter(shown) {
        let name = format!("{parent} {}", sub.get_name());
        let name = name.trim_start();
        let synopsis = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let long = sub.get_long_about().map(ToString::to_string);
        let long = long.unwrap_or_else(|| synopsis.clone());
        let (description, example) = long.split_once("\nExamples:\n").unwrap_or((&long, ""));
        let inherited = |arg: &&Arg| arg.is_global_set();
        let options = |of: &dyn Fn(&&Arg) -> bool| -> Vec<Value> {
            let shown = sub.get_arguments().filter(|arg| !arg.is_hide_set());
            shown.filter(of).filter_map(option).collect()
        };
        let others: Vec<&str> = command
            .get_subcommands()
            .filter(shown)
            .map(Command::get_name)
            .filter(|other| *other != sub.get_name())
            .collect();
        out.push(json!({
            "Name": name,
            "Synopsis": synopsis,
            "Description": description.trim(),
            "Options": options(&|arg| !inherited(arg)),
            "InheritedOptions": options(&inherited),
            "Example": example.trim_end(),
            "SeeAlso": others,
        }));
        collect(sub, name, out);
    }
}

fn option(arg: &Arg) -> Option<Value> {
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let usage = arg.get_help().map(ToString::to_string).unwrap_or_default();
    Some(json!({
        "Name": arg.get_long()?,
        "Shorthand": arg.get_short().map(String::from).unwrap_or_default(),
        "DefaultValue": defaults.join(","),
        "Usage": usage,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_tells_of_every_command() {
        let mut tree = crate::commands::tree();
        tree.build();
        let reference = reference(&tree);
        let commands = reference["CLIReference"].as_array().expect("commands");
        let named = |name: &str| {
            let found = commands.iter().find(|command| command["Name"] == name);
            found.unwrap_or_else(|| panic!("{name} is there"))
        };
        let check = named("check");
        assert_eq!(
            check["Synopsis"],
            "Check that the mesh can be installed, or that it works"
        );
        assert!(
            check["Example"]
                .as_str()
                .expect("text")
                .contains("linkerd check --pre")
        );
        assert!(
            !check["Description"]
                .as_str()
                .expect("text")
                .contains("Examples")
        );
        let options = check["Options"].as_array().expect("options");
        assert!(
            options
                .iter()
                .any(|o| o["Name"] == "wait" && o["DefaultValue"] == "5m0s")
        );
        let inherited = check["InheritedOptions"].as_array().expect("options");
        assert!(
            inherited
                .iter()
                .any(|o| o["Name"] == "linkerd-namespace" && o["Shorthand"] == "L")
        );
        named("diagnostics endpoints");
        for hidden in ["doc", "__complete", "help"] {
            assert!(
                commands.iter().all(|command| command["Name"] != hidden),
                "{hidden}"
            );
        }
    }

    #[test]
    fn annotations_are_told_once() {
        let mut names: Vec<&str> = ANNOTATIONS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ANNOTATIONS.len());
        for key in linkerd_injector::settings::ANNOTATIONS {
            assert!(names.contains(&key), "{key} is told of");
        }
    }
}
