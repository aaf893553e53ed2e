//! The objects of a test's API server: versions, conflicts, pages, history. No I/O.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

/// Changes that a watch may still ask for.
const HISTORY: usize = 20_000;

#[derive(Default)]
pub(super) struct Store {
    version: u64,
    /// By collection, then by namespace and name.
    objects: BTreeMap<String, BTreeMap<(String, String), Value>>,
    history: VecDeque<Change>,
    forgotten: u64,
}

/// What happened to an object, as a watch tells it.
#[derive(Clone)]
pub(super) struct Change {
    version: u64,
    pub(super) collection: String,
    pub(super) namespace: String,
    pub(super) line: Bytes,
}

/// What a request is about.
pub(super) struct Path {
    /// `plural.group`, or `plural` alone.
    pub(super) collection: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
}

pub(super) type Answer = (u16, Value, Option<Change>);

impl Path {
    /// Reads `/api/v1/…` and `/apis/GROUP/VERSION/…`. A `/status` at the end changes nothing.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut words = path.trim_start_matches('/').split('/');
        let group = match words.next()? {
            "api" => None,
            "apis" => Some(words.next()?),
            _ => return None,
        };
        let _version = words.next()?;
        let mut rest: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let namespace = match rest.as_slice() {
            ["namespaces", namespace, _, ..] => Some((*namespace).to_owned()),
            _ => None,
        };
        if namespace.is_some() {
            rest.drain(..2);
        }
        let plural = rest.first()?;
        Some(Self {
            collection: match group {
                Some(group) => format!("{plural}.{group}"),
                None => (*plural).to_owned(),
            },
            namespace,
            name: rest.get(1).map(|name| (*name).to_owned()),
        })
    }
}

impl Store {
    pub(super) fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<&Value> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.get(collection)?.get(&key)
    }

    pub(super) fn put(&mut self, collection: &str, mut object: Value) -> Change {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let field = |name: &str| {
            let field = object["metadata"][name].as_str();
            field.unwrap_or_default().to_owned()
        };
        let key = (field("namespace"), field("name"));
        let objects = self.objects.entry(collection.to_owned()).or_default();
        let before = objects.insert(key.clone(), object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.note(collection, key.0, kind, &object)
    }

    pub(super) fn take(&mut self, collection: &str, namespace: &str, name: &str) -> Option<Change> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut object = self.objects.get_mut(collection)?.remove(&key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        Some(self.note(collection, key.0, "DELETED", &object))
    }

    fn note(&mut self, collection: &str, namespace: String, kind: &str, object: &Value) -> Change {
        let event = json!({"type": kind, "object": object});
        let change = Change {
            version: self.version,
            collection: collection.to_owned(),
            namespace,
            line: format!("{event}\n").into(),
        };
        self.history.push_back(change.clone());
        if self.history.len() > HISTORY {
            self.forgotten = self.history.pop_front().map_or(0, |change| change.version);
        }
        change
    }

    pub(super) fn forget_history(&mut self) {
        self.forgotten = self.version;
        self.history.clear();
    }

    /// What happened after a version, unless that has been forgotten.
    pub(super) fn since(&self, version: u64) -> Option<impl Iterator<Item = &Change>> {
        let known = version >= self.forgotten;
        known.then(|| self.history.iter().filter(move |it| it.version > version))
    }

    /// One page.
    pub(super) fn list(&self, path: &Path, query: &BTreeMap<&str, &str>) -> Answer {
        let number = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok());
        let wanted = |namespace: &str| path.namespace.as_deref().is_none_or(|it| it == namespace);
        let objects = self.objects.get(&path.collection).into_iter().flatten();
        let mut items: Vec<&Value> = objects
            .filter(|((namespace, _), _)| wanted(namespace))
            .map(|(_, object)| object)
            .skip(number("continue").unwrap_or(0))
            .collect();
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if let Some(limit) = number("limit").filter(|limit| *limit > 0 && *limit < items.len()) {
            items.truncate(limit);
            metadata["continue"] = json!((number("continue").unwrap_or(0) + limit).to_string());
        }
        let list =
            json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
        (200, list, None)
    }

    /// Everything but lists and watches.
    pub(super) fn handle(&mut self, method: &Method, path: &Path, body: Value) -> Answer {
        let refuse = |code| {
            let (status, body) = failure(code);
            (status, body, None)
        };
        let namespace = path.namespace.clone().unwrap_or_default();
        let name = path.name.clone().unwrap_or_default();
        let known = self.get(&path.collection, &namespace, &name).cloned();
        let object = match (method, known) {
            (&Method::GET, Some(object)) => return (200, object, None),
            (&Method::DELETE, Some(object)) => {
                let change = self.take(&path.collection, &namespace, &name);
                return (200, object, change);
            }
            (&Method::POST, None) => {
                let mut object = body;
                let meta = &mut object["metadata"];
                if meta["name"].is_null() {
                    let prefix = meta["generateName"].as_str().unwrap_or_default().to_owned();
                    meta["name"] = json!(format!("{prefix}{}", self.version));
                }
                let name = meta["name"].as_str().unwrap_or_default().to_owned();
                meta["namespace"] = json!(namespace);
                if self.get(&path.collection, &namespace, &name).is_some() {
                    return refuse(409);
                }
                object
            }
            (&Method::PUT | &Method::PATCH, Some(known)) => {
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != known["metadata"]["resourceVersion"] {
                    return refuse(409);
                }
                match *method {
                    Method::PUT => body,
                    _ => merged(known, body),
                }
            }
            (_, None) => return refuse(404),
            _ => return refuse(405),
        };
        let change = self.put(&path.collection, object);
        let event: Value = serde_json::from_slice(&change.line).expect("our own JSON");
        (200, event["object"].clone(), Some(change))
    }
}

/// A merge patch: `null` takes a field away.
fn merged(into: Value, from: Value) -> Value {
    match (into, from) {
        (Value::Object(mut into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    let before = into.remove(&key).unwrap_or_default();
                    into.insert(key, merged(before, value));
                }
            }
            Value::Object(into)
        }
        (_, from) => from,
    }
}

pub(super) fn failure(code: u16) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        _ => "MethodNotAllowed",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code,
    });
    (code, status)
}
