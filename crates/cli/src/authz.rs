//! Which authorizations apply to pods: a pure look at pods and policy objects.

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt as _;
use linkerd_k8s::{
    policy::{AuthorizationPolicy, Server, ServerAuthorization},
    selector::Selector,
};
use serde_json::Value;
use std::collections::BTreeSet;

const POLICY: &str = "policy.linkerd.io";
const GATEWAY: &str = "gateway.networking.k8s.io";

/// Everything of a namespace that decides about its pods.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub servers: Vec<Server>,
    pub server_authorizations: Vec<ServerAuthorization>,
    pub authorization_policies: Vec<AuthorizationPolicy>,
    /// HTTPRoutes and GRPCRoutes of both groups, as they are in the cluster.
    pub routes: Vec<Value>,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub route: String,
    pub server: String,
    pub authorization_policy: String,
    pub server_authorization: String,
}

/// The authorizations of the pods, and what is broken about them.
pub fn rows(namespace: &str, pods: &[Pod], policies: &Policies) -> (Vec<Row>, Vec<String>) {
    let servers: Vec<&Server> = policies
        .servers
        .iter()
        .filter(|server| pods.iter().any(|pod| selects(server, pod)))
        .collect();
    let mut rows = BTreeSet::new();
    let mut broken = Vec::new();
    for authorization in &policies.server_authorizations {
        for server in authorized(authorization, &servers) {
            rows.insert(Row {
                route: "*".to_owned(),
                server: server.name_any(),
                authorization_policy: String::new(),
                server_authorization: authorization.name_any(),
            });
        }
        if let Some(name) = &authorization.spec.server.name
            && !policies.servers.iter().any(|s| s.name_any() == *name)
        {
            let own = authorization.name_any();
            broken.push(format!(
                "ServerAuthorization/{own} targets Server/{name}, which does not exist"
            ));
        }
    }
    for policy in &policies.authorization_policies {
        let target = &policy.spec.target_ref;
        let group = target.group.as_deref().unwrap_or_default();
        let row = |route: &str, server: &Server| Row {
            route: route.to_owned(),
            server: server.name_any(),
            authorization_policy: policy.name_any(),
            server_authorization: String::new(),
        };
        match (group, target.kind.as_str()) {
            (POLICY, "Server") => {
                let exists = |server: &&Server| server.name_any() == target.name;
                rows.extend(
                    servers
                        .iter()
                        .copied()
                        .filter(exists)
                        .map(|server| row("*", server)),
                );
                if !policies.servers.iter().any(|server| exists(&server)) {
                    broken.push(missing(policy, "Server"));
                }
            }
            ("" | "core", "Namespace") if target.name == namespace => {
                rows.extend(servers.iter().map(|server| row("*", server)));
            }
            (POLICY | GATEWAY, kind @ ("HTTPRoute" | "GRPCRoute")) => {
                match route(&policies.routes, group, kind, &target.name) {
                    Some(found) => {
                        let parents = parents(found);
                        let here = |server: &&&Server| parents.contains(&server.name_any());
                        let here = servers.iter().filter(here);
                        rows.extend(here.map(|server| row(&target.name, server)));
                    }
                    None => broken.push(missing(policy, kind)),
                }
            }
            _ => {}
        }
    }
    (rows.into_iter().collect(), broken)
}

fn missing(policy: &AuthorizationPolicy, kind: &str) -> String {
    let (own, name) = (policy.name_any(), &policy.spec.target_ref.name);
    format!("AuthorizationPolicy/{own} targets {kind}/{name}, which does not exist")
}

/// The servers that a ServerAuthorization is about.
fn authorized<'a>(authorization: &ServerAuthorization, servers: &[&'a Server]) -> Vec<&'a Server> {
    let target = &authorization.spec.server;
    let selector = target.selector.as_ref().map(Selector::compile);
    let hit = |server: &&&Server| match (&target.name, &selector) {
        (Some(name), _) => server.name_any() == *name,
        (None, Some(Ok(selector))) => selector.matches(server.labels()),
        _ => false,
    };
    servers.iter().filter(hit).copied().collect()
}

fn route<'a>(routes: &'a [Value], group: &str, kind: &str, name: &str) -> Option<&'a Value> {
    routes.iter().find(|route| {
        let version = route["apiVersion"].as_str().unwrap_or_default();
        version.split('/').next() == Some(group)
            && route["kind"] == kind
            && route["metadata"]["name"] == name
    })
}

/// Servers that a route is attached to.
fn parents(route: &Value) -> BTreeSet<String> {
    let parents = route["spec"]["parentRefs"].as_array();
    let parents = parents.into_iter().flatten();
    let servers = parents.filter(|parent| {
        parent["kind"] == "Server" && parent["group"].as_str().unwrap_or(POLICY) == POLICY
    });
    servers
        .filter_map(|parent| Some(parent["name"].as_str()?.to_owned()))
        .collect()
}

/// Whether a Server is about the pod and one of its ports.
fn selects(server: &Server, pod: &Pod) -> bool {
    let Some(selector) = &server.spec.pod_selector else {
        return false;
    };
    Selector::compile(selector).is_ok_and(|selector| selector.matches(pod.labels()))
        && containers(pod).any(|container| {
            let mut ports = container.ports.iter().flatten();
            ports.any(|port| match &server.spec.port {
                IntOrString::Int(number) => port.container_port == *number,
                IntOrString::String(name) => port.name.as_ref() == Some(name),
            })
        })
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    })
}

/// The table: columns two spaces apart and never narrower than upstream's.
pub fn table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        [
            row.route.clone(),
            row.server.clone(),
            row.authorization_policy.clone(),
            row.server_authorization.clone(),
        ]
    };
    let head = [
        "ROUTE",
        "SERVER",
        "AUTHORIZATION_POLICY",
        "SERVER_AUTHORIZATION",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let widths: Vec<usize> = [6, 6, 21, 21]
        .into_iter()
        .enumerate()
        .map(|(at, least)| {
            let widest = lines.iter().map(|line| line[at].chars().count()).max();
            widest.unwrap_or_default().max(least)
        })
        .collect();
    let mut out = String::new();
    for line in lines {
        let padded = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let padded: Vec<String> = padded.collect();
        out += &padded.join("  ");
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    fn of<T: DeserializeOwned>(kind: &str, name: &str, spec: Value) -> T {
        let object = json!({"apiVersion": "policy.linkerd.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": "app", "labels": {"tier": name}}, "spec": spec});
        serde_json::from_value(object).expect("an object")
    }

    fn policy(name: &str, group: &str, kind: &str, target: &str) -> AuthorizationPolicy {
        let target = json!({"group": group, "kind": kind, "name": target});
        let spec = json!({"targetRef": target, "requiredAuthenticationRefs": []});
        of("AuthorizationPolicy", name, spec)
    }

    fn world() -> (Vec<Pod>, Policies) {
        let pod = json!({"metadata": {"name": "web-1", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web",
                "ports": [{"name": "http", "containerPort": 8080}]}]}});
        let selector = json!({"matchLabels": {"app": "web"}});
        let other = json!({"matchLabels": {"app": "other"}});
        let policies = Policies {
            servers: vec![
                of(
                    "Server",
                    "web-http",
                    json!({"podSelector": selector, "port": "http"}),
                ),
                of(
                    "Server",
                    "web-admin",
                    json!({"podSelector": selector, "port": 9990}),
                ),
                of(
                    "Server",
                    "other",
                    json!({"podSelector": other, "port": 8080}),
                ),
            ],
            server_authorizations: vec![
                of(
                    "ServerAuthorization",
                    "by-name",
                    json!({"server": {"name": "web-http"}, "client": {}}),
                ),
                of(
                    "ServerAuthorization",
                    "by-selector",
                    json!({"server": {"selector": {"matchLabels": {"tier": "web-http"}}}, "client": {}}),
                ),
                of(
                    "ServerAuthorization",
                    "elsewhere",
                    json!({"server": {"name": "other"}, "client": {}}),
                ),
                of(
                    "ServerAuthorization",
                    "broken",
                    json!({"server": {"name": "gone"}, "client": {}}),
                ),
            ],
            authorization_policies: vec![
                policy("on-server", POLICY, "Server", "web-http"),
                policy("on-other", POLICY, "Server", "other"),
                policy("on-namespace", "", "Namespace", "app"),
                policy("on-route", POLICY, "HTTPRoute", "web-get"),
                policy("on-gateway-route", GATEWAY, "GRPCRoute", "web-grpc"),
                policy("on-nothing", POLICY, "HTTPRoute", "gone"),
            ],
            routes: vec![
                json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
                    "metadata": {"name": "web-get"},
                    "spec": {"parentRefs": [{"kind": "Server", "name": "web-http"}]}}),
                json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute",
                    "metadata": {"name": "web-grpc"},
                    "spec": {"parentRefs": [{"group": POLICY, "kind": "Server", "name": "web-http"}]}}),
            ],
        };
        (vec![serde_json::from_value(pod).expect("a pod")], policies)
    }

    #[test]
    fn what_applies_to_a_pod() {
        let (pods, policies) = world();
        let (rows, broken) = rows("app", &pods, &policies);
        let expected = "\
ROUTE     SERVER    AUTHORIZATION_POLICY   SERVER_AUTHORIZATION \n\
*         web-http                         by-name              \n\
*         web-http                         by-selector          \n\
*         web-http  on-namespace                                \n\
*         web-http  on-server                                   \n\
web-get   web-http  on-route                                    \n\
web-grpc  web-http  on-gateway-route                            \n";
        assert_eq!(table(&rows), expected);
        assert_eq!(
            broken,
            [
                "ServerAuthorization/broken targets Server/gone, which does not exist",
                "AuthorizationPolicy/on-nothing targets HTTPRoute/gone, which does not exist",
            ]
        );
    }

    #[test]
    fn without_pods_nothing_applies() {
        let (_, policies) = world();
        assert!(rows("app", &[], &policies).0.is_empty());
        assert_eq!(
            table(&[]),
            "ROUTE   SERVER  AUTHORIZATION_POLICY   SERVER_AUTHORIZATION \n"
        );
    }
}
