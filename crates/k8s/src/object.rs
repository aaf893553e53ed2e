//! Objects as they come from the API server: [`Decoded`] never fails as a whole, so one object we
//! cannot read does not stop a watch; [`Key`] names an object within its kind.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use crate::labels;

/// Namespace and name. The namespace is empty for cluster-scoped kinds.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// What came of reading one object: the trimmed object or the reason why not.
#[derive(Clone, Debug)]
pub struct Decoded<T> {
    /// Name, namespace and version: there even when the rest could not be read.
    pub metadata: ObjectMeta,
    pub object: Result<T, String>,
    /// When somebody last wrote the object, in seconds since the epoch.
    pub written: Option<i64>,
}

// === impl Key ===

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Decoded ===

impl<T: DeserializeOwned> Decoded<T> {
    /// Reads an object, dropping what nobody here looks at before it costs memory.
    pub fn from_json(mut json: Value) -> Self {
        let written = json.get_mut("metadata").and_then(trim_metadata);
        let metadata = identity(&json);
        let object = serde_json::from_value(json).map_err(|error| error.to_string());
        Self {
            metadata,
            object,
            written,
        }
    }
}

/// Drops bookkeeping and answers when the object was last written.
fn trim_metadata(meta: &mut Value) -> Option<i64> {
    let meta = meta.as_object_mut()?;
    if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(labels::LAST_APPLIED);
    }
    let managed = meta.shift_remove("managedFields")?;
    managed
        .as_array()?
        .iter()
        .filter_map(|entry| entry.get("time")?.as_str()?.parse::<jiff::Timestamp>().ok())
        .map(jiff::Timestamp::as_second)
        .max()
}

/// The part of the metadata that names the object, read without trusting its shape.
fn identity(json: &Value) -> ObjectMeta {
    let field = |name| Some(json.get("metadata")?.get(name)?.as_str()?.to_owned());
    ObjectMeta {
        name: field("name"),
        namespace: field("namespace"),
        resource_version: field("resourceVersion"),
        ..ObjectMeta::default()
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Decoded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from_json)
    }
}

impl<T: Resource<DynamicType = ()>> Resource for Decoded<T> {
    type DynamicType = ();
    type Scope = T::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        T::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        T::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        T::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::plural(&())
    }

    fn metadata_api() -> bool {
        T::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Reads a field whose absence and whose `null` both mean the default value.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Makes a cut-down type stand for a built-in kind.
macro_rules! stands_for {
    ($type:ty, $kind:ty, $scope:ty, metadata_only: $metadata_only:expr) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }

            fn metadata_api() -> bool {
                $metadata_only
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(
                &mut self,
            ) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use stands_for;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Pod;

    #[test]
    fn an_object_we_cannot_read_still_has_a_name() {
        let decoded = Decoded::<Pod>::from_json(json!({
            "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7"},
            "spec": {"containers": "not a list"},
        }));
        assert!(decoded.object.is_err());
        assert_eq!(Key::of(&decoded.metadata), Key::new("shop", "web"));
        assert_eq!(decoded.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn bookkeeping_is_dropped_and_its_newest_time_kept() {
        let decoded = Decoded::<Pod>::from_json(json!({
            "metadata": {
                "name": "web", "namespace": "shop",
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"},
                "managedFields": [
                    {"manager": "x", "time": "2025-01-01T00:00:00Z", "fieldsV1": {"f:a": {}}},
                    {"manager": "y", "time": "2025-01-01T00:00:05Z"},
                ],
            },
        }));
        let pod = decoded.object.expect("readable");
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.metadata.annotations.expect("some").len(), 1);
        assert_eq!(decoded.written, Some(1_735_689_605));
    }

    #[test]
    fn not_even_an_object() {
        let decoded = Decoded::<Pod>::from_json(json!("what"));
        assert!(decoded.object.is_err());
        assert_eq!(Key::of(&decoded.metadata), Key::new("", ""));
    }
}
