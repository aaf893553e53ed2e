//! Redirects a pod's traffic to its proxy, and proves that it did.
