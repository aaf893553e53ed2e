//! Arguments in the order clap wants them. Flags may stand anywhere, also those of the subcommand
//! before its name (`linkerd -n emojivoto check --proxy`), and a boolean may say `=true` or `=false`.

use clap::{Arg, ArgAction, Command};

#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// Command words first, then everything else in the order given.
    Parse(Vec<String>),
    /// The first word is no command of ours; `rest` is what follows it.
    Unknown { word: String, rest: Vec<String> },
}

/// Moves the command words to the front.
pub fn order(tree: &Command, words: &[String]) -> Order {
    let mut command = tree;
    let mut path: Vec<String> = Vec::new();
    let mut rest = words.to_vec();
    while command.has_subcommands() {
        let Some(at) = first_word(tree, command, &rest) else {
            break;
        };
        if let Some(found) = command.find_subcommand(&rest[at]) {
            path.push(rest.remove(at));
            command = found;
        } else if path.is_empty() && rest[at] != "help" {
            return Order::Unknown {
                word: rest[at].clone(),
                rest: rest[at + 1..].to_vec(),
            };
        } else {
            path.push(rest.remove(at));
            break;
        }
    }
    path.extend(booleans(tree, command, rest));
    Order::Parse(path)
}

/// Where the first word stands that is neither a flag nor the value of one.
fn first_word(tree: &Command, command: &Command, words: &[String]) -> Option<usize> {
    let mut at = 0;
    while at < words.len() {
        let word = words[at].as_str();
        if word == "--" {
            return None;
        }
        if !word.starts_with('-') || word == "-" {
            return Some(at);
        }
        let next = words.get(at + 1).map(String::as_str);
        at += if takes_next(tree, command, word, next) {
            2
        } else {
            1
        };
    }
    None
}

/// Whether the flag's value is the next word. A flag nobody knows is taken to have one.
fn takes_next(tree: &Command, command: &Command, word: &str, next: Option<&str>) -> bool {
    if word.contains('=') {
        return false;
    }
    let named = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => word.strip_prefix('-').is_some_and(|short| {
            let mut letters = short.chars();
            arg.get_short() == letters.next() && letters.next().is_none()
        }),
    };
    if !word.starts_with("--") && word.chars().count() > 2 {
        return false;
    }
    if matches!(word, "-h" | "--help") {
        return false;
    }
    if let Some(arg) = command
        .get_arguments()
        .chain(tree.get_arguments())
        .find(named)
    {
        return takes_value(arg);
    }
    let mut answers = Vec::new();
    collect(tree, &named, &mut answers);
    match (answers.contains(&true), answers.contains(&false)) {
        (false, true) => false,
        // One command's flag, another's switch: a command's name decides.
        (true, true) => next.is_none_or(|next| command.find_subcommand(next).is_none()),
        _ => true,
    }
}

fn collect(command: &Command, named: &impl Fn(&&Arg) -> bool, answers: &mut Vec<bool>) {
    for sub in command.get_subcommands() {
        answers.extend(sub.get_arguments().find(named).map(takes_value));
        collect(sub, named, answers);
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) && !arg.is_require_equals_set()
}

/// `--flag=true` is `--flag`, `--flag=false` is no flag at all.
fn booleans(tree: &Command, command: &Command, words: Vec<String>) -> Vec<String> {
    let is_switch = |name: &str| {
        let mut known = command.get_arguments().chain(tree.get_arguments());
        known.any(|arg| {
            arg.get_long() == Some(name) && matches!(arg.get_action(), ArgAction::SetTrue)
        })
    };
    let mut out: Vec<String> = Vec::with_capacity(words.len());
    let mut literal = false;
    for word in words {
        literal |= word == "--";
        let switch = word
            .strip_prefix("--")
            .and_then(|word| word.split_once('='))
            .filter(|(name, _)| !literal && is_switch(name));
        match switch {
            Some((name, "true" | "1" | "t" | "T" | "TRUE" | "True")) => {
                out.push(format!("--{name}"));
            }
            Some((name, "false" | "0" | "f" | "F" | "FALSE" | "False")) => {
                let flag = format!("--{name}");
                out.retain(|word| *word != flag);
            }
            _ => out.push(word),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(line: &str) -> Order {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        order(&crate::commands::tree(), &words)
    }

    fn parse(line: &str) -> Order {
        Order::Parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn flags_stand_anywhere() {
        for (line, expected) in [
            ("install --crds", "install --crds"),
            (
                "-n emojivoto version --proxy",
                "version -n emojivoto --proxy",
            ),
            ("--proxy version", "version --proxy"),
            ("-L other install", "install -L other"),
            ("-Lother install", "install -Lother"),
            (
                "--context=x --verbose install --ha",
                "install --context=x --verbose --ha",
            ),
            ("-f install", "-f install"),
            ("-f uninstall", "uninstall -f"),
            ("--crds=true install", "install --crds"),
            ("install --crds --crds=false", "install"),
            ("install --set a=b", "install --set a=b"),
            ("inject -", "inject -"),
            ("", ""),
            ("--help", "--help"),
            ("help install", "help install"),
        ] {
            let expected = if line == "-f install" {
                // `install` has a -f with a value, `uninstall` one without.
                parse("install -f")
            } else {
                parse(expected)
            };
            assert_eq!(ordered(line), expected, "{line}");
        }
    }

    /// What the flags come to, through the whole tree.
    fn matches(line: &str) -> Result<clap::ArgMatches, clap::Error> {
        let Order::Parse(words) = ordered(line) else {
            panic!("a command of ours: {line}");
        };
        let words = std::iter::once("linkerd".to_owned()).chain(words);
        let matches = crate::commands::tree().try_get_matches_from(words)?;
        Ok(matches.subcommand().expect("a command").1.clone())
    }

    #[test]
    fn values_in_all_their_forms() {
        for (line, flag, expected) in [
            ("check -n x", "namespace", &["x"][..]),
            ("check -nx", "namespace", &["x"]),
            ("check -n=x", "namespace", &["x"]),
            ("-n=x check", "namespace", &["x"]),
            ("check --namespace=x", "namespace", &["x"]),
            ("check --namespace x", "namespace", &["x"]),
            ("check --only a,b --only c", "only", &["a", "b", "c"]),
            (
                "install --skip-inbound-ports 1,2 --skip-inbound-ports 3",
                "skip_inbound_ports",
                &["1", "2", "3"],
            ),
            (
                "install --set a=1,b=2 --set c=3",
                "set",
                &["a=1,b=2", "c=3"],
            ),
            (
                "check --as u --as-group g,h --as-group i",
                "as_group",
                &["g,h", "i"],
            ),
        ] {
            let matches = matches(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let raw = matches.get_raw(flag).expect("given");
            let raw: Vec<&str> = raw.filter_map(|value| value.to_str()).collect();
            let split: Vec<&str> = match flag {
                "set" | "as_group" => raw,
                _ => raw.iter().flat_map(|value| value.split(',')).collect(),
            };
            assert_eq!(split, expected, "{line}");
        }
        for (wait, seconds) in [("300s", 300), ("1m30s", 90), ("5m0s", 300), ("1h", 3600)] {
            let matches = matches(&format!("check --wait {wait}")).expect("a duration");
            let found = matches.get_one::<std::time::Duration>("wait");
            assert_eq!(
                found.map(std::time::Duration::as_secs),
                Some(seconds),
                "{wait}"
            );
        }
        for line in [
            "check --pre=maybe",
            "check --wait soon",
            "check --wait 5",
            "check --bogus",
            "check extra",
            "install --controller-replicas many",
        ] {
            assert!(matches(line).is_err(), "{line}");
        }
    }

    #[test]
    fn unknown_words_go_to_extensions() {
        let expected = Order::Unknown {
            word: "foo".to_owned(),
            rest: vec!["install".to_owned(), "--x".to_owned()],
        };
        assert_eq!(ordered("foo install --x"), expected);
        assert_eq!(ordered("--verbose foo install --x"), expected);
    }
}
