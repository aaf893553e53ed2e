//! What may stand where the cursor is: a pure look at the command tree and the words typed so far,
//! then, for names of things, a short look at the cluster.

use crate::{
    cluster::{self, Cluster},
    context::Global,
    workload::Kind,
};
use anyhow::Result;
use clap::{Arg, Command};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, ObjectList, PartialObjectMeta},
};
use std::time::Duration;

/// Nobody waits longer for a completion.
const PATIENCE: Duration = Duration::from_secs(5);
/// More names than this help nobody.
const MOST: u32 = 500;

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Words and what they mean.
    Words(Vec<(String, String)>),
    Namespaces,
    Contexts,
    Pods,
    /// Names of this kind, each after a prefix such as `deploy/`.
    Names {
        kind: Kind,
        prefix: String,
    },
}

/// A candidate and what it means; the meaning may be empty.
pub type Candidate = (String, String);

/// Looks at the words after `linkerd`; the last one is being typed and may be empty.
pub fn want(tree: &Command, words: &[String]) -> Want {
    let (current, before) = match words.split_last() {
        Some((current, before)) => (current.as_str(), before),
        None => ("", words),
    };
    let mut command = tree;
    let mut path: Vec<&str> = Vec::new();
    let mut positionals: Vec<&str> = Vec::new();
    let mut pending: Option<&Arg> = None;
    for word in before {
        if pending.take().is_some() {
            continue;
        }
        if word.starts_with('-') && word.len() > 1 {
            pending = flag(tree, command, word)
                .filter(|arg| arg.get_action().takes_values() && !word.contains('='));
        } else if let Some(sub) = command
            .find_subcommand(word)
            .filter(|_| positionals.is_empty())
        {
            path.push(sub.get_name());
            command = sub;
        } else {
            positionals.push(word);
        }
    }
    let path = path.join(" ");
    if let Some(arg) = pending {
        return value(&path, arg.get_long().unwrap_or_default());
    }
    if let Some((name, _)) = current.strip_prefix("--").and_then(|c| c.split_once('=')) {
        return prefixed(value(&path, name), &format!("--{name}="));
    }
    if current.starts_with('-') {
        return Want::Words(flags(tree, command));
    }
    if command.has_subcommands() {
        return Want::Words(subcommands(command));
    }
    positional(tree, &path, &positionals, current)
}

/// The flag of a word, of this command or of any: flags may stand before their command.
fn flag<'a>(tree: &'a Command, command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    let named = |arg: &&Arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => {
            let mut letters = name.chars().skip(1);
            arg.get_short() == letters.next() && letters.next().is_none()
        }
    };
    fn below<'a>(command: &'a Command, named: &impl Fn(&&Arg) -> bool) -> Option<&'a Arg> {
        let own = command.get_arguments().find(named);
        own.or_else(|| command.get_subcommands().find_map(|sub| below(sub, named)))
    }
    let own = command.get_arguments().find(named);
    own.or_else(|| below(tree, &named))
}

fn flags(tree: &Command, command: &Command) -> Vec<Candidate> {
    let shown = command
        .get_arguments()
        .chain(tree.get_arguments())
        .filter(|arg| !arg.is_hide_set());
    let mut flags: Vec<Candidate> = shown
        .filter_map(|arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            Some((format!("--{}", arg.get_long()?), first_line(&help)))
        })
        .collect();
    flags.sort();
    flags.dedup_by(|a, b| a.0 == b.0);
    flags
}

fn subcommands(command: &Command) -> Vec<Candidate> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown
        .map(|sub| {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            (sub.get_name().to_owned(), first_line(&about))
        })
        .collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn plain(words: &[&str]) -> Want {
    let words = words.iter().map(|word| ((*word).to_owned(), String::new()));
    Want::Words(words.collect())
}

fn value(path: &str, flag: &str) -> Want {
    match flag {
        "namespace" | "linkerd-namespace" | "cni-namespace" => Want::Namespaces,
        "context" => Want::Contexts,
        "output" => plain(match path {
            "check" => &["json", "json-merged", "short", "table"],
            "authz" | "status" | "diagnostics endpoints" => &["json", "table"],
            "identity" => &["json", "pem", "text"],
            // The command is not known yet: what any of them takes.
            "" => &["basic", "json", "short", "table", "yaml"],
            _ => &["json", "yaml"],
        }),
        "default-inbound-policy" => plain(&crate::install::validate::POLICIES),
        "controller-log-level" => plain(&crate::install::validate::CONTROLLER_LEVELS),
        "image-pull-policy" => plain(&crate::install::validate::PULL_POLICIES),
        _ => plain(&[]),
    }
}

fn positional(tree: &Command, path: &str, before: &[&str], current: &str) -> Want {
    let resource = |kinds: &[Kind]| match (current.split_once('/'), before) {
        (Some((kind, _)), _) => match Kind::parse(kind) {
            Ok(parsed) => Want::Names {
                kind: parsed,
                prefix: format!("{kind}/"),
            },
            Err(_) => plain(&[]),
        },
        (None, []) => plain(&kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>()),
        (None, [kind]) if !kind.contains('/') => match Kind::parse(kind) {
            Ok(kind) => Want::Names {
                kind,
                prefix: String::new(),
            },
            Err(_) => plain(&[]),
        },
        _ => plain(&[]),
    };
    match path {
        "identity" => Want::Pods,
        "authz" | "diagnostics proxy-metrics" => resource(&Kind::ALL),
        "diagnostics policy" => resource(&[Kind::Pod, Kind::Service]),
        "completion" if before.is_empty() => plain(&["bash", "fish", "zsh"]),
        "help" => Want::Words(subcommands(tree)),
        _ => plain(&[]),
    }
}

/// The same words after a prefix; names are looked up without one.
fn prefixed(want: Want, prefix: &str) -> Want {
    match want {
        Want::Words(words) => Want::Words(
            words
                .into_iter()
                .map(|(word, about)| (format!("{prefix}{word}"), about))
                .collect(),
        ),
        other => other,
    }
}

/// The flags among the words that say which cluster is meant, and the namespace of `-n`.
pub fn place(words: &[String]) -> (Global, Option<String>) {
    let mut global = Global::default();
    let mut namespace = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, given) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let slot = match name {
            "--kubeconfig" => &mut global.kubeconfig,
            "--context" => &mut global.context,
            "--as" => &mut global.as_user,
            "-n" | "--namespace" => &mut namespace,
            _ => continue,
        };
        *slot = given.or_else(|| words.next().cloned());
    }
    (global, namespace)
}

/// The candidates; names of things come from the cluster, and none when it does not answer in time.
pub async fn candidates(want: Want, words: &[String]) -> Vec<Candidate> {
    let (global, namespace) = place(words.split_last().map_or(words, |(_, before)| before));
    let looked_up = tokio::time::timeout(PATIENCE, look_up(want, &global, namespace)).await;
    looked_up.ok().and_then(Result::ok).unwrap_or_default()
}

async fn look_up(want: Want, global: &Global, namespace: Option<String>) -> Result<Vec<Candidate>> {
    let (prefix, names) = match want {
        Want::Words(words) => return Ok(words),
        Want::Contexts => (String::new(), cluster::contexts(global)?),
        Want::Namespaces => {
            let client = Cluster::new(global, Some(PATIENCE)).await?.client();
            let api: Api<Namespace> = Api::all(client);
            (String::new(), names(&api.list_metadata(&some()).await?))
        }
        Want::Pods => {
            let cluster = Cluster::new(global, Some(PATIENCE)).await?;
            let namespace = namespace.unwrap_or_else(|| cluster.default_namespace().to_owned());
            let api: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
            (String::new(), names(&api.list_metadata(&some()).await?))
        }
        Want::Names { kind, prefix } => {
            let cluster = Cluster::new(global, Some(PATIENCE)).await?;
            let namespace = namespace.unwrap_or_else(|| cluster.default_namespace().to_owned());
            let api = kind.api(cluster.client(), &namespace);
            (prefix, names(&api.list_metadata(&some()).await?))
        }
    };
    let named = names
        .into_iter()
        .map(|name| (format!("{prefix}{name}"), String::new()));
    Ok(named.collect())
}

fn some() -> ListParams {
    ListParams::default().limit(MOST)
}

fn names<K>(list: &ObjectList<PartialObjectMeta<K>>) -> Vec<String>
where
    PartialObjectMeta<K>: kube::ResourceExt + Clone,
{
    list.iter().map(|object| object.name_any()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str) -> Want {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        want(&crate::commands::tree(), &words)
    }

    fn words(line: &str) -> Vec<String> {
        match wanted(line) {
            Want::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn names_are_looked_up_where_names_stand() {
        for line in [
            "check -n ",
            "-n ",
            "-n emoji",
            "check --namespace ",
            "--linkerd-namespace ",
            "install -L ",
            "--cni-namespace ",
        ] {
            assert_eq!(wanted(line), Want::Namespaces, "{line}");
        }
        for line in [
            "--context ",
            "install --context x",
            "check --pre --context ",
        ] {
            assert_eq!(wanted(line), Want::Contexts, "{line}");
        }
        for line in ["identity ", "-n emojivoto identity web", "identity a "] {
            assert_eq!(wanted(line), Want::Pods, "{line}");
        }
        let deployments = |prefix: &str| Want::Names {
            kind: Kind::Deployment,
            prefix: prefix.to_owned(),
        };
        assert_eq!(wanted("authz deploy/"), deployments("deploy/"));
        assert_eq!(wanted("authz -n emojivoto deployment we"), deployments(""));
        assert_eq!(wanted("dg proxy-metrics deploy/w"), deployments("deploy/"));
    }

    #[test]
    fn words_are_offered_where_words_stand() {
        let first = words("");
        assert!(first.contains(&"check".to_owned()) && !first.contains(&"doc".to_owned()));
        assert!(words("--verbose c").contains(&"check".to_owned()));
        assert!(words("diagnostics ").contains(&"endpoints".to_owned()));
        let flags = words("check --");
        assert!(flags.contains(&"--proxy".to_owned()) && flags.contains(&"--context".to_owned()));
        assert_eq!(
            words("check -o "),
            ["json", "json-merged", "short", "table"]
        );
        assert_eq!(
            words("check --output=js"),
            [
                "--output=json",
                "--output=json-merged",
                "--output=short",
                "--output=table"
            ]
        );
        assert_eq!(words("-o "), ["basic", "json", "short", "table", "yaml"]);
        assert_eq!(words("install --output "), ["json", "yaml"]);
        assert_eq!(words("completion "), ["bash", "fish", "zsh"]);
        assert_eq!(words("diagnostics policy "), ["pod", "service"]);
        let types = [
            "namespace",
            "daemonset",
            "statefulset",
            "job",
            "deployment",
            "replicationcontroller",
            "pod",
            "service",
            "cronjob",
            "replicaset",
        ];
        assert_eq!(words("authz "), types);
        // Nothing of ours: the shell offers files.
        for line in ["inject ", "install --values ", "authz thing/"] {
            assert_eq!(words(line), [""; 0], "{line}");
        }
    }

    #[test]
    fn the_cluster_of_the_line_is_asked() {
        let words: Vec<String> = "check --context=a --kubeconfig k -n b --as ann"
            .split(' ')
            .map(str::to_owned)
            .collect();
        let (global, namespace) = place(&words);
        assert_eq!(global.context.as_deref(), Some("a"));
        assert_eq!(global.kubeconfig.as_deref(), Some("k"));
        assert_eq!(global.as_user.as_deref(), Some("ann"));
        assert_eq!(namespace.as_deref(), Some("b"));
    }
}
