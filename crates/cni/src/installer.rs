//! The files of a node: the plugin's program, its kubeconfig and our entry in every network
//! configuration. [`Installer::keep`] makes them what they should be and may be called again and
//! again; [`Installer::undo`] takes everything away.

use crate::chain::{chained, kubeconfig, unchained};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Stands in the template for the place of the kubeconfig on the node.
const PLACEHOLDER: &str = "__KUBECONFIG_FILEPATH__";

/// Where things are, as this container sees them, and what goes into them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the host is mounted.
    pub host: PathBuf,
    /// Directories of the host, by their names there.
    pub bin_dir: PathBuf,
    pub net_dir: PathBuf,
    /// Programs to be installed.
    pub programs: PathBuf,
    pub entry: String,
    pub kubeconfig: String,
    pub api_host: String,
    pub api_port: String,
    pub token: PathBuf,
    pub ca: PathBuf,
}

#[derive(Debug)]
pub struct Installer {
    settings: Settings,
    entry: Value,
    /// What was written last, by file.
    written: BTreeMap<PathBuf, String>,
}

impl Settings {
    /// Reads the environment that the chart sets. An empty variable is none.
    pub fn read(env: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let or = |name: &str, default: &str| env(name).unwrap_or_else(|| default.to_owned());
        let account = or(
            "SERVICE_ACCOUNT_PATH",
            "/var/run/secrets/kubernetes.io/serviceaccount",
        );
        let entry = match (env("CNI_NETWORK_CONFIG"), env("CNI_NETWORK_CONFIG_FILE")) {
            (Some(entry), _) => entry,
            (None, Some(file)) => {
                fs::read_to_string(&file).with_context(|| format!("reading {file}"))?
            }
            (None, None) => bail!("cannot build configuration from any known source"),
        };
        Ok(Self {
            host: or("CONTAINER_MOUNT_PREFIX", "/host").into(),
            bin_dir: or("DEST_CNI_BIN_DIR", "/opt/cni/bin").into(),
            net_dir: or("DEST_CNI_NET_DIR", "/etc/cni/net.d").into(),
            programs: or("CONTAINER_CNI_BIN_DIR", "/opt/cni/bin").into(),
            entry,
            kubeconfig: or("KUBECONFIG_FILE_NAME", "ZZZ-linkerd-cni-kubeconfig"),
            api_host: or("KUBERNETES_SERVICE_HOST", ""),
            api_port: or("KUBERNETES_SERVICE_PORT", ""),
            token: format!("{account}/token").into(),
            ca: or("KUBE_CA_FILE", &format!("{account}/ca.crt")).into(),
        })
    }

    /// A directory of the host, as it is reached from here.
    fn here(&self, dir: &Path) -> PathBuf {
        self.host.join(dir.strip_prefix("/").unwrap_or(dir))
    }
}

impl Installer {
    pub fn new(settings: Settings) -> Result<Self> {
        let place = settings.net_dir.join(&settings.kubeconfig);
        let entry = settings
            .entry
            .replace(PLACEHOLDER, &place.to_string_lossy());
        let entry =
            serde_json::from_str(&entry).context("the plugin's configuration is not JSON")?;
        Ok(Self {
            settings,
            entry,
            written: BTreeMap::new(),
        })
    }

    /// Copies the programs; once is enough.
    pub fn programs(&self) -> Result<()> {
        let to = self.settings.here(&self.settings.bin_dir);
        for from in files(&self.settings.programs)? {
            let content = fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
            let mode = fs::metadata(&from)?.permissions().mode();
            replace(&to.join(name(&from)), &content, mode, None)?;
            tracing::info!(program = %name(&from), directory = %to.display(), "Installed");
        }
        Ok(())
    }

    /// Writes what changed: the kubeconfig when the token did, configurations that lack our entry.
    /// A configuration that cannot be read is left alone and told of once.
    pub fn keep(&mut self) -> Result<()> {
        self.keep_kubeconfig()?;
        for (file, text) in self.configurations()? {
            if self.written.get(&file) == Some(&text) {
                continue;
            }
            if let Err(error) = self.chain(&file, &text) {
                tracing::warn!(file = %file.display(), error = format!("{error:#}"), "Left alone");
                self.written.insert(file, text);
            }
        }
        Ok(())
    }

    /// Whether pods that are made now are redirected: every configuration there is ends with our
    /// entry, and the plugin finds its kubeconfig. Configurations that are left alone do not count.
    pub fn is_in_place(&self) -> Result<bool> {
        let s = &self.settings;
        let mut ours = 0;
        for (file, text) in self.configurations()? {
            let Ok(chained) = chained(&name(&file), &text, &self.entry) else {
                continue;
            };
            if chained.text != text {
                return Ok(false);
            }
            ours += 1;
        }
        Ok(ours > 0 && s.here(&s.net_dir).join(&s.kubeconfig).exists())
    }

    /// Configurations of the node's network, with their texts.
    fn configurations(&self) -> Result<Vec<(PathBuf, String)>> {
        let dir = self.settings.here(&self.settings.net_dir);
        let is_one = |file: &PathBuf| {
            let kind = file.extension().and_then(|kind| kind.to_str());
            matches!(kind, Some("conf" | "conflist"))
        };
        // One that cannot be read is gone meanwhile.
        let read = |file: PathBuf| {
            let text = fs::read_to_string(&file).ok()?;
            Some((file, text))
        };
        let found = files(&dir)?.into_iter();
        Ok(found.filter(is_one).filter_map(read).collect())
    }

    fn chain(&mut self, file: &Path, text: &str) -> Result<()> {
        let chained = chained(&name(file), text, &self.entry)?;
        let target = file.with_file_name(&chained.file);
        let about = fs::metadata(file)?;
        if chained.text != text || target != file {
            replace(
                &target,
                chained.text.as_bytes(),
                about.mode(),
                Some((about.uid(), about.gid())),
            )?;
            tracing::info!(file = %target.display(), "Chained");
        }
        if target != file {
            fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        }
        self.written.insert(target, chained.text);
        Ok(())
    }

    fn keep_kubeconfig(&mut self) -> Result<()> {
        let s = &self.settings;
        let read = |file: &Path| {
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
        };
        let text = kubeconfig(&s.api_host, &s.api_port, &read(&s.ca)?, &read(&s.token)?)?;
        let file = s.here(&s.net_dir).join(&s.kubeconfig);
        if self.written.get(&file) == Some(&text) && file.exists() {
            return Ok(());
        }
        // It holds a token: for root only.
        replace(&file, text.as_bytes(), 0o600, None)?;
        tracing::info!(file = %file.display(), "Wrote the kubeconfig");
        self.written.insert(file, text);
        Ok(())
    }

    /// Takes our entry out of every configuration first, so that nothing asks for a program that is
    /// no longer there; then the rest goes.
    pub fn undo(&self) -> Result<()> {
        let dir = self.settings.here(&self.settings.net_dir);
        for file in files(&dir)? {
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            if let Some(without) = unchained(&text) {
                let about = fs::metadata(&file)?;
                replace(
                    &file,
                    without.as_bytes(),
                    about.mode(),
                    Some((about.uid(), about.gid())),
                )?;
                tracing::info!(file = %file.display(), "Unchained");
            }
        }
        gone(&dir.join(&self.settings.kubeconfig))?;
        let bin = self.settings.here(&self.settings.bin_dir);
        for program in files(&self.settings.programs)? {
            gone(&bin.join(name(&program)))?;
        }
        Ok(())
    }
}

fn name(file: &Path) -> String {
    file.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Regular files of a directory, sorted.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    Ok(files)
}

/// Writes beside, flushes, renames: a reader finds the old file or the new one.
fn replace(file: &Path, content: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<()> {
    let beside = file.with_file_name(format!("{}.install", name(file)));
    let write = || -> std::io::Result<()> {
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode & 0o777)
            .open(&beside)?;
        out.write_all(content)?;
        out.set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(&out, Some(uid), Some(gid))?;
        }
        out.sync_all()?;
        fs::rename(&beside, file)
    };
    write().with_context(|| format!("writing {}", file.display()))
}

fn gone(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Node {
        dir: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            for part in ["host/opt/cni/bin", "host/etc/cni/net.d", "bin", "account"] {
                fs::create_dir_all(dir.path().join(part)).expect("ours");
            }
            let node = Self { dir };
            node.put("bin/linkerd-cni", "program");
            node.put("account/token", "one");
            node.put("account/ca.crt", "CA");
            node.put(
                "host/etc/cni/net.d/10-net.conflist",
                r#"{"name":"n","plugins":[{"type":"ptp"}]}"#,
            );
            node
        }

        fn put(&self, file: &str, text: &str) {
            fs::write(self.dir.path().join(file), text).expect("ours");
        }

        fn text(&self, file: &str) -> String {
            fs::read_to_string(self.dir.path().join(file)).expect(file)
        }

        fn has(&self, file: &str) -> bool {
            self.dir.path().join(file).exists()
        }

        fn installer(&self) -> Installer {
            let entry = json!({"type": "linkerd-cni", "kubernetes": {"kubeconfig": PLACEHOLDER}});
            Installer::new(Settings {
                host: self.dir.path().join("host"),
                bin_dir: "/opt/cni/bin".into(),
                net_dir: "/etc/cni/net.d".into(),
                programs: self.dir.path().join("bin"),
                entry: entry.to_string(),
                kubeconfig: "ZZZ-linkerd-cni-kubeconfig".to_owned(),
                api_host: "10.96.0.1".to_owned(),
                api_port: "443".to_owned(),
                token: self.dir.path().join("account/token"),
                ca: self.dir.path().join("account/ca.crt"),
            })
            .expect("settings")
        }
    }

    const LIST: &str = "host/etc/cni/net.d/10-net.conflist";
    const KUBECONFIG: &str = "host/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig";

    #[test]
    fn a_node_is_kept_and_given_back() {
        let node = Node::new();
        let mut installer = node.installer();
        installer.programs().expect("copied");
        assert!(!installer.is_in_place().expect("looked"));
        installer.keep().expect("kept");
        assert_eq!(node.text("host/opt/cni/bin/linkerd-cni"), "program");
        assert!(
            node.text(LIST)
                .contains("/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig")
        );
        let mode = fs::metadata(node.dir.path().join(KUBECONFIG))
            .expect("there")
            .mode();
        assert_eq!(mode & 0o777, 0o600, "a token is for root only");
        // Another program writes its configuration anew: we are back in it at the next turn.
        node.put(
            LIST,
            r#"{"name":"n","plugins":[{"type":"ptp"},{"type":"new"}]}"#,
        );
        node.put("account/token", "two");
        assert!(!installer.is_in_place().expect("looked"));
        installer.keep().expect("kept");
        assert!(installer.is_in_place().expect("looked"));
        assert!(node.text(LIST).contains("linkerd-cni"));
        assert!(node.text(KUBECONFIG).contains("token: two"));
        installer.undo().expect("undone");
        assert!(!node.text(LIST).contains("linkerd-cni") && node.text(LIST).contains("new"));
        assert!(!node.has(KUBECONFIG) && !node.has("host/opt/cni/bin/linkerd-cni"));
    }

    #[test]
    fn a_broken_configuration_stops_nobody() {
        let node = Node::new();
        node.put("host/etc/cni/net.d/05-broken.conflist", "{");
        node.put("host/etc/cni/net.d/20-single.conf", r#"{"type":"bridge"}"#);
        let mut installer = node.installer();
        installer.keep().expect("kept");
        assert_eq!(node.text("host/etc/cni/net.d/05-broken.conflist"), "{");
        assert!(node.text(LIST).contains("linkerd-cni"));
        assert!(node.has("host/etc/cni/net.d/20-single.conflist"));
        assert!(!node.has("host/etc/cni/net.d/20-single.conf"));
        assert!(
            installer.is_in_place().expect("looked"),
            "as far as it can be"
        );
    }

    #[test]
    fn a_node_without_a_network_is_not_in_place() {
        let node = Node::new();
        fs::remove_file(node.dir.path().join(LIST)).expect("ours");
        let mut installer = node.installer();
        installer.keep().expect("kept");
        assert!(!installer.is_in_place().expect("looked"));
    }

    #[test]
    fn mode_and_owner_of_a_configuration_stay() {
        let node = Node::new();
        let file = node.dir.path().join(LIST);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("ours");
        let before = fs::metadata(&file).expect("there");
        let about = |when: &str| {
            let now = fs::metadata(&file).expect(when);
            assert_eq!(now.mode() & 0o777, 0o640, "{when}");
            assert_eq!(
                (now.uid(), now.gid()),
                (before.uid(), before.gid()),
                "{when}"
            );
        };
        let mut installer = node.installer();
        installer.keep().expect("kept");
        assert!(node.text(LIST).contains("linkerd-cni"));
        about("chained");
        installer.undo().expect("undone");
        assert!(!node.text(LIST).contains("linkerd-cni"));
        about("unchained");
    }

    #[test]
    fn the_environment_must_hold_a_configuration() {
        let error = Settings::read(|_| None)
            .expect_err("nothing is set")
            .to_string();
        assert_eq!(error, "cannot build configuration from any known source");
        let some = Settings::read(|name| (name == "CNI_NETWORK_CONFIG").then(|| "{}".to_owned()));
        assert_eq!(some.expect("settings").host, Path::new("/host"));
    }

    #[test]
    fn the_first_source_that_is_not_empty_wins() {
        let node = Node::new();
        node.put("entry", "from the file");
        let file = node.dir.path().join("entry").display().to_string();
        let missing = format!("{file}-missing");
        let (file, missing) = (file.as_str(), missing.as_str());
        let nothing = "cannot build configuration from any known source";
        let unread = format!("reading {missing}");
        for (name, given, from_file, expected) in [
            ("both", "given", file, Ok("given")),
            (
                "a file missing that nobody asks",
                "given",
                missing,
                Ok("given"),
            ),
            ("the file", "", file, Ok("from the file")),
            ("a missing file", "", missing, Err(unread.as_str())),
            ("both empty", "", "", Err(nothing)),
        ] {
            let read = Settings::read(|key| match key {
                "CNI_NETWORK_CONFIG" => Some(given.to_owned()),
                "CNI_NETWORK_CONFIG_FILE" => Some(from_file.to_owned()),
                _ => Some(String::new()),
            });
            match (read, expected) {
                (Ok(settings), Ok(entry)) => {
                    assert_eq!(settings.entry, entry, "{name}");
                    // An empty variable does not beat the default.
                    assert_eq!(settings.host, Path::new("/host"), "{name}");
                    let ca = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
                    assert_eq!(settings.ca, Path::new(ca), "{name}");
                }
                (Err(error), Err(said)) => assert_eq!(error.to_string(), said, "{name}"),
                (read, _) => panic!("{name}: {read:?}"),
            }
        }
    }
}
