//! From an address to what stands behind it: a Service by its cluster IP, a pod by its own IP or
//! a port of its host, an ExternalWorkload, or something unknown.

use std::net::{IpAddr, SocketAddr};

use super::Index;
use crate::{
    endpoint::{Endpoint, Labels, Target},
    intern::ObjectId,
    view::{AddressKey, Profile},
};

/// What an address is.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolved {
    Service(ObjectId),
    Profile(Box<Profile>),
    /// More than one thing claims the address.
    Conflict(String),
}

impl Index {
    /// What an address and port are, right now.
    pub(crate) fn address_profile(&mut self, ip: IpAddr, key: &AddressKey) -> Resolved {
        let port = key.port;
        if let Some(id) = &key.pod
            && let Some((endpoint, opaque)) = self.named_pod(id, SocketAddr::new(ip, port))
        {
            return Resolved::Profile(Box::new(Profile::endpoint(endpoint, opaque)));
        }
        match self.services.with_ip(ip) {
            [] => {}
            [service] => return Resolved::Service(service.clone()),
            several => {
                let count = several.len();
                return Resolved::Conflict(format!(
                    "found {count} services with conflicting cluster IP {ip}"
                ));
            }
        }
        match self.endpoint_at(ip, port) {
            Ok((endpoint, opaque)) => {
                Resolved::Profile(Box::new(Profile::endpoint(endpoint, opaque)))
            }
            Err(conflict) => Resolved::Conflict(conflict),
        }
    }

    fn endpoint_at(&mut self, ip: IpAddr, port: u16) -> Result<(Endpoint, bool), String> {
        let addr = SocketAddr::new(ip, port);
        let mut pods = self.pods.with_ip(ip);
        if pods.len() > 1 {
            return Err(format!(
                "found {} pods with a conflicting pod network IP {ip}",
                pods.len()
            ));
        }
        if pods.is_empty() {
            pods = self.pods.with_host_port(ip, port);
            if pods.len() > 1 {
                let count = pods.len();
                return Err(format!(
                    "found {count} pods with a conflicting host network endpoint {addr}"
                ));
            }
        }
        if let [id] = pods
            && let Some(pod) = self.pods.get(id)
        {
            let id = id.clone();
            let (endpoint, opaque) = self.pod_endpoint(&id, pod, addr);
            return Ok((self.in_namespace(&id, endpoint), opaque));
        }
        let workloads: Vec<ObjectId> = self.externals.with_address(ip, port).cloned().collect();
        match workloads.as_slice() {
            [] => {
                let opaque = self.config.default_opaque_ports.contains(port);
                Ok((Endpoint::bare(addr), opaque))
            }
            [id] => {
                let Some(workload) = self.externals.get(id) else {
                    return Ok((Endpoint::bare(addr), false));
                };
                let (endpoint, opaque) = self.external_endpoint(id, workload, addr);
                Ok((self.in_namespace(id, endpoint), opaque))
            }
            several => Err(format!(
                "found {} externalworkloads with a conflicting ip {ip}",
                several.len()
            )),
        }
    }

    /// A pod somebody asked for by name: unlike those looked for by address it may share its host's
    /// network or be on its way out, but not be done.
    fn named_pod(&mut self, id: &ObjectId, addr: SocketAddr) -> Option<(Endpoint, bool)> {
        let pod = self.pods.get(id).filter(|pod| pod.runs_at(addr.ip()))?;
        let (endpoint, opaque) = self.pod_endpoint(id, pod, addr);
        Some((self.in_namespace(id, endpoint), opaque))
    }

    /// Outside of a set, an endpoint says itself which namespace it is in.
    fn in_namespace(&mut self, id: &ObjectId, endpoint: Endpoint) -> Endpoint {
        let namespace = (self.names.get("namespace"), id.namespace.clone());
        let labels: Labels = endpoint.labels.iter().cloned().chain([namespace]).collect();
        Endpoint { labels, ..endpoint }
    }

    /// The pod that a Service's endpoint with that hostname refers to, and its address.
    pub(crate) fn instance(
        &self,
        service: &ObjectId,
        hostname: &str,
    ) -> Option<(ObjectId, IpAddr)> {
        let groups = self
            .slices
            .of(service)
            .flat_map(|slice| slice.groups.iter());
        let mut members = groups.flat_map(|group| group.members.iter());
        let member = members.find(|member| member.hostname.as_deref() == Some(hostname))?;
        match &member.target {
            Target::Pod(id) => Some((id.clone(), self.pods.get(id)?.first_ip()?)),
            _ => None,
        }
    }
}
