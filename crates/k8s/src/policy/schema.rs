//! Schemas of the policy kinds, as structural OpenAPI. Bounds follow the Gateway API's conventions
//! for names; descriptions are what `kubectl explain` shows.

use serde_json::{Value, json};

const DNS_SUBDOMAIN: &str = r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const DNS_LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const KIND: &str = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$";
const HOSTNAME: &str = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const HEADER: &str = r"^[A-Za-z0-9!#$%&'*+\-.^_\x60|~]+$";
const DURATION: &str = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$";
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// How much of the HTTPRoute a version has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteFeatures {
    /// Backends without kind, weight or filters.
    LooseBackends,
    /// Backends as the Gateway API has them.
    Backends,
    /// And time limits.
    Timeouts,
}

/// How much of the Server a version has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerFeatures {
    /// The pod selector must say something.
    StrictSelector,
    /// Pods only.
    PodsOnly,
    /// Pods or external workloads.
    Workloads,
    /// And an access policy.
    AccessPolicy,
}

pub(super) fn authorization_policy() -> Value {
    object(
        "Allows clients that satisfy every authentication to use the target.",
        json!({
            "targetRef": local_ref("What may be used: a Server, an HTTPRoute, a GRPCRoute or the own Namespace."),
            "requiredAuthenticationRefs": {
                "description": "Authentications a client must satisfy, all of them; none allows everyone.",
                "type": "array",
                "items": namespaced_ref("An authentication.", &["kind", "name"]),
            },
        }),
        &["targetRef", "requiredAuthenticationRefs"],
    )
}

pub(super) fn egress_network() -> Value {
    object(
        "Addresses outside the cluster and what happens to traffic that goes there.",
        json!({
            "trafficPolicy": {
                "description": "What happens to traffic that no route is for.",
                "type": "string",
                "enum": ["Allow", "Deny"],
            },
            "networks": networks("Networks this is about; everything outside the cluster when left out."),
        }),
        &["trafficPolicy"],
    )
}

pub(super) fn egress_network_status() -> Value {
    object(
        "What the policy controller found out.",
        json!({"conditions": conditions(false)}),
        &[],
    )
}

pub(super) fn rate_limit() -> Value {
    let limit = |what: &str| {
        object(
            what,
            json!({"requestsPerSecond": {"type": "integer", "format": "int64"}}),
            &["requestsPerSecond"],
        )
    };
    object(
        "Limits the requests per second that clients may send to a Server.",
        json!({
            "targetRef": local_ref("The Server the limits are for."),
            "total": limit("Limit of all clients together."),
            "identity": limit("Limit of each client."),
            "overrides": {
                "description": "Limits of some clients, in place of the one each client has.",
                "type": "array",
                "items": object(
                    "A limit shared by the clients it names.",
                    json!({
                        "requestsPerSecond": {"type": "integer", "format": "int64"},
                        "clientRefs": {
                            "description": "ServiceAccounts of the clients.",
                            "type": "array",
                            "items": namespaced_ref("A ServiceAccount.", &["kind", "name"]),
                        },
                    }),
                    &["requestsPerSecond", "clientRefs"],
                ),
            },
        }),
        &["targetRef"],
    )
}

pub(super) fn rate_limit_status() -> Value {
    let mut target = local_ref("The Server the conditions are about.");
    target["properties"]["group"]["default"] = json!("policy.linkerd.io");
    target["properties"]["kind"]["default"] = json!("Server");
    object(
        "What the policy controller found out.",
        json!({"conditions": conditions(false), "targetRef": target}),
        &["targetRef"],
    )
}

pub(super) fn http_route(features: RouteFeatures) -> Value {
    let mut rule = json!({
        "matches": {
            "description": "Alternatives, one of which must match.",
            "type": "array",
            "maxItems": 8,
            "default": [{"path": {"type": "PathPrefix", "value": "/"}}],
            "items": http_match(),
        },
        "filters": filters(&["RequestHeaderModifier", "RequestRedirect"]),
        "backendRefs": backend_refs(features),
    });
    if features == RouteFeatures::Timeouts {
        let duration = json!({"type": "string", "pattern": DURATION});
        rule["timeouts"] = object(
            "Time limits of a request.",
            json!({"request": duration, "backendRequest": duration}),
            &[],
        );
    }
    object(
        "Routes HTTP requests to Servers and Services.",
        json!({
            "hostnames": {
                "description": "Hosts the route is for; any when left out.",
                "type": "array",
                "maxItems": 16,
                "items": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": HOSTNAME},
            },
            "parentRefs": {
                "description": "What the route attaches to.",
                "type": "array",
                "maxItems": 32,
                "items": parent_ref(),
            },
            "rules": {
                "description": "What to match and what to do with it.",
                "type": "array",
                "maxItems": 16,
                "default": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}],
                "items": object("Requests and what happens to them.", rule, &[]),
            },
        }),
        &[],
    )
}

pub(super) fn route_status() -> Value {
    object(
        "What controllers found out.",
        json!({"parents": {
            "type": "array",
            "maxItems": 32,
            "items": object(
                "What one controller found out about one parent.",
                json!({
                    "controllerName": {
                        "type": "string", "minLength": 1, "maxLength": 253,
                        "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$",
                    },
                    "parentRef": parent_ref(),
                    "conditions": conditions(true),
                }),
                &["controllerName", "parentRef"],
            ),
        }}),
        &["parents"],
    )
}

pub(super) fn mesh_tls_authentication() -> Value {
    let mut schema = object(
        "Clients with one of these mesh identities.",
        json!({
            "identities": {
                "description": "Identities of clients; `*` as the first label stands for any.",
                "type": "array",
                "minItems": 1,
                "items": {"type": "string"},
            },
            "identityRefs": {
                "description": "ServiceAccounts, or Namespaces whose ServiceAccounts are all meant.",
                "type": "array",
                "minItems": 1,
                "items": namespaced_ref("A ServiceAccount or a Namespace.", &["kind"]),
            },
        }),
        &[],
    );
    schema["oneOf"] = json!([{"required": ["identities"]}, {"required": ["identityRefs"]}]);
    schema
}

pub(super) fn network_authentication() -> Value {
    object(
        "Clients in one of these networks.",
        json!({"networks": networks("Networks of clients.")}),
        &["networks"],
    )
}

pub(super) fn server_authorization() -> Value {
    let mut server = object(
        "Servers of the namespace, by name or by label.",
        json!({"name": {"type": "string", "pattern": DNS_SUBDOMAIN}, "selector": label_selector()}),
        &[],
    );
    server["oneOf"] = json!([{"required": ["name"]}, {"required": ["selector"]}]);
    object(
        "Allows clients to use some Servers.",
        json!({
            "server": server,
            "client": object(
                "Which clients.",
                json!({
                    "networks": networks("Networks of clients; those of the cluster when left out."),
                    "unauthenticated": {"description": "Any client, with or without mesh TLS.", "type": "boolean"},
                    "meshTLS": object(
                        "Clients of the mesh.",
                        json!({
                            "unauthenticatedTLS": {"description": "Mesh TLS without a client identity is enough.", "type": "boolean"},
                            "identities": {"type": "array", "items": {"type": "string", "pattern": r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}},
                            "serviceAccounts": {
                                "type": "array",
                                "items": object(
                                    "A ServiceAccount, in the own namespace unless it says otherwise.",
                                    json!({
                                        "name": {"type": "string", "pattern": DNS_SUBDOMAIN},
                                        "namespace": {"type": "string", "pattern": DNS_LABEL},
                                    }),
                                    &["name"],
                                ),
                            },
                        }),
                        &[],
                    ),
                }),
                &[],
            ),
        }),
        &["server", "client"],
    )
}

pub(super) fn server(features: ServerFeatures) -> Value {
    let mut properties = json!({
        "podSelector": label_selector(),
        "port": {
            "description": "Port number, or the name of a container port.",
            "x-kubernetes-int-or-string": true,
        },
        "proxyProtocol": {
            "description": "How the port is spoken to: unknown, HTTP/1, HTTP/2, gRPC, opaque or TLS.",
            "type": "string",
            "default": "unknown",
        },
    });
    if features == ServerFeatures::StrictSelector {
        properties["podSelector"]["oneOf"] =
            json!([{"required": ["matchLabels"]}, {"required": ["matchExpressions"]}]);
    }
    if features >= ServerFeatures::Workloads {
        properties["externalWorkloadSelector"] = label_selector();
    }
    if features >= ServerFeatures::AccessPolicy {
        properties["accessPolicy"] = json!({
            "description": "Who may connect when no authorization says so.",
            "type": "string",
            "default": "deny",
        });
    }
    let pods_only = features < ServerFeatures::Workloads;
    let required: &[&str] = if pods_only {
        &["port", "podSelector"]
    } else {
        &["port"]
    };
    let mut schema = object("A port of some workloads.", properties, required);
    if !pods_only {
        schema["oneOf"] =
            json!([{"required": ["podSelector"]}, {"required": ["externalWorkloadSelector"]}]);
    }
    schema
}

/// A whole object with its spec and, if it has one, its status.
pub(super) fn resource(spec: Value, status: Option<Value>) -> Value {
    let mut properties = json!({
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    });
    if let Some(status) = status {
        properties["status"] = status;
    }
    json!({"type": "object", "required": ["spec"], "properties": properties})
}

fn object(description: &str, properties: Value, required: &[&str]) -> Value {
    let mut schema =
        json!({"description": description, "type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn group() -> Value {
    json!({"type": "string", "maxLength": 253, "pattern": DNS_SUBDOMAIN})
}

fn kind() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": KIND})
}

fn name() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 253})
}

fn namespace() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": DNS_LABEL})
}

fn port() -> Value {
    json!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535})
}

fn local_ref(description: &str) -> Value {
    object(
        description,
        json!({"group": group(), "kind": kind(), "name": name()}),
        &["kind", "name"],
    )
}

fn namespaced_ref(description: &str, required: &[&str]) -> Value {
    object(
        description,
        json!({"group": group(), "kind": kind(), "name": name(), "namespace": namespace()}),
        required,
    )
}

fn networks(description: &str) -> Value {
    json!({
        "description": description,
        "type": "array",
        "items": object(
            "A network, less the parts that do not count.",
            json!({"cidr": {"type": "string"}, "except": {"type": "array", "items": {"type": "string"}}}),
            &["cidr"],
        ),
    })
}

fn label_selector() -> Value {
    object(
        "Selects by label; an empty selector selects everything.",
        json!({
            "matchLabels": {
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "matchExpressions": {
                "type": "array",
                "items": object(
                    "A requirement on one label.",
                    json!({
                        "key": {"type": "string"},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": {"type": "array", "items": {"type": "string"}},
                    }),
                    &["key", "operator"],
                ),
            },
        }),
        &[],
    )
}

fn parent_ref() -> Value {
    let (mut group, mut kind) = (group(), kind());
    group["default"] = json!("policy.linkerd.io");
    kind["default"] = json!("Gateway");
    object(
        "A Server, a Service or an EgressNetwork.",
        json!({
            "group": group,
            "kind": kind,
            "name": name(),
            "namespace": namespace(),
            "port": port(),
            "sectionName": {"type": "string", "minLength": 1, "maxLength": 253},
        }),
        &["name"],
    )
}

fn http_match() -> Value {
    let named = |what: &str| {
        json!({
            "type": "array",
            "maxItems": 16,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": object(
                what,
                json!({
                    "type": {"type": "string", "enum": ["Exact", "RegularExpression"], "default": "Exact"},
                    "name": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": HEADER},
                    "value": {"type": "string", "minLength": 1, "maxLength": 4096},
                }),
                &["name", "value"],
            ),
        })
    };
    object(
        "Conditions that must all hold.",
        json!({
            "path": {
                "description": "Condition on the path.",
                "type": "object",
                "default": {"type": "PathPrefix", "value": "/"},
                "properties": {
                    "type": {"type": "string", "enum": ["Exact", "PathPrefix", "RegularExpression"], "default": "PathPrefix"},
                    "value": {"type": "string", "maxLength": 1024, "default": "/"},
                },
            },
            "headers": named("Condition on a header."),
            "queryParams": named("Condition on a query parameter."),
            "method": {"description": "The request method.", "type": "string", "enum": METHODS},
        }),
        &[],
    )
}

fn backend_refs(features: RouteFeatures) -> Value {
    if features == RouteFeatures::LooseBackends {
        return json!({
            "description": "Where requests go.",
            "type": "array",
            "maxItems": 16,
            "items": object(
                "A Service.",
                json!({
                    "name": {"type": "string"},
                    "port": {"type": "integer", "format": "int32"},
                    "namespace": {"type": "string", "default": "default"},
                }),
                &[],
            ),
        });
    }
    let (mut group, mut kind) = (group(), kind());
    group["default"] = json!("");
    kind["default"] = json!("Service");
    let all = [
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestRedirect",
    ];
    json!({
        "description": "Where requests go, by weight; to the parent when left out.",
        "type": "array",
        "maxItems": 16,
        "items": object(
            "A Service or an EgressNetwork.",
            json!({
                "group": group,
                "kind": kind,
                "name": name(),
                "namespace": namespace(),
                "port": port(),
                "weight": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1_000_000, "default": 1},
                "filters": filters(&all),
            }),
            &["name"],
        ),
    })
}

fn filters(types: &[&str]) -> Value {
    let mut properties = json!({
        "type": {"description": "Which filter this is.", "type": "string", "enum": types},
        "requestHeaderModifier": header_modifier("Changes request headers."),
        "requestRedirect": redirect(),
    });
    if types.contains(&"ResponseHeaderModifier") {
        properties["responseHeaderModifier"] = header_modifier("Changes response headers.");
    }
    json!({
        "description": "What happens to the request, in order.",
        "type": "array",
        "maxItems": 16,
        "items": object("A filter.", properties, &["type"]),
    })
}

fn header_modifier(description: &str) -> Value {
    let headers = json!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": object(
            "A header.",
            json!({
                "name": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": HEADER},
                "value": {"type": "string", "minLength": 1, "maxLength": 4096},
            }),
            &["name", "value"],
        ),
    });
    object(
        description,
        json!({
            "add": headers,
            "set": headers,
            "remove": {"type": "array", "maxItems": 16, "items": {"type": "string"}},
        }),
        &[],
    )
}

fn redirect() -> Value {
    object(
        "Answers with a redirect.",
        json!({
            "scheme": {"type": "string", "enum": ["http", "https"]},
            "hostname": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": DNS_SUBDOMAIN},
            "path": object(
                "How the path changes.",
                json!({
                    "type": {"type": "string", "enum": ["ReplaceFullPath", "ReplacePrefixMatch"]},
                    "replaceFullPath": {"type": "string", "maxLength": 1024},
                    "replacePrefixMatch": {"type": "string", "maxLength": 1024},
                }),
                &["type"],
            ),
            "port": port(),
            "statusCode": {"type": "integer", "enum": [301, 302, 303, 307, 308], "default": 302},
        }),
        &[],
    )
}

fn conditions(bounded: bool) -> Value {
    let mut schema = json!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": object(
            "One aspect of the state.",
            json!({
                "type": {
                    "type": "string", "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                "message": {"type": "string", "maxLength": 32768},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            }),
            &["type", "status", "reason", "message", "lastTransitionTime"],
        ),
    });
    if bounded {
        schema["minItems"] = json!(1);
        schema["maxItems"] = json!(8);
    }
    schema
}
