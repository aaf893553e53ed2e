//! Our types as messages of the proxy API. The only file that knows both.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use linkerd_api::proto::{
    destination::{self as pb, http2_client_params, protocol_hint, tls_identity},
    http_types, meta,
};

use super::frame::frame;
use crate::{
    config::{Config, Http2Params},
    endpoint::{Endpoint, Hint, Identity, Labels, Target},
    intern::Name,
    profile::{DEFAULT_BUDGET, RequestMatch, ResponseMatch, RetryBudget, Route},
    view::{Change, Encode, Messages, Profile, ServiceProfile, Snapshot},
};

/// Weight of an endpoint like any other.
const WEIGHT: u32 = 10_000;

/// Encodes with the settings of one cluster's configuration.
#[derive(Clone, Debug)]
pub struct Wire {
    zone_weights: bool,
    http2: Option<pb::Http2ClientParams>,
}

impl Wire {
    pub fn new(config: &Config) -> Self {
        Self {
            zone_weights: config.zone_weights,
            http2: config.http2.as_ref().map(http2_params),
        }
    }

    fn add(&self, endpoints: &[Arc<Endpoint>], labels: &Labels, zone: Option<&Name>) -> pb::Update {
        let addrs = endpoints
            .iter()
            .map(|endpoint| self.in_set(endpoint, zone))
            .collect();
        let set = pb::WeightedAddrSet {
            addrs,
            metric_labels: label_map(labels),
        };
        pb::Update {
            update: Some(pb::update::Update::Add(set)),
        }
    }

    /// An endpoint of a set, seen from a client's zone.
    fn in_set(&self, endpoint: &Endpoint, zone: Option<&Name>) -> pb::WeightedAddr {
        let mut addr = self.alone(endpoint);
        let locality = match (zone, &endpoint.zone) {
            (Some(here), Some(there)) if here == there => "local",
            (Some(_), Some(_)) => "remote",
            _ => "unknown",
        };
        if self.zone_weights && locality == "local" {
            addr.weight *= 10;
        }
        if endpoint.target != Target::Address {
            let zone = endpoint.zone.as_deref().unwrap_or_default();
            addr.metric_labels
                .insert("zone".to_owned(), zone.to_owned());
        }
        addr.metric_labels
            .insert("zone_locality".to_owned(), locality.to_owned());
        addr
    }

    fn alone(&self, endpoint: &Endpoint) -> pb::WeightedAddr {
        pb::WeightedAddr {
            addr: Some(endpoint.addr.into()),
            weight: WEIGHT,
            metric_labels: label_map(&endpoint.labels),
            tls_identity: endpoint.identity.as_ref().map(identity),
            protocol_hint: hint(endpoint),
            authority_override: endpoint.authority.as_ref().map(|authority| {
                pb::AuthorityOverride {
                    authority_override: authority.to_string(),
                }
            }),
            http2: self.http2.filter(|_| endpoint.http2),
            resource_ref: None,
        }
    }

    /// A profile as one message.
    pub fn profile(&self, profile: &Profile) -> Bytes {
        let message = match profile {
            Profile::Undefined => pb::DestinationProfile::default(),
            Profile::Service(profile) => service_profile(profile),
            Profile::Endpoint { endpoint, opaque } => pb::DestinationProfile {
                opaque_protocol: *opaque,
                retry_budget: Some(budget(&DEFAULT_BUDGET)),
                endpoint: Some(self.alone(endpoint)),
                ..pb::DestinationProfile::default()
            },
        };
        frame(&message)
    }
}

impl Encode for Wire {
    fn first(&self, snapshot: &Snapshot) -> Messages {
        let update = if snapshot.endpoints.is_empty() {
            no_endpoints(snapshot.exists)
        } else {
            self.add(
                &snapshot.endpoints,
                &snapshot.labels,
                snapshot.zone.as_ref(),
            )
        };
        Messages::from_iter([frame(&update)])
    }

    /// Additions first: a client never runs out of endpoints in between.
    fn change(&self, snapshot: &Snapshot, change: &Change) -> Messages {
        let mut messages = Messages::new();
        let mut push = |update: pb::Update| messages.push(frame(&update));
        if !change.added.is_empty() {
            push(self.add(&change.added, &snapshot.labels, snapshot.zone.as_ref()));
        }
        if !change.removed.is_empty() {
            let addrs = change.removed.iter().map(|addr| (*addr).into()).collect();
            let set = pb::AddrSet { addrs };
            push(pb::Update {
                update: Some(pb::update::Update::Remove(set)),
            });
        }
        if let Some(exists) = change.emptied {
            push(no_endpoints(exists));
        }
        messages
    }
}

fn no_endpoints(exists: bool) -> pb::Update {
    let none = pb::NoEndpoints { exists };
    pb::Update {
        update: Some(pb::update::Update::NoEndpoints(none)),
    }
}

fn label_map(labels: &Labels) -> HashMap<String, String> {
    labels
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

fn identity(identity: &Identity) -> pb::TlsIdentity {
    let dns = |name: &Name| tls_identity::DnsLikeIdentity {
        name: name.to_string(),
    };
    match identity {
        Identity::Pod(name) => pb::TlsIdentity {
            strategy: Some(tls_identity::Strategy::DnsLikeIdentity(dns(name))),
            server_name: Some(dns(name)),
        },
        Identity::Gateway(name) => pb::TlsIdentity {
            strategy: Some(tls_identity::Strategy::DnsLikeIdentity(dns(name))),
            server_name: None,
        },
        Identity::External { uri, server_name } => {
            let uri = tls_identity::UriLikeIdentity {
                uri: uri.to_string(),
            };
            pb::TlsIdentity {
                strategy: Some(tls_identity::Strategy::UriLikeIdentity(uri)),
                server_name: Some(dns(server_name)),
            }
        }
    }
}

fn hint(endpoint: &Endpoint) -> Option<pb::ProtocolHint> {
    let protocol = match endpoint.hint {
        Hint::None => return None,
        Hint::Meshed => None,
        Hint::H2 => Some(protocol_hint::Protocol::H2(protocol_hint::H2 {})),
        Hint::Opaque => Some(protocol_hint::Protocol::Opaque(protocol_hint::Opaque {})),
    };
    let opaque_transport = endpoint
        .opaque_transport
        .map(|port| protocol_hint::OpaqueTransport {
            inbound_port: port.into(),
        });
    Some(pb::ProtocolHint {
        protocol,
        opaque_transport,
    })
}

fn http2_params(params: &Http2Params) -> pb::Http2ClientParams {
    let internals = http2_client_params::Internals {
        max_concurrent_reset_streams: params.max_concurrent_reset_streams.unwrap_or_default(),
        max_frame_size: params.max_frame_size.unwrap_or_default(),
        max_send_buf_size: params.max_send_buf_size.unwrap_or_default(),
    };
    pb::Http2ClientParams {
        flow_control: params
            .flow_control
            .as_ref()
            .map(|it| http2_client_params::FlowControl {
                initial_connection_window_size: it.initial_connection_window_size,
                initial_stream_window_size: it.initial_stream_window_size,
                adaptive_flow_control: it.adaptive,
            }),
        keep_alive: params
            .keep_alive
            .as_ref()
            .map(|it| http2_client_params::KeepAlive {
                interval: it.interval.and_then(|it| it.try_into().ok()),
                timeout: it.timeout.and_then(|it| it.try_into().ok()),
                while_idle: it.while_idle,
            }),
        internals: (internals != http2_client_params::Internals::default()).then_some(internals),
    }
}

fn service_profile(profile: &ServiceProfile) -> pb::DestinationProfile {
    let ServiceProfile {
        name,
        service,
        port,
        opaque,
        spec,
    } = profile;
    let resource = |group: &str, kind: &str, id: &crate::ObjectId, port: u16| meta::Metadata {
        kind: Some(meta::metadata::Kind::Resource(meta::Resource {
            group: group.to_owned(),
            kind: kind.to_owned(),
            name: id.name.to_string(),
            namespace: id.namespace.to_string(),
            section: String::new(),
            port: port.into(),
        })),
    };
    let own_budget = spec.as_ref().and_then(|spec| spec.budget.as_ref());
    let overrides = spec.iter().flat_map(|spec| &spec.overrides);
    pb::DestinationProfile {
        fully_qualified_name: name.to_string(),
        opaque_protocol: *opaque,
        routes: spec
            .iter()
            .flat_map(|spec| &spec.routes)
            .map(route)
            .collect(),
        retry_budget: Some(budget(own_budget.unwrap_or(&DEFAULT_BUDGET))),
        dst_overrides: overrides
            .map(|it| pb::WeightedDst {
                authority: with_port(&it.authority, *port),
                weight: it.weight,
                backend_ref: None,
            })
            .collect(),
        endpoint: None,
        parent_ref: Some(resource("core", "Service", service, *port)),
        profile_ref: spec
            .as_ref()
            .map(|spec| resource("linkerd.io", "ServiceProfile", &spec.id, 0)),
    }
}

/// Destinations without a port take the one that was asked for.
fn with_port(authority: &str, port: u16) -> String {
    match authority.rsplit_once(':') {
        Some((host, own)) if !host.is_empty() && own.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:{port}"),
    }
}

fn budget(budget: &RetryBudget) -> pb::RetryBudget {
    pb::RetryBudget {
        retry_ratio: budget.ratio,
        min_retries_per_second: budget.min_per_second,
        ttl: Some(budget.ttl)
            .filter(|ttl| !ttl.is_zero())
            .and_then(|ttl| ttl.try_into().ok()),
    }
}

fn route(route: &Route) -> pb::Route {
    let classes = route
        .responses
        .iter()
        .map(|(condition, is_failure)| pb::ResponseClass {
            condition: Some(response_match(condition)),
            is_failure: *is_failure,
        });
    pb::Route {
        condition: Some(request_match(&route.condition)),
        response_classes: classes.collect(),
        metrics_labels: HashMap::from([("route".to_owned(), route.name.clone())]),
        is_retryable: route.retryable,
        timeout: route.timeout.and_then(|timeout| timeout.try_into().ok()),
    }
}

fn request_match(it: &RequestMatch) -> pb::RequestMatch {
    use pb::request_match::{Match, Seq};
    let seq = |all: &[RequestMatch]| Seq {
        matches: all.iter().map(request_match).collect(),
    };
    let kind = match it {
        RequestMatch::All(all) => Match::All(seq(all)),
        RequestMatch::Any(any) => Match::Any(seq(any)),
        RequestMatch::Not(not) => Match::Not(Box::new(request_match(not))),
        RequestMatch::Path(regex) => Match::Path(pb::PathMatch {
            regex: regex.clone(),
        }),
        RequestMatch::Method(method) => Match::Method(http_method(method)),
    };
    pb::RequestMatch {
        r#match: Some(kind),
    }
}

fn response_match(it: &ResponseMatch) -> pb::ResponseMatch {
    use pb::response_match::{Match, Seq};
    let seq = |all: &[ResponseMatch]| Seq {
        matches: all.iter().map(response_match).collect(),
    };
    let kind = match it {
        ResponseMatch::All(all) => Match::All(seq(all)),
        ResponseMatch::Any(any) => Match::Any(seq(any)),
        ResponseMatch::Not(not) => Match::Not(Box::new(response_match(not))),
        ResponseMatch::Status { min, max } => Match::Status(pb::HttpStatusRange {
            min: *min,
            max: *max,
        }),
    };
    pb::ResponseMatch {
        r#match: Some(kind),
    }
}

fn http_method(method: &str) -> http_types::HttpMethod {
    use http_types::http_method::{Registered, Type};
    let kind = match Registered::from_str_name(&method.to_ascii_uppercase()) {
        Some(registered) => Type::Registered(registered.into()),
        None => Type::Unregistered(method.to_owned()),
    };
    http_types::HttpMethod { r#type: Some(kind) }
}
