//! Which build this is. The values come from the environment of the build.

/// The release, such as `edge-25.10.7`. `LINKERD_VERSION` replaces it at build time.
pub const VERSION: &str = match option_env!("LINKERD_VERSION") {
    Some(version) => version,
    None => concat!("edge-", env!("CARGO_PKG_VERSION")),
};

/// The commit, from `LINKERD_GIT_SHA` at build time; empty when unknown.
pub const GIT_SHA: &str = match option_env!("LINKERD_GIT_SHA") {
    Some(sha) => sha,
    None => "",
};

/// When it was built, from `LINKERD_BUILD_DATE`; empty by default so that builds repeat.
pub const BUILD_DATE: &str = match option_env!("LINKERD_BUILD_DATE") {
    Some(date) => date,
    None => "",
};

/// Who built it, from `LINKERD_VENDOR`; empty when unknown.
pub const VENDOR: &str = match option_env!("LINKERD_VENDOR") {
    Some(vendor) => vendor,
    None => "",
};

/// `debug` when the checks of a debug build are on, else `release`.
pub const PROFILE: &str = if cfg!(debug_assertions) {
    "debug"
} else {
    "release"
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_names_a_channel() {
        assert!(super::VERSION.contains('-'), "{}", super::VERSION);
    }
}
