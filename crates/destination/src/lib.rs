//! Tells proxies which endpoints stand behind a name or an address.
