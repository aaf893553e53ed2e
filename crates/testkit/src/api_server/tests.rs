//! The store by what requests do to it.

use super::store::{Path, Store};
use super::*;

fn pod(name: &str) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name}})
}

#[test]
fn paths() {
    for (path, expected) in [
        ("/api/v1/pods", Some(("pods", None, None))),
        ("/api/v1/nodes/n", Some(("nodes", None, Some("n")))),
        (
            "/api/v1/namespaces/ns",
            Some(("namespaces", None, Some("ns"))),
        ),
        (
            "/api/v1/namespaces/ns/pods/p",
            Some(("pods", Some("ns"), Some("p"))),
        ),
        (
            "/apis/policy.linkerd.io/v1beta3/namespaces/ns/httproutes/r/status",
            Some(("httproutes.policy.linkerd.io", Some("ns"), Some("r"))),
        ),
        ("/healthz", None),
    ] {
        let found = Path::parse(path);
        let found = found.as_ref().map(|it| {
            (
                it.collection.as_str(),
                it.namespace.as_deref(),
                it.name.as_deref(),
            )
        });
        assert_eq!(found, expected, "{path}");
    }
}

#[test]
fn pages_and_history() {
    let mut store = Store::default();
    for name in ["a", "b", "c"] {
        store.put("pods", pod(name));
    }
    let path = Path::parse("/api/v1/pods").expect("a path");
    let page = |query: &[(&str, &str)]| store.list(&path, &query.iter().copied().collect()).1;
    let first = page(&[("limit", "2")]);
    assert_eq!(first["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(first["metadata"]["continue"], "2");
    let last = page(&[("limit", "2"), ("continue", "2")]);
    assert_eq!(last["items"].as_array().map(Vec::len), Some(1));
    assert!(last["metadata"]["continue"].is_null());
    assert_eq!(store.since(1).map(Iterator::count), Some(2));
    store.forget_history();
    assert!(store.since(1).is_none(), "too old");
    assert_eq!(store.since(3).map(Iterator::count), Some(0));
}

#[test]
fn writes() {
    let mut store = Store::default();
    let path = Path::parse("/apis/x/v1/namespaces/ns/leases/l").expect("a path");
    let all = Path::parse("/apis/x/v1/namespaces/ns/leases").expect("a path");
    assert_eq!(store.handle(&Method::GET, &path, Value::Null).0, 404);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holder": "a", "old": 1}});
    assert_eq!(store.handle(&Method::POST, &all, lease.clone()).0, 200);
    assert_eq!(
        store.handle(&Method::POST, &all, lease).0,
        409,
        "it is there"
    );
    let patch = |version: &str| json!({"metadata": {"resourceVersion": version}, "spec": {"holder": "b", "old": null}});
    assert_eq!(store.handle(&Method::PATCH, &path, patch("9")).0, 409);
    let (status, object, change) = store.handle(&Method::PATCH, &path, patch("1"));
    assert_eq!((status, &object["spec"]), (200, &json!({"holder": "b"})));
    assert_eq!(object["metadata"]["resourceVersion"], "2");
    assert!(change.is_some_and(|it| it.collection == "leases.x" && it.namespace == "ns"));
    let made = json!({"metadata": {"generateName": "x-"}});
    let (_, made, _) = store.handle(&Method::POST, &all, made);
    assert_eq!(made["metadata"]["name"], "x-2");
    assert_eq!(store.handle(&Method::DELETE, &path, Value::Null).0, 200);
    assert_eq!(store.handle(&Method::DELETE, &path, Value::Null).0, 404);
}
