//! An API server for tests that knows a list of objects and nothing else; it lives in the process.

use super::{
    engine::{Category, Problem, Verdict},
    facts::{Facts, Settings},
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// 2026-01-01, when all tests run.
pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_767_225_600)
}

#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub(crate) objects: Vec<Value>,
    pub(crate) version: &'static str,
    /// Resources that access reviews deny and kinds whose creation is refused.
    pub(crate) denied: Vec<&'static str>,
    /// Resources that may not be read.
    pub(crate) unreadable: Vec<&'static str>,
}

impl Fake {
    pub(crate) fn of(objects: Vec<Value>) -> Self {
        Self {
            objects,
            version: "v1.34.1",
            denied: vec![],
            unreadable: vec![],
        }
    }

    pub(crate) fn facts(self) -> Facts {
        let settings = Settings {
            namespace: "linkerd".to_owned(),
            cni_namespace: "linkerd-cni".to_owned(),
            cli_version: "edge-25.10.7".to_owned(),
            ..Settings::default()
        };
        let fake = Arc::new(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = Arc::clone(&fake);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let path = parts.uri.path().to_owned();
                let query = parts.uri.query().unwrap_or_default().to_owned();
                let (status, answer) = fake.answer(&parts.method, &path, &query, body);
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = status;
                Ok::<_, kube::Error>(response)
            }
        });
        Facts::new(Ok(Client::new(service, "default")), settings, now())
    }

    fn answer(&self, method: &Method, path: &str, query: &str, body: Value) -> (StatusCode, Value) {
        if path == "/version" {
            let empty = [
                "gitCommit",
                "gitTreeState",
                "buildDate",
                "goVersion",
                "compiler",
                "platform",
            ];
            let mut info = json!({"major": "1", "minor": "34", "gitVersion": self.version});
            for key in empty {
                info[key] = json!("");
            }
            return (StatusCode::OK, info);
        }
        if method == Method::POST {
            return self.created(path, body);
        }
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let skip = if segments[0] == "api" { 2 } else { 3 };
        let (namespace, plural, name) = match &segments[skip..] {
            ["namespaces", namespace, plural] => (Some(*namespace), *plural, None),
            ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, Some(*name)),
            [plural, name] => (None, *plural, Some(*name)),
            [plural] => (None, *plural, None),
            other => panic!("a path nobody asks for: {other:?}"),
        };
        if self.unreadable.contains(&plural) {
            let message = format!("{plural} is forbidden: User \"ann\" cannot get it");
            return refusal(StatusCode::FORBIDDEN, "Forbidden", &message);
        }
        let mut found = self.objects.iter().filter(|object| {
            let kind = object["kind"]
                .as_str()
                .expect("objects have kinds")
                .to_lowercase();
            let here = namespace.is_none_or(|n| object["metadata"]["namespace"] == n);
            let named = name.is_none_or(|n| object["metadata"]["name"] == n);
            format!("{kind}s") == plural && here && named && selected(object, query)
        });
        if let Some(name) = name {
            return match found.next() {
                Some(object) => (StatusCode::OK, object.clone()),
                None => refusal(
                    StatusCode::NOT_FOUND,
                    "NotFound",
                    &format!("{plural} \"{name}\" not found"),
                ),
            };
        }
        let items: Vec<Value> = found.cloned().collect();
        (
            StatusCode::OK,
            json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}),
        )
    }

    fn created(&self, path: &str, mut body: Value) -> (StatusCode, Value) {
        if path.ends_with("selfsubjectaccessreviews") {
            let resource = body["spec"]["resourceAttributes"]["resource"]
                .as_str()
                .expect("a resource");
            let allowed = !self.denied.contains(&resource);
            body["status"] =
                json!({"allowed": allowed, "reason": if allowed { "" } else { "RBAC says no" }});
            return (StatusCode::CREATED, body);
        }
        let kind = body["kind"].as_str().expect("objects have kinds");
        if self.denied.contains(&kind) {
            return refusal(
                StatusCode::FORBIDDEN,
                "Forbidden",
                &format!("{kind} is forbidden"),
            );
        }
        (StatusCode::CREATED, body)
    }
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()});
    (code, status)
}

fn selected(object: &Value, query: &str) -> bool {
    let Some(selector) = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("labelSelector="))
    else {
        return true;
    };
    let selector = selector
        .replace("%2C", ",")
        .replace("%2F", "/")
        .replace("%3D", "=")
        .replace("%21", "!");
    selector.split(',').all(|term| {
        let label = |key: &str| {
            object["metadata"]["labels"]
                .get(key)
                .and_then(Value::as_str)
        };
        match (term.strip_prefix('!'), term.split_once('=')) {
            (Some(key), _) => label(key).is_none(),
            (None, Some((key, value))) => label(key) == Some(value),
            (None, None) => label(term).is_some(),
        }
    })
}

/// The verdict of one check.
pub(crate) async fn verdict(
    category: &Category<Facts>,
    description: &str,
    facts: &mut Facts,
) -> Verdict {
    let check = category
        .checks
        .iter()
        .find(|check| check.description == description);
    check
        .unwrap_or_else(|| panic!("no check {description:?}"))
        .attempt(facts)
        .await
}

/// Runs the check and compares its error; an empty one stands for success.
pub(crate) async fn assert_says(
    category: &Category<Facts>,
    description: &str,
    facts: &mut Facts,
    error: &str,
) {
    let expected = if error.is_empty() {
        Ok(())
    } else {
        Err(Problem::failed(error))
    };
    assert_eq!(
        verdict(category, description, facts).await,
        expected,
        "{description}"
    );
}
