//! `linkerd check`: runs the checks of a mode and prints what they found.

use crate::{
    check::{
        self, Mode,
        engine::{self, Plan, Problem},
        existence, extensions, external,
        facts::{Facts, Settings},
        output::{Format, Output},
        setup,
    },
    context::{Context, Global},
    failure::{ExitStatus, line, stop},
};
use anyhow::{Result, bail};
use linkerd_runtime::version::VERSION;
use std::{
    env,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Check that the mesh can be installed, or that it works
///
/// Problems come with a link that explains them. Warnings leave the exit code at 0.
///
/// Examples:
///   linkerd check --pre                  is the cluster ready for an install?
///   linkerd check                        does the control plane work?
///   linkerd check --proxy -n emojivoto   do the proxies of a namespace?
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Check whether the control plane can be installed
    #[arg(long)]
    pre: bool,
    /// Check whether the custom resource definitions are installed
    #[arg(long)]
    crds: bool,
    /// Check the proxies too
    #[arg(long)]
    proxy: bool,
    /// Namespace of the proxies [default: all]
    #[arg(short, long)]
    namespace: Option<String>,
    /// With --pre: check the CNI plugin too
    #[arg(long)]
    linkerd_cni_enabled: bool,
    /// How to print results: table, short (problems only), json, or json-merged (extensions in the
    /// same document)
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    output: String,
    /// How long to retry checks of what may still be starting
    #[arg(long, default_value = "5m0s", value_name = "DURATION", value_parser = linkerd_core::duration::parse)]
    wait: Duration,
    /// Compare with this version instead of asking a version server
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<String>,
    /// Pretend to be this version of the CLI
    #[arg(long, value_name = "VERSION")]
    cli_version_override: Option<String>,
    /// Where to ask for the latest versions [default: the control plane's value versionCheckURL]
    #[arg(long, env = "LINKERD_VERSION_CHECK_URL", value_name = "URL")]
    version_check_url: Option<String>,
    /// Ask no version server
    #[arg(long)]
    offline: bool,
    /// Categories, or checks by the anchor of their hint, to leave out
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    skip: Vec<String>,
    /// Categories, or checks by the anchor of their hint, to run and no others
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
}

impl Args {
    fn mode(&self) -> Result<(Mode, Format), String> {
        if self.pre && self.proxy {
            return Err("--pre and --proxy flags are mutually exclusive".to_owned());
        }
        if self.pre && self.crds {
            return Err("--pre and --crds flags are mutually exclusive".to_owned());
        }
        if self.linkerd_cni_enabled && !self.pre {
            return Err("--linkerd-cni-enabled can only be used with --pre".to_owned());
        }
        let format = Format::parse(&self.output).ok_or_else(|| {
            format!(
                "Invalid output type '{}'. Supported output types are: json, table, short",
                self.output
            )
        })?;
        let mode = match (self.pre, self.crds, self.proxy) {
            (true, ..) => Mode::Pre {
                cni: self.linkerd_cni_enabled,
            },
            (_, true, _) => Mode::Crds,
            (.., true) => Mode::DataPlane,
            _ => Mode::ControlPlane,
        };
        Ok((mode, format))
    }

    fn skips_latest(&self) -> bool {
        let named = |name: &String| name == "linkerd-version" || name == "l5d-version-latest";
        self.skip.iter().any(named)
    }

    /// What extensions are asked, with the flags that concern them too.
    fn forwarded(&self, global: &Global) -> Vec<String> {
        let mut words = vec!["check".to_owned()];
        let switch = |on: bool| on.then(|| "true".to_owned());
        let mut flag = |name: &str, value: Option<String>| {
            let value = value.filter(|value| !value.is_empty());
            words.extend(value.map(|value| format!("--{name}={value}")));
        };
        flag("api-addr", global.api_addr.clone());
        flag("context", global.context.clone());
        flag("as", global.as_user.clone());
        for group in &global.as_group {
            flag("as-group", Some(group.clone()));
        }
        flag("kubeconfig", global.kubeconfig.clone());
        flag("linkerd-namespace", Some(global.linkerd_namespace.clone()));
        flag("verbose", switch(global.verbose));
        flag("namespace", self.namespace.clone());
        flag("proxy", switch(self.proxy));
        flag("wait", Some(go_duration(self.wait)));
        flag("output", Some("json".to_owned()));
        words
    }
}

/// `5m0s`, `1h0m0s`, `30s`: whole seconds as Go prints them.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let (mode, format) = args.mode().map_err(|error| {
        anyhow::anyhow!("Validation error when executing check command: {error}")
    })?;
    let categories = check::categories(mode);
    let plan = Plan {
        deadline: Instant::now() + args.wait,
        hints: String::new(),
        skip: args.skip.clone(),
        only: args.only.clone(),
    };
    if let Some(name) = plan.unknown_name(&categories) {
        let ids: Vec<&str> = categories.iter().map(|category| category.id).collect();
        bail!(
            "Validation error when executing check command: no check here is called {name:?}; use the anchor of a check's hint, or a category: {}",
            ids.join(", ")
        );
    }
    let namespace = context.namespace().to_owned();
    let client = context.cluster(Some(TIMEOUT)).await;
    let client = client
        .map(|cluster| cluster.client())
        .map_err(|error| line(&error));
    let cli_version = args.cli_version_override.clone();
    let cli_version = cli_version.unwrap_or_else(|| VERSION.to_owned());
    let plan = Plan {
        hints: hints(&cli_version),
        ..plan
    };
    let settings = Settings {
        namespace: namespace.clone(),
        cni_namespace: context.global.cni_namespace.clone(),
        data_plane_namespace: args.namespace.clone().filter(|name| !name.is_empty()),
        cli_version,
        expected_version: args
            .expected_version
            .clone()
            .filter(|version| !version.is_empty()),
        version_url: args.version_check_url.clone(),
        // Who leaves that check out does not want the server asked for the others either.
        offline: args.offline || args.skips_latest(),
        cni: args.linkerd_cni_enabled,
    };
    let mut facts = Facts::new(client, settings, SystemTime::now());
    let rendered =
        |error: anyhow::Error| stop(format!("Error rendering install manifest: {error:#}"));
    if matches!(mode, Mode::Pre { .. }) {
        facts.install = setup::objects(&namespace).map_err(rendered)?;
    } else {
        facts.definitions = existence::definitions(&namespace).map_err(rendered)?;
    }
    let words = args.forwarded(&context.global);
    let mut output = Output::new(context.printer, format);
    let success = engine::run(&categories, &mut facts, &plan, &mut output).await?;
    output.end_block(success)?;
    let mut success = success;
    if matches!(mode, Mode::ControlPlane | Mode::DataPlane) && args.only.is_empty() {
        let installed = match extensions::installed(&facts).await {
            Ok(installed) => installed.into_keys().collect(),
            Err(Problem::Failed(error) | Problem::Skip(error)) => {
                return Err(stop(format!("Failed to run extensions checks: {error}")));
            }
        };
        let programs = external::on_path(env::var_os("PATH").as_deref());
        let tree = super::tree();
        let builtin: Vec<&str> = ["viz", "multicluster"]
            .into_iter()
            .filter(|name| tree.find_subcommand(name).is_some())
            .collect();
        let own = env::current_exe().unwrap_or_else(|_| PathBuf::from("linkerd"));
        let stage = external::stage(&installed, &programs, &builtin, &own).await;
        let limit = args.wait + TIMEOUT;
        success &= external::run(&stage, &words, limit, &plan.hints, &mut output).await?;
    }
    output.status(success)?;
    if success {
        Ok(())
    } else {
        Err(ExitStatus(1).into())
    }
}

/// Explanations of a stable release live under its own version.
fn hints(cli_version: &str) -> String {
    let stable = cli_version.strip_prefix("stable-").and_then(|version| {
        let mut parts = version.split('.');
        Some(format!("{}.{}", parts.next()?, parts.next()?))
    });
    format!(
        "https://linkerd.io/{}/checks/#",
        stable.as_deref().unwrap_or("2")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn mode(line: &str) -> Result<(Mode, Format), String> {
        let words = std::iter::once("check").chain(line.split_whitespace());
        Line::try_parse_from(words)
            .expect("known flags")
            .args
            .mode()
    }

    #[test]
    fn flags_choose_the_mode() {
        assert_eq!(mode(""), Ok((Mode::ControlPlane, Format::Table)));
        assert_eq!(
            mode("--pre -o short"),
            Ok((Mode::Pre { cni: false }, Format::Short))
        );
        assert_eq!(
            mode("--proxy -n x -o json"),
            Ok((Mode::DataPlane, Format::Json))
        );
        assert_eq!(
            mode("-o json-merged"),
            Ok((Mode::ControlPlane, Format::JsonMerged))
        );
        assert_eq!(mode("--crds"), Ok((Mode::Crds, Format::Table)));
        for (line, error) in [
            (
                "--pre --proxy",
                "--pre and --proxy flags are mutually exclusive",
            ),
            (
                "--pre --crds",
                "--pre and --crds flags are mutually exclusive",
            ),
            (
                "--linkerd-cni-enabled",
                "--linkerd-cni-enabled can only be used with --pre",
            ),
            (
                "-o wide",
                "Invalid output type 'wide'. Supported output types are: json, table, short",
            ),
        ] {
            assert_eq!(mode(line), Err(error.to_owned()), "{line}");
        }
    }

    #[test]
    fn extensions_hear_the_flags() {
        let line = Line::try_parse_from(["check", "--proxy", "-n", "a", "--wait", "90s"]);
        let global = Global {
            linkerd_namespace: "linkerd".to_owned(),
            as_group: vec!["x".to_owned()],
            ..Global::default()
        };
        let words = line.expect("known flags").args.forwarded(&global);
        assert_eq!(
            words.join(" "),
            "check --as-group=x --linkerd-namespace=linkerd --namespace=a --proxy=true --wait=1m30s --output=json"
        );
        assert_eq!(go_duration(Duration::from_secs(86_400)), "24h0m0s");
    }

    #[test]
    fn hints_follow_the_release() {
        assert_eq!(hints("edge-25.10.7"), "https://linkerd.io/2/checks/#");
        assert_eq!(hints("stable-2.14.10"), "https://linkerd.io/2.14/checks/#");
    }
}
