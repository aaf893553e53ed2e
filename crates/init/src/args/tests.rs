//! Tables of command lines and what must become of them.

use super::*;

const GOOD: &[&str] = &["-p", "4143", "-o", "4140", "-u", "2102"];

fn resolve(line: &[&str]) -> Result<Config, String> {
    let line: Vec<String> = line.iter().map(|arg| (*arg).to_owned()).collect();
    let args = Args::parse(&line)
        .map_err(|error| error.to_string())?
        .expect("no help asked for");
    args.log().map_err(|error| error.to_string())?;
    args.resolve().map_err(|error| error.to_string())
}

fn with(extra: &[&str]) -> Result<Config, String> {
    resolve(&[GOOD, extra].concat())
}

#[test]
fn refusals_in_documented_order() {
    let mode = "--iptables-mode valid values are only \"legacy\", \"nft\" and \"plain\"";
    let path = "--firewall-bin-path valid values are only \"iptables-legacy\", \"iptables-nft\" and \"iptables\"";
    let incoming = "--incoming-proxy-port must be a valid TCP port number";
    let outgoing = "--outgoing-proxy-port must be a valid TCP port number";
    let both = "--diff cannot be used together with --simulate or --cleanup";
    let cases: &[(&[&str], &str)] = &[
        (&[], incoming),
        (&["-p", "-1", "-o", "4140"], incoming),
        (&["-p", "0", "-o", "4140"], incoming),
        (&["-p", "100000", "-o", "4140"], incoming),
        (&["-p", "4143"], outgoing),
        (&["-p", "4143", "-o", "100000"], outgoing),
        (
            &["--iptables-mode", "bogus", "--firewall-bin-path", "x"],
            mode,
        ),
        (
            &["--iptables-mode", "nft", "--firewall-bin-path", "x"],
            path,
        ),
        (&["--firewall-bin-path", "/sbin/iptables"], path),
        (
            &["--log-level", "loud", "--iptables-mode", "bogus"],
            "not a valid logrus Level: \"loud\"",
        ),
        (&["--log-level", ""], "not a valid logrus Level: \"\""),
        (&["--bogus"], "unknown flag: --bogus"),
        (
            &[
                "-p",
                "1",
                "-o",
                "2",
                "--subnets-to-ignore",
                "10.0.0.0/8,0.0.0.0",
            ],
            "0.0.0.0 is not a valid CIDR address",
        ),
        (
            &["-r", "x"],
            "invalid argument \"x\" for \"-r, --ports-to-redirect\" flag: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            &["-p", "x"],
            "invalid argument \"x\" for \"-p, --incoming-proxy-port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            &["--ipv6=perhaps"],
            "invalid argument \"perhaps\" for \"--ipv6\" flag: strconv.ParseBool: parsing \"perhaps\": invalid syntax",
        ),
        (
            &["-p", "1", "-o", "2", "-r", "65536"],
            "--ports-to-redirect: 65536 is not a valid TCP port number",
        ),
        (
            &["-p", "1", "-o", "2", "-r", "-1"],
            "--ports-to-redirect: -1 is not a valid TCP port number",
        ),
        (
            &["-p", "1", "-o", "2", "-u", "4294967295"],
            "--proxy-uid: 4294967295 is not a valid id",
        ),
        (
            &["-p", "1", "-o", "2", "--inbound-ports-to-ignore", "x,25-23"],
            "invalid port configuration of \"x\": \"x\" is not a valid lower-bound",
        ),
        (&["-p", "1", "-o", "2", "--simulate", "--diff"], both),
        (&["--cleanup", "--diff"], both),
    ];
    for (line, text) in cases {
        assert_eq!(
            resolve(line).expect_err("must be refused"),
            *text,
            "{line:?}"
        );
    }
}

#[test]
fn defaults() {
    let config = with(&[]).expect("valid");
    assert_eq!(config.mode, Mode::Legacy);
    assert!(!config.mode_is_explicit);
    assert!(config.ipv6);
    assert_eq!(config.task, Task::Apply);
    assert_eq!((config.incoming_port, config.outgoing_port), (4143, 4140));
    assert_eq!((config.proxy_uid, config.proxy_gid), (Some(2102), None));
    assert!(config.remarks.is_empty());
}

#[test]
fn modes() {
    let cases: &[(&[&str], Mode)] = &[
        (&["--firewall-bin-path", "iptables-legacy"], Mode::Legacy),
        (&["--firewall-bin-path", "iptables-nft"], Mode::Nft),
        (&["--firewall-bin-path", "iptables"], Mode::Plain),
        (
            &["--firewall-bin-path", "iptables", "--iptables-mode", "nft"],
            Mode::Nft,
        ),
        (&["--iptables-mode", "legacy"], Mode::Legacy),
        (&["--iptables-mode", "plain"], Mode::Plain),
        (&["--iptables-mode", "native"], Mode::Native),
        (
            &["--firewall-save-bin-path", "anything at all"],
            Mode::Legacy,
        ),
    ];
    for (line, mode) in cases {
        assert_eq!(with(line).expect("valid").mode, *mode, "{line:?}");
    }
}

#[test]
fn port_items() {
    let texts = |config: &Config| -> Vec<String> {
        config
            .remarks
            .iter()
            .map(|(_, text)| text.clone())
            .collect()
    };
    // A bad item among good ones is named and skipped; blanks are trimmed.
    let config = with(&["--inbound-ports-to-ignore", "4567, 4568,25-23"]).expect("valid");
    assert_eq!(
        config.inbound_ignore,
        [PortRange::single(4567), PortRange::single(4568)]
    );
    assert_eq!(
        texts(&config),
        [
            "invalid port configuration of \"25-23\": \"25-23\": upper-bound must be greater than or equal to lower-bound"
        ]
    );
    // Strict: the same list is refused.
    assert!(with(&["--strict-ports", "--inbound-ports-to-ignore", "4567,25-23"]).is_err());
    // Duplicates and zero are kept and remarked on.
    let config = with(&["--outbound-ports-to-ignore", "443,443,0"]).expect("valid");
    assert_eq!(config.outbound_ignore.len(), 3);
    assert_eq!(
        texts(&config),
        [
            "--outbound-ports-to-ignore names 443 more than once",
            "--outbound-ports-to-ignore names port 0, which no connection uses",
        ]
    );
    // An empty list is no list.
    assert!(
        with(&["--inbound-ports-to-ignore", ""])
            .expect("valid")
            .inbound_ignore
            .is_empty()
    );
}

#[test]
fn subnets_are_trimmed_and_kept_as_typed() {
    let config = with(&[
        "--subnets-to-ignore",
        "1.1.1.1/24 , 10.1.2.3/16",
        "--outbound-subnets-to-ignore",
        "fd00::/8",
    ])
    .expect("valid");
    let inbound: Vec<&str> = config
        .inbound_subnets
        .iter()
        .map(|s| s.text.as_str())
        .collect();
    assert_eq!(inbound, ["1.1.1.1/24", "10.1.2.3/16"]);
    assert_eq!(config.outbound_subnets[0].text, "fd00::/8");
}

#[test]
fn cleanup_needs_no_ports() {
    assert_eq!(resolve(&["--cleanup"]).expect("valid").task, Task::Cleanup);
    assert_eq!(
        resolve(&["--cleanup", "--simulate"]).expect("valid").task,
        Task::SimulateCleanup
    );
}

#[test]
fn ipv6_needs_an_equals_sign() {
    assert!(!with(&["--ipv6=false"]).expect("valid").ipv6);
    assert!(with(&["--ipv6", "false"]).expect("valid").ipv6);
}

#[test]
fn a_proxy_without_an_id_is_remarked_on() {
    let config = resolve(&["-p", "1", "-o", "2", "-u", "0"]).expect("valid");
    assert_eq!(config.proxy_uid, None);
    assert_eq!(config.remarks.len(), 1);
}

#[test]
fn help_names_every_flag() {
    let help = help();
    for row in TABLE {
        assert!(help.contains(&format!("--{}", row.name)), "{}", row.name);
    }
}
