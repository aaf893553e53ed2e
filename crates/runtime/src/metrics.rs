//! Metrics: one registry a process, what every process counts about itself, and the text a
//! scrape gets.

use std::fmt;

use prometheus_client::encoding::text;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
pub use prometheus_client::registry::Registry;

use crate::version;

pub mod grpc;
mod process;

/// Renders everything a scrape gets: the preludes in order, then the registry.
pub struct Exposition {
    registry: Registry,
    preludes: Vec<Prelude>,
}

type Prelude = Box<dyn Fn(&mut String) -> fmt::Result + Send + Sync>;

/// Counts what the kernel knows about this process, as `process_*`.
pub fn register_process(registry: &mut Registry) {
    process::register(registry.sub_registry_with_prefix("process"));
}

/// Registers `<program>_build_info`, a gauge of 1 whose labels name the build.
pub fn register_build_info(registry: &mut Registry, program: &str) {
    let labels = vec![
        ("date", version::BUILD_DATE),
        ("git_sha", version::GIT_SHA),
        ("profile", version::PROFILE),
        ("vendor", version::VENDOR),
        ("version", version::VERSION),
    ];
    let info = Family::<Vec<(&str, &str)>, ConstGauge<i64>, _>::new_with_constructor(|| {
        ConstGauge::new(1)
    });
    drop(info.get_or_create(&labels));
    registry.register(format!("{program}_build_info"), "Which build this is", info);
}

// === impl Exposition ===

impl Exposition {
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            preludes: Vec::new(),
        }
    }

    /// Adds text that comes before the registry's. It must be whole families, each line ended.
    pub fn prelude(
        mut self,
        write: impl Fn(&mut String) -> fmt::Result + Send + Sync + 'static,
    ) -> Self {
        self.preludes.push(Box::new(write));
        self
    }

    /// The text of one scrape, ended by `# EOF`.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(16 * 1024);
        for prelude in &self.preludes {
            prelude(&mut text)?;
        }
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition")
            .field("registry", &self.registry)
            .field("preludes", &self.preludes.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_info_names_the_build() {
        let mut registry = Registry::default();
        register_build_info(&mut registry, "proxy");
        let text = Exposition::new(registry).encode().expect("encodes");
        let line = format!(
            "proxy_build_info{{date=\"{}\",git_sha=\"{}\",profile=\"{}\",vendor=\"{}\",version=\"{}\"}} 1\n",
            version::BUILD_DATE,
            version::GIT_SHA,
            version::PROFILE,
            version::VENDOR,
            version::VERSION,
        );
        assert!(text.contains("# TYPE proxy_build_info gauge\n"), "{text}");
        assert!(text.contains(&line), "{text}");
    }

    #[test]
    fn preludes_come_first_and_the_end_is_marked() {
        let exposition = Exposition::new(Registry::default()).prelude(|text| {
            text.push_str("request_total 1\n");
            Ok(())
        });
        assert_eq!(
            exposition.encode().expect("encodes"),
            "request_total 1\n# EOF\n"
        );
    }
}
