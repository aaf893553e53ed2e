//! Our entry in a node's network configuration: put behind all others, and taken out again. Texts
//! in, texts out.

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

/// The `type` by which our entry is known.
pub const TYPE: &str = "linkerd-cni";

/// A configuration with our entry in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chained {
    /// A `.conf` of one plugin becomes a `.conflist`.
    pub file: String,
    pub text: String,
}

/// Puts our entry last. What else the file says stays.
pub fn chained(file: &str, text: &str, entry: &Value) -> Result<Chained> {
    let mut found: Value =
        serde_json::from_str(text).with_context(|| format!("{file} is not JSON"))?;
    let Some(map) = found.as_object_mut() else {
        bail!("cannot determine plugins from existing cni configuration");
    };
    if map.contains_key("type") {
        map.shift_remove("cniVersion");
        let list = json!({
            "cniVersion": "0.3.1",
            "name": "k8s-pod-network",
            "plugins": [found, entry],
        });
        return Ok(Chained {
            file: format!("{file}list"),
            text: written(&list),
        });
    }
    let Some(plugins) = map.get_mut("plugins").and_then(Value::as_array_mut) else {
        bail!("cannot determine plugins from existing cni configuration");
    };
    if !plugins.iter().all(Value::is_object) {
        bail!("cannot extract plugin from configuration");
    }
    take_out(plugins);
    plugins.push(entry.clone());
    Ok(Chained {
        file: file.to_owned(),
        text: written(&found),
    })
}

/// The configuration without our entry; none when it has none.
pub fn unchained(text: &str) -> Option<String> {
    let mut found: Value = serde_json::from_str(text).ok()?;
    let plugins = found.get_mut("plugins")?.as_array_mut()?;
    take_out(plugins).then(|| written(&found))
}

fn take_out(plugins: &mut Vec<Value>) -> bool {
    let before = plugins.len();
    plugins.retain(|plugin| plugin["type"] != TYPE);
    plugins.len() < before
}

/// Sorted, indented by two, and without the three characters that HTML minds.
fn written(value: &Value) -> String {
    let text = serde_json::to_string_pretty(&sorted(value)).unwrap_or_default();
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(entries.collect::<Map<String, Value>>())
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// How the plugin reaches the API server from the node.
pub fn kubeconfig(host: &str, port: &str, ca: &str, token: &str) -> Result<String> {
    for (value, missing) in [
        (host, "service-host is zero length"),
        (port, "service-port is zero length"),
        (token, "token-data is zero-length"),
        (ca, "certificate authority data is zero-length"),
    ] {
        if value.trim().is_empty() {
            bail!(missing);
        }
    }
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {
            "server": format!("https://{host}:{port}"),
            "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [{"name": TYPE, "user": {"token": token.trim()}}],
        "contexts": [{"name": crate::cluster::CONTEXT, "context": {"cluster": "local", "user": TYPE}}],
        "current-context": crate::cluster::CONTEXT,
    });
    serde_yaml::to_string(&config).context("a kubeconfig is YAML")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Value {
        json!({"name": "linkerd-cni", "type": TYPE, "log_level": "info"})
    }

    #[test]
    fn a_list_gets_our_entry_last() {
        let list = r#"{"name": "net", "plugins": [{"type": "ptp"}, {"type": "linkerd-cni", "old": true}, {"type": "portmap"}], "keep": "<a&b>"}"#;
        let chained = chained("10-net.conflist", list, &entry()).expect("chained");
        assert_eq!(chained.file, "10-net.conflist");
        assert!(
            chained.text.contains("\\u003ca\\u0026b\\u003e"),
            "{}",
            chained.text
        );
        assert!(!chained.text.ends_with('\n'));
        let value: Value = serde_json::from_str(&chained.text).expect("JSON");
        let types: Vec<&Value> = value["plugins"]
            .as_array()
            .expect("plugins")
            .iter()
            .map(|p| &p["type"])
            .collect();
        assert_eq!(types, ["ptp", "portmap", TYPE]);
        assert_eq!(value["plugins"][2], entry());
        let again = super::chained("10-net.conflist", &chained.text, &entry()).expect("chained");
        assert_eq!(again, chained, "once is enough");
        let out: Value =
            serde_json::from_str(&unchained(&chained.text).expect("ours")).expect("JSON");
        assert_eq!(
            out["plugins"],
            json!([{"type": "ptp"}, {"type": "portmap"}])
        );
        assert_eq!(unchained(&out.to_string()), None);
    }

    #[test]
    fn a_single_plugin_becomes_a_list() {
        let single = r#"{"cniVersion": "0.3.0", "name": "n", "type": "bridge"}"#;
        let chained = chained("10-bridge.conf", single, &entry()).expect("chained");
        assert_eq!(chained.file, "10-bridge.conflist");
        let value: Value = serde_json::from_str(&chained.text).expect("JSON");
        assert_eq!(value["name"], "k8s-pod-network");
        assert_eq!(value["cniVersion"], "0.3.1");
        assert_eq!(value["plugins"][0], json!({"name": "n", "type": "bridge"}));
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        let no_plugins = "cannot determine plugins from existing cni configuration";
        for (text, said) in [
            ("", "x.conflist is not JSON"),
            ("[]", no_plugins),
            ("{}", no_plugins),
            (r#"{"plugins": {}}"#, no_plugins),
            (
                r#"{"plugins": ["ptp"]}"#,
                "cannot extract plugin from configuration",
            ),
        ] {
            let error = chained("x.conflist", text, &entry()).expect_err(text);
            assert_eq!(error.to_string(), said, "{text}");
        }
    }

    #[test]
    fn the_plugins_kubeconfig() {
        let text = kubeconfig("fd00::1", "443", "CA", "token\n").expect("a kubeconfig");
        let config: kube::config::Kubeconfig = serde_yaml::from_str(&text).expect("YAML");
        assert_eq!(
            config.current_context.as_deref(),
            Some("linkerd-cni-context")
        );
        assert!(text.contains("server: https://[fd00::1]:443"), "{text}");
        for (host, port, ca, token, said) in [
            ("", "443", "CA", "t", "service-host is zero length"),
            ("h", "", "CA", "t", "service-port is zero length"),
            (
                "h",
                "443",
                "",
                "t",
                "certificate authority data is zero-length",
            ),
            ("h", "443", "CA", "\n", "token-data is zero-length"),
        ] {
            let error = kubeconfig(host, port, ca, token).expect_err(said);
            assert_eq!(error.to_string(), said);
        }
    }
}
