//! The init container that redirects the pod's traffic, or checks that a CNI plugin did.

use crate::{Error, Template, proxy::resources, settings::Settings, values::Image};
use serde_json::{Map, Value, json};

pub(crate) fn image(image: &Image, version: &str) -> String {
    let version = if image.version.is_empty() {
        version
    } else {
        &image.version
    };
    format!("{}:{version}", image.name)
}

pub(crate) fn pull_policy<'a>(image: &'a Image, default: &'a str) -> &'a str {
    if image.pull_policy.is_empty() {
        default
    } else {
        &image.pull_policy
    }
}

/// The container, for pods with or without a CNI plugin.
pub fn container(settings: &Settings, pod: &Template) -> Result<Value, Error> {
    if settings.values.cni_enabled {
        Ok(validator(settings))
    } else {
        redirect(settings, pod)
    }
}

fn redirect(settings: &Settings, pod: &Template) -> Result<Value, Error> {
    let v = &settings.values;
    let i = &v.proxy_init;
    if i.close_wait_timeout_secs > 0 && !i.run_as_root {
        return Err(Error::CloseWaitNeedsRoot);
    }
    let privileged = i.privileged || i.close_wait_timeout_secs > 0;
    let (user, group) = if i.run_as_root {
        (0, 0)
    } else {
        (nobody(i.run_as_user), nobody(i.run_as_group))
    };
    let mut container = json!({
        "name": "linkerd-init",
        "image": image(&i.image, &v.linkerd_version),
        "imagePullPolicy": pull_policy(&i.image, &v.image_pull_policy),
        "args": args(settings)?,
        "securityContext": {
            "allowPrivilegeEscalation": privileged,
            "capabilities": capabilities(pod),
            "privileged": privileged,
            "readOnlyRootFilesystem": true,
            "runAsGroup": group,
            "runAsNonRoot": !i.run_as_root,
            "runAsUser": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let mut mounts =
        vec![json!({"mountPath": i.xt_mount_path.mount_path, "name": i.xt_mount_path.name})];
    mounts.extend(
        pod.token_mount()
            .and_then(|mount| serde_json::to_value(mount).ok()),
    );
    container["volumeMounts"] = Value::from(mounts);
    if let Some(resources) = resources(&v.proxy.resources) {
        container["resources"] = resources;
    }
    Ok(container)
}

fn nobody(id: i64) -> i64 {
    if id == 0 { 65534 } else { id }
}

fn capabilities(pod: &Template) -> Value {
    let app = pod.capabilities();
    let added = app.and_then(|app| app.add.as_deref()).unwrap_or_default();
    let mut add = vec!["NET_ADMIN".to_owned(), "NET_RAW".to_owned()];
    add.extend(added.iter().filter(|name| !needed(name)).cloned());
    let mut capabilities = Map::new();
    capabilities.insert("add".into(), Value::from(add));
    let dropped = app.and_then(|app| app.drop.as_deref()).unwrap_or_default();
    let drop: Vec<String> = dropped
        .iter()
        .filter(|name| !needed(name))
        .cloned()
        .collect();
    if !drop.is_empty() {
        capabilities.insert("drop".into(), Value::from(drop));
    }
    Value::Object(capabilities)
}

fn needed(capability: &str) -> bool {
    matches!(capability, "NET_ADMIN" | "NET_RAW")
}

fn args(settings: &Settings) -> Result<Vec<String>, Error> {
    let v = &settings.values;
    let (p, i) = (&v.proxy, &v.proxy_init);
    let mut args: Vec<String> = match i.iptables_mode.as_str() {
        "nft" => [
            "--firewall-bin-path",
            "iptables-nft",
            "--firewall-save-bin-path",
            "iptables-nft-save",
        ]
        .map(str::to_owned)
        .into(),
        "legacy" => Vec::new(),
        "native" => ["--iptables-mode", "native"].map(str::to_owned).into(),
        mode => return Err(Error::IptablesMode(mode.to_owned())),
    };
    let mut push = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    let mut inbound = format!("{},{}", p.ports.control, p.ports.admin);
    if !i.ignore_inbound_ports.is_empty() {
        inbound = format!("{inbound},{}", i.ignore_inbound_ports);
    }
    push("--incoming-proxy-port", p.ports.inbound.to_string());
    push("--outgoing-proxy-port", p.ports.outbound.to_string());
    push("--proxy-uid", p.uid.to_string());
    if p.gid >= 0 {
        push("--proxy-gid", p.gid.to_string());
    }
    push("--inbound-ports-to-ignore", inbound);
    let optional = [
        (
            "--outbound-ports-to-ignore",
            i.ignore_outbound_ports.clone(),
        ),
        (
            "--timeout-close-wait-secs",
            if i.close_wait_timeout_secs > 0 {
                i.close_wait_timeout_secs.to_string()
            } else {
                String::new()
            },
        ),
        ("--log-format", i.log_format.clone()),
        ("--log-level", i.log_level.clone()),
        ("--subnets-to-ignore", i.skip_subnets.clone()),
        (
            "--inbound-subnets-to-ignore",
            i.skip_inbound_subnets.clone(),
        ),
        (
            "--outbound-subnets-to-ignore",
            i.skip_outbound_subnets.clone(),
        ),
    ];
    for (flag, value) in optional {
        if !value.is_empty() {
            push(flag, value);
        }
    }
    if v.disable_ipv6 {
        let at = args
            .iter()
            .position(|arg| arg == "--incoming-proxy-port")
            .unwrap_or_default();
        args.insert(at, "--ipv6=false".to_owned());
    }
    Ok(args)
}

fn validator(settings: &Settings) -> Value {
    let v = &settings.values;
    let n = &v.network_validator;
    let or = |value: &str, v4: &str, v6: &str| match (value, v.disable_ipv6) {
        ("", true) => v4.to_owned(),
        ("", false) => v6.to_owned(),
        (value, _) => value.to_owned(),
    };
    let mut container = json!({
        "name": "linkerd-network-validator",
        "image": image(&v.proxy.image, &v.linkerd_version),
        "imagePullPolicy": pull_policy(&v.proxy.image, &v.image_pull_policy),
        "command": ["/usr/lib/linkerd/linkerd2-network-validator"],
        "args": [
            "--log-format", n.log_format,
            "--log-level", n.log_level,
            "--connect-addr", or(&n.connect_addr, "1.1.1.1:20001", "[fd00::1]:20001"),
            "--listen-addr", or(&n.listen_addr, "0.0.0.0:4140", "[::]:4140"),
            "--timeout", n.timeout,
        ],
    });
    if let Some(resources) = resources(&v.proxy.resources) {
        container["resources"] = resources;
    }
    if n.enable_security_context {
        container["securityContext"] = json!(n.security_context);
    }
    container
}
