//! `linkerd check`: is the cluster ready, does the control plane work, do the proxies?
//!
//! ```text
//! categories(mode) ─engine::run over Facts→ Reports ─output→ table | short | json
//! ```
//!
//! One file per category. A check is a function of [`facts::Facts`], which hold the client and what
//! earlier checks learned; tests give it objects instead of a cluster.

pub mod cni;
pub mod config;
pub mod data_plane;
pub mod engine;
pub mod existence;
pub mod extensions;
pub mod external;
pub mod facts;
pub mod high_availability;
pub mod identity;
pub mod kubernetes;
pub mod networks;
pub mod opaque_ports;
pub mod output;
pub mod pod_status;
pub mod proxies;
pub mod setup;
pub mod version;
pub mod webhooks;

#[cfg(test)]
pub(crate) mod fake;

use engine::Category;
use facts::Facts;

/// What the checks are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Before an install; with the CNI plugin when it is to be used.
    Pre {
        cni: bool,
    },
    /// After the CRDs, before the control plane.
    Crds,
    ControlPlane,
    /// The control plane and the proxies beside the applications.
    DataPlane,
}

impl Mode {
    fn is_installed(self) -> bool {
        matches!(self, Self::ControlPlane | Self::DataPlane)
    }
}

/// All categories of a mode, in the order in which they run.
pub fn categories(mode: Mode) -> Vec<Category<Facts>> {
    let installed = mode.is_installed();
    let pre = matches!(mode, Mode::Pre { .. });
    let proxies = mode == Mode::DataPlane;
    let plain = mode == Mode::ControlPlane;
    let cni = installed || mode == Mode::Pre { cni: true };
    let all = [
        (true, kubernetes::api as fn() -> Category<Facts>),
        (true, kubernetes::version),
        (true, kubernetes::gateway_api),
        (pre, setup::category),
        (mode == Mode::Crds, existence::crds),
        (installed, existence::category),
        (installed, config::category),
        (cni, cni::category),
        (installed, identity::category),
        (installed, webhooks::category),
        (proxies, identity::data_plane),
        (true, version::category),
        (plain, version::control_plane),
        (installed, proxies::control_plane),
        (proxies, data_plane::category),
        (installed, high_availability::category),
        (plain, extensions::category),
    ];
    let wanted = all.into_iter().filter(|(wanted, _)| *wanted);
    wanted.map(|(_, category)| category()).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        engine::Plan,
        output::{Format, Output, tests::Shared},
        *,
    };
    use crate::printer::Printer;
    use linkerd_runtime::version::VERSION;
    use serde_json::json;
    use std::time::SystemTime;
    use tokio::time::Instant;

    fn ids(mode: Mode) -> Vec<&'static str> {
        categories(mode)
            .iter()
            .map(|category| category.id)
            .collect()
    }

    #[test]
    fn the_mode_chooses_categories_and_the_order_is_fixed() {
        assert_eq!(
            ids(Mode::Pre { cni: false }),
            [
                "kubernetes-api",
                "kubernetes-version",
                "gateway-api-crd",
                "pre-kubernetes-setup",
                "linkerd-version"
            ]
        );
        assert_eq!(
            ids(Mode::ControlPlane),
            [
                "kubernetes-api",
                "kubernetes-version",
                "gateway-api-crd",
                "linkerd-existence",
                "linkerd-config",
                "linkerd-cni-plugin",
                "linkerd-identity",
                "linkerd-webhooks-and-apisvc-tls",
                "linkerd-version",
                "control-plane-version",
                "linkerd-control-plane-proxy",
                "linkerd-ha-checks",
                "linkerd-extension-checks",
            ]
        );
        assert!(ids(Mode::DataPlane).contains(&"linkerd-identity-data-plane"));
        assert!(!ids(Mode::DataPlane).contains(&"control-plane-version"));
        assert!(ids(Mode::Pre { cni: true }).contains(&"linkerd-cni-plugin"));
        assert_eq!(ids(Mode::Crds)[3], "linkerd-crd");
    }

    #[test]
    fn there_are_71_checks() {
        let mut count = 0;
        for category in categories(Mode::DataPlane) {
            count += category.checks.len();
        }
        for extra in [
            setup::category(),
            existence::crds(),
            version::control_plane(),
            extensions::category(),
        ] {
            count += extra.checks.len();
        }
        assert_eq!(count, 71);
    }

    /// What a cluster holds after `linkerd install` and an injected emojivoto.
    fn installed() -> Vec<serde_json::Value> {
        let mut objects = setup::objects("linkerd").expect("the charts render");
        objects.push(
            json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
            "metadata": {"name": "httproutes.gateway.networking.k8s.io"},
            "spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "p"},
                "versions": [{"name": "v1", "served": true, "storage": true}]}}),
        );
        objects.push(
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"},
            "spec": {"podCIDR": "10.244.0.0/24"}}),
        );
        objects.push(
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "emojivoto"}}),
        );
        for (component, name) in [
            ("destination", "linkerd-destination-745b77596c-x2q9l"),
            ("identity", "linkerd-identity-59dc7985cb-7lvmv"),
            ("proxy-injector", "linkerd-proxy-injector-8677f8969-9nm44"),
        ] {
            let mut pod = proxies::tests::pod("linkerd", name, VERSION);
            pod["metadata"]["labels"]["linkerd.io/control-plane-component"] = json!(component);
            objects.push(pod);
        }
        for name in [
            "emoji-78668bb774-8hcb8",
            "vote-bot-7b7b6c499f-zz2cr",
            "voting-74494fc947-czrr7",
            "web-76cd6968c5-5kpnt",
        ] {
            objects.push(proxies::tests::pod("emojivoto", name, VERSION));
        }
        objects
    }

    async fn transcript(mode: Mode, newest: Option<&str>) -> String {
        part_of_transcript(mode, newest, None).await
    }

    /// The whole way from objects to text.
    async fn part_of_transcript(mode: Mode, newest: Option<&str>, only: Option<&str>) -> String {
        let mut facts = fake::Fake::of(installed()).facts();
        facts.now = SystemTime::now();
        facts.settings.cli_version = VERSION.to_owned();
        facts.settings.expected_version = newest.map(str::to_owned);
        facts.settings.data_plane_namespace = Some("emojivoto".to_owned());
        facts.definitions = existence::definitions("linkerd").expect("the chart renders");
        let plan = Plan {
            deadline: Instant::now(),
            hints: "https://linkerd.io/2/checks/#".to_owned(),
            skip: vec![],
            only: only.map(str::to_owned).into_iter().collect(),
        };
        let shared = Shared::default();
        let mut printer = Printer::to(shared.clone(), std::io::sink());
        let mut output = Output::new(&mut printer, Format::Table);
        let success = engine::run(&categories(mode), &mut facts, &plan, &mut output)
            .await
            .expect("a buffer");
        output.end_block(success).expect("a buffer");
        output.status(success).expect("a buffer");
        drop(printer);
        shared.text()
    }

    #[tokio::test]
    async fn a_fresh_install_gives_the_quick_start() {
        let number = VERSION.trim_start_matches("edge-");
        for (mode, expected) in [
            (
                Mode::ControlPlane,
                include_str!("../tests/golden/check/check.txt"),
            ),
            (
                Mode::DataPlane,
                include_str!("../tests/golden/check/proxy.txt"),
            ),
        ] {
            assert_eq!(
                transcript(mode, Some("edge-25.12.2")).await,
                expected.replace("25.10.7", number),
                "{mode:?}"
            );
        }
    }

    /// Without a version server the rows are the same, and all of them pass.
    #[tokio::test]
    async fn every_row_is_there_without_a_version_server() {
        for (mode, expected) in [
            (
                Mode::ControlPlane,
                include_str!("../tests/golden/check/check.txt"),
            ),
            (
                Mode::DataPlane,
                include_str!("../tests/golden/check/proxy.txt"),
            ),
        ] {
            let detail = |line: &&str| !line.starts_with([' ', '\t']);
            let rows: Vec<String> = expected
                .lines()
                .filter(detail)
                .map(|row| row.replace('‼', "√"))
                .collect();
            let shown = transcript(mode, None).await;
            assert_eq!(shown.lines().collect::<Vec<_>>(), rows, "{mode:?}");
        }
    }

    /// `--only` leaves lines out; it does not change those that stay.
    #[tokio::test]
    async fn a_category_alone_says_what_it_says_in_a_whole_run() {
        for mode in [Mode::ControlPlane, Mode::DataPlane] {
            let whole = transcript(mode, Some("edge-25.12.2")).await;
            for id in ids(mode) {
                let alone = part_of_transcript(mode, Some("edge-25.12.2"), Some(id)).await;
                let heading = format!("{id}\n-");
                let section = whole.split("\n\n").find(|part| part.starts_with(&heading));
                let shown = alone.split("\n\n").find(|part| part.starts_with(&heading));
                assert_eq!(shown, section, "{mode:?} {id}");
            }
        }
    }
}
