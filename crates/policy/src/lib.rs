//! Tells proxies who may connect and where traffic goes.
