//! `cargo xtask charts`: completes the CRDs chart with the Gateway API's route definitions. They
//! belong to that project, whose Go module ships them; here they are only wrapped in the chart's
//! conditions and labels, in a folder that git ignores.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::{machine, program, tools, ui, workspace::Workspace};

const MODULE: &str = "sigs.k8s.io/gateway-api@v1.4.0";
/// Read by the chart, which refuses to render definitions that are not there.
const MARKER: &str = "charts/linkerd-crds/gateway-api.version";
const FOLDER: &str = "charts/linkerd-crds/templates/gateway.networking.k8s.io";

/// The definitions we use and the value that overrides `installGatewayAPI` for each.
const ROUTES: [(&str, &str); 4] = [
    ("httproutes", "enableHttpRoutes"),
    ("grpcroutes", "enableHttpRoutes"),
    ("tlsroutes", "enableTlsRoutes"),
    ("tcproutes", "enableTcpRoutes"),
];

/// Writes the templates; the next build of the CLI embeds them.
pub(crate) fn run() -> Result<ExitCode> {
    let root = Workspace::find()?.root;
    let folder = root.join(FOLDER);
    let source = module()?.join("config/crd/experimental");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    for (plural, value) in ROUTES {
        let from = source.join(format!("gateway.networking.k8s.io_{plural}.yaml"));
        let definition =
            fs::read_to_string(&from).with_context(|| format!("reading {}", from.display()))?;
        let template = wrap(&without_descriptions(&definition), value)
            .with_context(|| format!("{} looks different than expected", from.display()))?;
        write(&folder.join(format!("{plural}.yaml")), &template)?;
    }
    write(&root.join(MARKER), &format!("{MODULE}\n"))?;
    ui::note(format_args!(
        "  {FOLDER}: {} definitions of {MODULE}",
        ROUTES.len()
    ));
    Ok(ExitCode::SUCCESS)
}

/// The definitions that `standard-install.yaml` of the Gateway API installs, one file each.
pub(crate) fn standard() -> Result<Vec<PathBuf>> {
    let folder = module()?.join("config/crd/standard");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("gateway.networking.k8s.io_") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("{} holds no definitions", folder.display());
    }
    Ok(files)
}

/// Leaves a file alone that is right already, so that nothing is built again.
fn write(file: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// Where Go keeps the module, fetched when it is not there yet.
fn module() -> Result<PathBuf> {
    let about = program::output(
        program::command(tools::go()?, ["mod", "download", "-json", MODULE])
            .current_dir(machine::cache_dir()?),
    )?;
    let about: serde_json::Value = serde_json::from_str(&about).context("reading go's answer")?;
    Ok(PathBuf::from(
        about["Dir"].as_str().context("go named no directory")?,
    ))
}

/// `kubectl apply` keeps a copy of each object in an annotation, which has a limit that HTTPRoute
/// with all its prose exceeds. Only values go: a property called `description` stays.
fn without_descriptions(definition: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut kept = String::with_capacity(definition.len() / 2);
    let mut dropping: Option<usize> = None;
    for line in definition.lines() {
        if let Some(depth) = dropping {
            if line.trim().is_empty() || indent(line) > depth {
                continue;
            }
            dropping = None;
        }
        if line.trim_start().starts_with("description: ") {
            dropping = Some(indent(line));
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// The definition as a template of the chart.
fn wrap(definition: &str, value: &str) -> Result<String> {
    if definition.contains("{{") {
        bail!("it would be taken for a template");
    }
    let head = "metadata:\n  annotations:\n";
    let (before, after) = definition
        .split_once(head)
        .context("it has no annotations")?;
    let before = before.trim_start_matches("---\n");
    // The key may be absent, which is not the same as false.
    let condition = format!(
        "{{{{- if hasKey .Values \"{value}\" | ternary .Values.{value} .Values.installGatewayAPI }}}}"
    );
    Ok(format!(
        "{condition}\n---\n{before}metadata:\n  labels:\n    \
         helm.sh/chart: {{{{ .Chart.Name }}}}-{{{{ .Chart.Version }}}}\n    \
         linkerd.io/control-plane-ns: {{{{ .Release.Namespace }}}}\n  annotations:\n    \
         linkerd.io/created-by: {{{{ .Values.cliVersion | default (printf \"linkerd/helm %s\" .Chart.AppVersion) }}}}\n    \
         helm.sh/resource-policy: keep\n{after}{}{{{{- end }}}}\n",
        if after.ends_with('\n') { "" } else { "\n" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_goes_and_properties_stay() {
        let definition = "a:\n  description: |-\n    one\n\n    two\n  properties:\n    description:\n      \
                          description: short\n      type: string\n  type: object\n";
        assert_eq!(
            without_descriptions(definition),
            "a:\n  properties:\n    description:\n      type: string\n  type: object\n"
        );
    }

    #[test]
    fn a_definition_becomes_a_template() {
        let definition =
            "apiVersion: v1\nkind: X\nmetadata:\n  annotations:\n    a: b\n  name: x\nspec: {}\n";
        let template = wrap(definition, "enableTlsRoutes").expect("wrapped");
        assert!(template.starts_with("{{- if hasKey .Values \"enableTlsRoutes\" | ternary .Values.enableTlsRoutes .Values.installGatewayAPI }}\n---\napiVersion: v1\n"));
        assert!(template.contains(
            "    helm.sh/resource-policy: keep\n    a: b\n  name: x\nspec: {}\n{{- end }}\n"
        ));
        wrap("metadata: {}\n", "x").expect_err("no annotations");
        wrap("metadata:\n  annotations:\n    a: '{{ x }}'\n", "x").expect_err("a template");
    }
}
