//! Kubernetes types, labels, watches and leases of the control plane.
