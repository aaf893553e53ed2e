//! From an address to what stands behind it: a Service by its cluster IP, a pod by its own IP or
//! a port of its host, an ExternalWorkload, or something unknown. And from the hostname of a
//! Service's instance to its pod.

use std::net::{IpAddr, SocketAddr};

use super::Index;
use crate::{
    endpoint::{Endpoint, Labels, Target},
    intern::{Name, ObjectId},
    view::{InstanceKey, Profile},
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
    pub(crate) fn address_profile(&mut self, ip: IpAddr, port: u16) -> Resolved {
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

    /// Outside of a set, an endpoint says itself which namespace it is in.
    fn in_namespace(&mut self, id: &ObjectId, endpoint: Endpoint) -> Endpoint {
        let namespace = (self.names.get("namespace"), id.namespace.clone());
        let labels: Labels = endpoint.labels.iter().cloned().chain([namespace]).collect();
        Endpoint { labels, ..endpoint }
    }

    /// The pod that a Service's endpoint with that hostname refers to. Unlike one that is looked for
    /// by its address it may share its host's network or be on its way out; one that is done is
    /// only an address. None if there is no such instance, or nothing is known of its pod.
    pub(crate) fn instance_profile(
        &mut self,
        service: &ObjectId,
        key: &InstanceKey,
    ) -> Option<Resolved> {
        self.services.get(service)?;
        let id = self.instance(service, &key.hostname)?;
        let pod = self.pods.get(&id)?;
        let addr = SocketAddr::new(pod.first_ip()?, key.port);
        if pod.is_finished() {
            return Some(self.nobody_at(addr));
        }
        let (endpoint, opaque) = self.pod_endpoint(&id, pod, addr);
        let endpoint = self.in_namespace(&id, endpoint);
        Some(Resolved::Profile(Box::new(Profile::endpoint(
            endpoint, opaque,
        ))))
    }

    fn instance(&self, service: &ObjectId, hostname: &Name) -> Option<ObjectId> {
        let slices = self.slices.of(service);
        let groups = slices.flat_map(|slice| slice.groups.iter());
        let mut members = groups.flat_map(|group| group.members.iter());
        match &members
            .find(|member| member.hostname.as_ref() == Some(hostname))?
            .target
        {
            Target::Pod(id) => Some(id.clone()),
            Target::ExternalWorkload(_) | Target::Address => None,
        }
    }

    /// What is left of something at an address when that has gone.
    pub(crate) fn bare_again(&self, last: &Resolved) -> Resolved {
        match last {
            Resolved::Profile(profile) => match &**profile {
                Profile::Endpoint { endpoint, .. } => self.nobody_at(endpoint.addr),
                Profile::Service(_) | Profile::Undefined => last.clone(),
            },
            Resolved::Service(_) | Resolved::Conflict(_) => last.clone(),
        }
    }

    /// An address of which nothing is known.
    fn nobody_at(&self, addr: SocketAddr) -> Resolved {
        let opaque = self.config.default_opaque_ports.contains(addr.port());
        let endpoint = Endpoint::bare(addr);
        Resolved::Profile(Box::new(Profile::endpoint(endpoint, opaque)))
    }
}
