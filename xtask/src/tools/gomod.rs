//! Makes the go.mod of our wrapper around `k8s.io/kubernetes`. That module pins its staging
//! modules at v0.0.0 and replaces them by directories of its own tree, which only counts
//! when it is the main module; a wrapper has to name the published versions instead.

use std::fmt::Write as _;

const UNPUBLISHED: &str = "v0.0.0";

/// The wrapper's go.mod: the same requirements, staging modules at `staging`.
pub(super) fn wrapper(upstream: &str, version: &str, staging: &str) -> String {
    let mut language = "1.24.0";
    let mut requirements = Vec::new();
    let mut replaced = Vec::new();
    let mut block = "";
    for line in upstream.lines().map(str::trim) {
        let code = line.split("//").next().unwrap_or_default().trim();
        if let Some(name) = code.strip_suffix(" (") {
            block = name;
            continue;
        }
        if code == ")" {
            block = "";
            continue;
        }
        if let Some(go) = code.strip_prefix("go ") {
            language = go;
        }
        let required = match block {
            "require" => Some(code),
            "" => code.strip_prefix("require "),
            _ => None,
        };
        let Some((module, found)) = required.and_then(|r| r.split_once(' ')) else {
            continue;
        };
        if found == UNPUBLISHED {
            replaced.push(module);
            requirements.push((module, format!("v{staging}")));
        } else {
            requirements.push((module, found.to_owned()));
        }
    }

    let mut text = format!("module kube\n\ngo {language}\n\ngodebug default=go1.24\n\nrequire (\n");
    let _ = writeln!(text, "\tk8s.io/kubernetes v{version}");
    for (module, version) in &requirements {
        let _ = writeln!(text, "\t{module} {version}");
    }
    text.push_str(")\n\nreplace (\n");
    for module in &replaced {
        let _ = writeln!(text, "\t{module} => {module} v{staging}");
    }
    text.push_str(")\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_modules_get_their_published_version() {
        let upstream = "// generated\nmodule k8s.io/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n\
             require (\n\texample.org/a v1.2.3\n\tk8s.io/api v0.0.0\n)\n\n\
             require (\n\texample.org/b v0.1.0 // indirect\n)\n\n\
             require example.org/c v2.0.0\n\n\
             replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        let expected = "module kube\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n\
             require (\n\tk8s.io/kubernetes v1.34.4\n\texample.org/a v1.2.3\n\tk8s.io/api v0.34.4\n\
             \texample.org/b v0.1.0\n\texample.org/c v2.0.0\n)\n\n\
             replace (\n\tk8s.io/api => k8s.io/api v0.34.4\n)\n";
        assert_eq!(wrapper(upstream, "1.34.4", "0.34.4"), expected);
    }
}
