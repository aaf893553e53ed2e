//! Issues certificates to proxies that prove who they are with a service-account token.
