//! Plans by tables of named cases.

use serde_json::{Value, json};

use super::*;
use crate::fixture::{object, with};

fn service(extra: Value) -> Service {
    let json = json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": "u", "labels": {"team": "blue"}},
        "spec": {
            "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "selector": {"app": "vm"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    });
    serde_json::from_value(with(json, extra)).expect("a Service")
}

fn workload(name: &str, ip: &str, extra: Value) -> Arc<ExternalWorkload> {
    let json = json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {"app": "vm"}},
        "spec": {
            "meshTLS": {"identity": "spiffe://td/vm", "serverName": "vm.td"},
            "ports": [{"name": "http", "port": 8080}],
            "workloadIPs": [{"ip": ip}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    object(with(json, extra))
}

/// What the API server would have after a plan.
fn carry_out(existing: Vec<Arc<EndpointSlice>>, plan: &Plan) -> Vec<Arc<EndpointSlice>> {
    let mut slices: Vec<_> = existing
        .into_iter()
        .filter(|slice| {
            let name = slice.metadata.name.as_ref().expect("a name");
            !plan.delete.contains(name)
                && !plan
                    .update
                    .iter()
                    .any(|it| it.metadata.name.as_ref() == Some(name))
        })
        .collect();
    slices.extend(plan.update.iter().cloned().map(Arc::new));
    for (at, slice) in plan.create.iter().enumerate() {
        let mut slice = slice.clone();
        let prefix = slice.metadata.generate_name.take().expect("a prefix");
        slice.metadata.name = Some(format!("{prefix}{at}-{}", slices.len()));
        slices.push(Arc::new(slice));
    }
    slices
}

fn members(slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let mut all: Vec<_> = slices
        .iter()
        .flat_map(|slice| {
            slice
                .endpoints
                .iter()
                .map(|it| format!("{} {:?}", it.addresses.join(","), it.conditions.ready))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_slice_as_other_controllers_make_them() {
    let zoned = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "east"}}});
    let plan = plan(
        &service(json!({})),
        &[workload("vm", "172.16.0.1", zoned)],
        &[],
    );
    let [slice] = plan.create.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(
        serde_json::to_value(&slice.metadata).expect("JSON"),
        json!({
            "generateName": "linkerd-external-web-",
            "namespace": "ns",
            "labels": {
                "team": "blue",
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "linkerd-external-workloads-controller",
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u",
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    );
    assert_eq!(slice.address_type, "IPv4");
    let ports = slice.ports.as_ref().expect("ports");
    assert_eq!(
        (ports[0].name.as_deref(), ports[0].port),
        (Some("http"), Some(8080))
    );
    let endpoint = &slice.endpoints[0];
    assert_eq!(
        endpoint.conditions,
        Conditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false)
        }
    );
    assert_eq!(endpoint.zone.as_deref(), Some("east"));
    assert_eq!(endpoint.hostname, None);
    let target = endpoint.target_ref.as_ref().expect("a reference");
    assert_eq!(target.kind.as_deref(), Some("ExternalWorkload"));
    assert_eq!(target.uid.as_deref(), Some("vm"));
}

#[test]
fn which_endpoints() {
    let named = |target: Value| json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": target}]}});
    let none = Vec::<String>::new();
    for (name, service_extra, workload_extra, expected) in [
        (
            "plain",
            json!({}),
            json!({}),
            vec!["172.16.0.1 Some(true)".to_owned()],
        ),
        (
            "not ready",
            json!({}),
            json!({"status": null}),
            vec!["172.16.0.1 Some(false)".to_owned()],
        ),
        (
            "not selected",
            json!({}),
            json!({"metadata": {"labels": {"app": "other"}}}),
            none.clone(),
        ),
        (
            "no address",
            json!({}),
            json!({"spec": {"workloadIPs": null}}),
            none.clone(),
        ),
        (
            "other family",
            json!({"spec": {"ipFamilies": ["IPv6"]}}),
            json!({}),
            none.clone(),
        ),
        (
            "no family named",
            json!({"spec": {"ipFamilies": null}}),
            json!({}),
            vec!["172.16.0.1 Some(true)".to_owned()],
        ),
        (
            "target port by name",
            named(json!("http")),
            json!({}),
            vec!["172.16.0.1 Some(true)".to_owned()],
        ),
    ] {
        let plan = plan(
            &service(service_extra),
            &[workload("vm", "172.16.0.1", workload_extra)],
            &[],
        );
        assert_eq!(members(&carry_out(Vec::new(), &plan)), expected, "{name}");
    }
}

#[test]
fn ports_the_workload_does_not_declare_are_left_out() {
    let ports = |ports: Value| json!({"spec": {"ports": ports}});
    for (name, service_ports, expected) in [
        (
            "number",
            json!([{"name": "a", "port": 80, "targetPort": 9999}]),
            vec![],
        ),
        (
            "name",
            json!([{"name": "a", "port": 80, "targetPort": "grpc"}]),
            vec![],
        ),
        (
            "protocol",
            json!([{"name": "a", "port": 80, "targetPort": 8080, "protocol": "UDP"}]),
            vec![],
        ),
        (
            "one of two",
            json!([{"name": "a", "port": 80, "targetPort": 8080}, {"name": "b", "port": 81}]),
            vec![8080],
        ),
        (
            "no target port",
            json!([{"name": "a", "port": 8080}]),
            vec![8080],
        ),
    ] {
        let plan = plan(
            &service(ports(service_ports)),
            &[workload("vm", "172.16.0.1", json!({}))],
            &[],
        );
        let slices = carry_out(Vec::new(), &plan);
        let found: Vec<u16> = slices[0]
            .ports
            .iter()
            .flatten()
            .filter_map(|port| port.port)
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn headless_services_name_their_endpoints() {
    let headless = service(json!({"spec": {"clusterIP": "None"}}));
    let plan = plan(&headless, &[workload("vm", "172.16.0.1", json!({}))], &[]);
    let slice = &plan.create[0];
    assert_eq!(slice.endpoints[0].hostname.as_deref(), Some("vm"));
    assert!(
        slice
            .metadata
            .labels
            .as_ref()
            .expect("labels")
            .contains_key("service.kubernetes.io/headless")
    );
}

#[test]
fn nothing_is_written_twice() {
    let service = service(json!({"spec": {"ipFamilies": ["IPv4", "IPv6"]}}));
    let both = json!({"spec": {"workloadIPs": [{"ip": "172.16.0.1"}, {"ip": "fd00::1"}]}});
    let workloads = [
        workload("a", "172.16.0.1", both),
        workload("b", "172.16.0.2", json!({})),
    ];
    let first = plan(&service, &workloads, &[]);
    assert_eq!(first.create.len(), 2, "one slice per family");
    let slices = carry_out(Vec::new(), &first);
    assert_eq!(plan(&service, &workloads, &slices), Plan::default());
}

#[test]
fn slices_are_filled_split_and_freed() {
    let service = service(json!({}));
    let vm = |n: usize| {
        workload(
            &format!("vm-{n:03}"),
            &format!("172.16.{}.{}", n / 250, n % 250 + 1),
            json!({}),
        )
    };
    let mut workloads: Vec<_> = (0..150).map(vm).collect();
    let first = plan(&service, &workloads, &[]);
    let slices = carry_out(Vec::new(), &first);
    assert_eq!(
        slices
            .iter()
            .map(|slice| slice.endpoints.len())
            .collect::<Vec<_>>(),
        [100, 50]
    );

    // One more fits into the slice with the least room that is enough.
    workloads.push(vm(150));
    let next = plan(&service, &workloads, &slices);
    assert_eq!(
        (next.create.len(), next.update.len(), next.delete.len()),
        (0, 1, 0)
    );
    assert_eq!(next.update[0].endpoints.len(), 51);
    let slices = carry_out(slices, &next);

    // One goes and one comes: the slice that is written anyway takes the new one.
    workloads.remove(0);
    workloads.push(vm(151));
    let next = plan(&service, &workloads, &slices);
    assert_eq!(
        (next.create.len(), next.update.len(), next.delete.len()),
        (0, 1, 0)
    );
    assert_eq!(next.update[0].endpoints.len(), 100);
    let slices = carry_out(slices, &next);

    // All go.
    let next = plan(&service, &[], &slices);
    assert_eq!(
        (next.create.len(), next.update.len(), next.delete.len()),
        (0, 0, 2)
    );
}

#[test]
fn a_freed_slice_is_used_again() {
    let old = service(json!({}));
    let workloads = [workload("vm", "172.16.0.1", json!({}))];
    let slices = carry_out(Vec::new(), &plan(&old, &workloads, &[]));
    // Another port list is another slice.
    let renamed =
        service(json!({"spec": {"ports": [{"name": "other", "port": 80, "targetPort": 8080}]}}));
    let next = plan(&renamed, &workloads, &slices);
    assert_eq!(
        (next.create.len(), next.update.len(), next.delete.len()),
        (0, 1, 0)
    );
    assert_eq!(next.update[0].metadata.name, slices[0].metadata.name);
    assert_eq!(
        next.update[0].ports.as_ref().expect("ports")[0]
            .name
            .as_deref(),
        Some("other")
    );
}

#[test]
fn foreign_changes_are_put_right() {
    let service = service(json!({}));
    let workloads = [workload("vm", "172.16.0.1", json!({}))];
    let slices = carry_out(Vec::new(), &plan(&service, &workloads, &[]));
    let mut tampered = (*slices[0]).clone();
    tampered
        .metadata
        .labels
        .as_mut()
        .expect("labels")
        .insert("team".to_owned(), "red".to_owned());
    let next = plan(&service, &workloads, &[Arc::new(tampered)]);
    assert_eq!(next.update.len(), 1);
    assert_eq!(next.update[0].metadata.labels, slices[0].metadata.labels);
    // A family the Service lost.
    let mut v6 = (*slices[0]).clone();
    v6.address_type = "IPv6".to_owned();
    v6.metadata.name = Some("six".to_owned());
    let next = plan(&service, &workloads, &[slices[0].clone(), Arc::new(v6)]);
    assert_eq!(next.delete, ["six"]);
}

#[test]
fn services_without_slices_of_ours() {
    for (name, extra, expected) in [
        ("selects", json!({}), true),
        ("no selector", json!({"spec": {"selector": null}}), false),
        (
            "external name",
            json!({"spec": {"type": "ExternalName"}}),
            false,
        ),
        (
            "kube-system",
            json!({"metadata": {"namespace": "kube-system"}}),
            false,
        ),
    ] {
        assert_eq!(is_managed(&service(extra)), expected, "{name}");
    }
}
