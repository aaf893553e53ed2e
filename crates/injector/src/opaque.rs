//! Opaque ports of pods and Services that carry no annotation of their own.

use crate::{Annotations, Template, Values};
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::util::intstr::IntOrString};
use linkerd_k8s::{labels::OPAQUE_PORTS, ports::PortSet};

fn defaults(values: &Values) -> PortSet {
    PortSet::parse_named(&values.proxy.opaque_ports, |_| None::<u16>, |_| {})
}

/// What a pod without the annotation gets: the namespace's value, else those of its container ports
/// that are opaque by default.
pub fn of_pod(values: &Values, namespace: &Annotations, pod: &Template) -> Option<String> {
    if pod.annotation(OPAQUE_PORTS).is_some() {
        return None;
    }
    if let Some(ports) = namespace.get(OPAQUE_PORTS) {
        return Some(ports.clone());
    }
    let defaults = defaults(values);
    listed(
        pod.container_ports()
            .filter(|port| defaults.contains(*port)),
    )
}

/// The same for a Service: ports whose target is opaque by default.
pub fn of_service(values: &Values, namespace: &Annotations, service: &Service) -> Option<String> {
    if service
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(OPAQUE_PORTS))
    {
        return None;
    }
    if let Some(ports) = namespace.get(OPAQUE_PORTS) {
        return Some(ports.clone());
    }
    let defaults = defaults(values);
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let opaque = ports.filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        let target = match &port.target_port {
            None => number,
            Some(IntOrString::Int(0)) => number,
            Some(IntOrString::Int(target)) => u16::try_from(*target).ok()?,
            Some(IntOrString::String(_)) => return None,
        };
        defaults.contains(target).then_some(number)
    });
    listed(opaque)
}

fn listed(ports: impl Iterator<Item = u16>) -> Option<String> {
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
    (!ports.is_empty()).then(|| ports.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services() {
        let service = |annotations: serde_json::Value, ports: serde_json::Value| -> Service {
            serde_json::from_value(
                json!({"metadata": {"annotations": annotations}, "spec": {"ports": ports}}),
            )
            .expect("service")
        };
        let none = Annotations::new();
        let set: Annotations = [(OPAQUE_PORTS.to_owned(), "1,2".to_owned())].into();
        for (name, namespace, service, expected) in [
            (
                "redis without target",
                &none,
                service(json!({}), json!([{"port": 6379}])),
                Some("6379"),
            ),
            (
                "http",
                &none,
                service(json!({}), json!([{"port": 80, "targetPort": 8080}])),
                None,
            ),
            (
                "mysql behind another port",
                &none,
                service(
                    json!({}),
                    json!([{"port": 80}, {"port": 3000, "targetPort": 3306}]),
                ),
                Some("3000"),
            ),
            (
                "named target",
                &none,
                service(json!({}), json!([{"port": 3306, "targetPort": "sql"}])),
                None,
            ),
            (
                "target elsewhere",
                &none,
                service(json!({}), json!([{"port": 3306, "targetPort": 80}])),
                None,
            ),
            (
                "own annotation",
                &set,
                service(json!({OPAQUE_PORTS: ""}), json!([{"port": 6379}])),
                None,
            ),
            (
                "namespace",
                &set,
                service(json!({}), json!([{"port": 80}])),
                Some("1,2"),
            ),
        ] {
            assert_eq!(
                of_service(&Values::default(), namespace, &service).as_deref(),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn pods() {
        let pod = |annotations: serde_json::Value| {
            let ports =
                json!([{"containerPort": 9300}, {"containerPort": 80}, {"containerPort": 25}]);
            Template::read(&json!({
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "a", "ports": ports}]},
            }))
            .expect("pod")
        };
        let none = Annotations::new();
        assert_eq!(
            of_pod(&Values::default(), &none, &pod(json!({}))).as_deref(),
            Some("9300,25")
        );
        assert_eq!(
            of_pod(&Values::default(), &none, &pod(json!({OPAQUE_PORTS: "80"}))),
            None
        );
    }
}
