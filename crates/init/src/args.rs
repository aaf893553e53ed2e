//! The flags of `linkerd-init`: the table, the raw values, and the validated [`Config`] they become.
//! Names, defaults, order of checks and texts are public interface.

use crate::flags::{self, Flag, FlagError, Kind, Request, Value};
use crate::log::{Format, Level};
use crate::ports::{PortError, PortRange};
use crate::subnet::Subnet;

/// How the program calls itself in its usage text.
pub const PROGRAM: &str = "proxy-init";

const fn flag(name: &'static str, kind: Kind, help: &'static str) -> Flag {
    Flag {
        name,
        short: None,
        kind,
        default: "",
        help,
    }
}

const fn short(letter: char, default: &'static str, row: Flag) -> Flag {
    Flag {
        short: Some(letter),
        default,
        ..row
    }
}

/// Every flag there is.
pub const TABLE: &[Flag] = &[
    short(
        'p',
        "-1",
        flag(
            "incoming-proxy-port",
            Kind::Int,
            "Port to redirect incoming traffic to",
        ),
    ),
    short(
        'o',
        "-1",
        flag(
            "outgoing-proxy-port",
            Kind::Int,
            "Port to redirect outgoing traffic to",
        ),
    ),
    short(
        'u',
        "-1",
        flag(
            "proxy-uid",
            Kind::Int,
            "User ID of the proxy; its traffic is never redirected",
        ),
    ),
    short(
        'g',
        "-1",
        flag(
            "proxy-gid",
            Kind::Int,
            "Group ID of the proxy; its traffic is never redirected",
        ),
    ),
    short(
        'r',
        "",
        flag(
            "ports-to-redirect",
            Kind::Ints,
            "Redirect only these inbound ports (all when empty)",
        ),
    ),
    flag(
        "inbound-ports-to-ignore",
        Kind::Texts,
        "Inbound ports or ranges (A-B) that reach the application directly",
    ),
    flag(
        "outbound-ports-to-ignore",
        Kind::Texts,
        "Outbound ports or ranges (A-B) that leave the pod directly",
    ),
    flag(
        "subnets-to-ignore",
        Kind::Texts,
        "Source subnets (CIDR) whose inbound traffic is not redirected",
    ),
    flag(
        "inbound-subnets-to-ignore",
        Kind::Texts,
        "Same as --subnets-to-ignore",
    ),
    flag(
        "outbound-subnets-to-ignore",
        Kind::Texts,
        "Destination subnets (CIDR) whose outbound traffic is not redirected",
    ),
    flag(
        "simulate",
        Kind::Bool,
        "Print the commands and touch nothing",
    ),
    flag(
        "diff",
        Kind::Bool,
        "Print what would change and touch nothing",
    ),
    flag(
        "cleanup",
        Kind::Bool,
        "Remove every rule this program has made, in every backend (connections it redirected end)",
    ),
    flag(
        "strict-ports",
        Kind::Bool,
        "Refuse to run when any port item is invalid, instead of skipping it",
    ),
    flag(
        "netns",
        Kind::Text,
        "Work in the network namespace at this path",
    ),
    short(
        'w',
        "",
        flag(
            "use-wait-flag",
            Kind::Bool,
            "Wait for the xtables lock for as long as it takes (otherwise five seconds)",
        ),
    ),
    Flag {
        default: "0",
        ..flag(
            "timeout-close-wait-secs",
            Kind::Int,
            "Sets nf_conntrack_tcp_timeout_close_wait when not 0",
        )
    },
    Flag {
        default: "\"plain\"",
        ..flag("log-format", Kind::Text, "Log format: plain or json")
    },
    Flag {
        default: "\"info\"",
        ..flag(
            "log-level",
            Kind::Text,
            "Log level: panic, fatal, error, warn, info, debug or trace",
        )
    },
    flag(
        "iptables-mode",
        Kind::Text,
        "Backend: legacy, nft, plain (the iptables programs) or native (the kernel directly)",
    ),
    flag(
        "firewall-bin-path",
        Kind::Text,
        "Backend by program: iptables-legacy, iptables-nft or iptables; --iptables-mode wins",
    ),
    flag("firewall-save-bin-path", Kind::Text, "Accepted and ignored"),
    Flag {
        default: "true",
        ..flag("ipv6", Kind::Bool, "Make the same rules for IPv6")
    },
];

/// Values as typed.
#[derive(Clone, Debug)]
pub struct Args {
    pub incoming_proxy_port: i64,
    pub outgoing_proxy_port: i64,
    pub proxy_uid: i64,
    pub proxy_gid: i64,
    pub ports_to_redirect: Vec<i64>,
    pub inbound_ports_to_ignore: Vec<String>,
    pub outbound_ports_to_ignore: Vec<String>,
    pub inbound_subnets_to_ignore: Vec<String>,
    pub outbound_subnets_to_ignore: Vec<String>,
    pub simulate: bool,
    pub diff: bool,
    pub cleanup: bool,
    pub strict_ports: bool,
    pub netns: String,
    pub use_wait_flag: bool,
    pub timeout_close_wait_secs: i64,
    pub log_format: String,
    pub log_level: String,
    pub iptables_mode: String,
    pub firewall_bin_path: String,
    pub ipv6: bool,
}

/// Which backend was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Legacy,
    Nft,
    Plain,
    Native,
}

/// What the run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Apply,
    Simulate,
    Diff,
    Cleanup,
    SimulateCleanup,
}

/// Everything checked: nothing below this type can be a user's mistake.
#[derive(Clone, Debug)]
pub struct Config {
    pub task: Task,
    pub mode: Mode,
    /// The mode was named with `--iptables-mode`: the native backend must not stand in for it.
    pub mode_is_explicit: bool,
    pub incoming_port: u16,
    pub outgoing_port: u16,
    pub proxy_uid: Option<u32>,
    pub proxy_gid: Option<u32>,
    pub ports_to_redirect: Vec<u16>,
    pub inbound_ignore: Vec<PortRange>,
    pub outbound_ignore: Vec<PortRange>,
    pub inbound_subnets: Vec<Subnet>,
    pub outbound_subnets: Vec<Subnet>,
    pub netns: Option<String>,
    pub wait: bool,
    pub close_wait_secs: i64,
    pub ipv6: bool,
    /// Remarks about the input, to be logged before work starts.
    pub remarks: Vec<(Level, String)>,
}

/// A user's mistake; the text follows `Error: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error("--iptables-mode valid values are only \"legacy\", \"nft\" and \"plain\"")]
    Mode,
    #[error(
        "--firewall-bin-path valid values are only \"iptables-legacy\", \"iptables-nft\" and \"iptables\""
    )]
    BinPath,
    #[error("--incoming-proxy-port must be a valid TCP port number")]
    IncomingPort,
    #[error("--outgoing-proxy-port must be a valid TCP port number")]
    OutgoingPort,
    #[error("{0} is not a valid CIDR address")]
    Subnet(String),
    #[error("not a valid logrus Level: {0:?}")]
    LogLevel(String),
    #[error("--ports-to-redirect: {0} is not a valid TCP port number")]
    RedirectPort(i64),
    #[error("--{flag}: {id} is not a valid id")]
    Id { flag: &'static str, id: i64 },
    #[error("invalid port configuration of {item:?}: {reason}")]
    PortItem { item: String, reason: PortError },
    #[error("--diff cannot be used together with --simulate or --cleanup")]
    Tasks,
}

// === impl Args ===

impl Default for Args {
    fn default() -> Self {
        Self {
            incoming_proxy_port: -1,
            outgoing_proxy_port: -1,
            proxy_uid: -1,
            proxy_gid: -1,
            ports_to_redirect: Vec::new(),
            inbound_ports_to_ignore: Vec::new(),
            outbound_ports_to_ignore: Vec::new(),
            inbound_subnets_to_ignore: Vec::new(),
            outbound_subnets_to_ignore: Vec::new(),
            simulate: false,
            diff: false,
            cleanup: false,
            strict_ports: false,
            netns: String::new(),
            use_wait_flag: false,
            timeout_close_wait_secs: 0,
            log_format: "plain".to_owned(),
            log_level: "info".to_owned(),
            iptables_mode: String::new(),
            firewall_bin_path: String::new(),
            ipv6: true,
        }
    }
}

impl Args {
    /// Reads a command line; `None` means help was asked for.
    pub fn parse(line: &[String]) -> Result<Option<Self>, ArgError> {
        let values = match flags::parse(TABLE, line)? {
            Request::Help => return Ok(None),
            Request::Run(values) => values,
        };
        let mut args = Self::default();
        for (name, value) in values {
            args.set(name, value);
        }
        Ok(Some(args))
    }

    fn set(&mut self, name: &str, value: Value) {
        match (name, value) {
            ("incoming-proxy-port", Value::Int(v)) => self.incoming_proxy_port = v,
            ("outgoing-proxy-port", Value::Int(v)) => self.outgoing_proxy_port = v,
            ("proxy-uid", Value::Int(v)) => self.proxy_uid = v,
            ("proxy-gid", Value::Int(v)) => self.proxy_gid = v,
            ("ports-to-redirect", Value::Ints(v)) => self.ports_to_redirect.extend(v),
            ("inbound-ports-to-ignore", Value::Texts(v)) => self.inbound_ports_to_ignore.extend(v),
            ("outbound-ports-to-ignore", Value::Texts(v)) => {
                self.outbound_ports_to_ignore.extend(v)
            }
            ("subnets-to-ignore" | "inbound-subnets-to-ignore", Value::Texts(v)) => {
                self.inbound_subnets_to_ignore.extend(v);
            }
            ("outbound-subnets-to-ignore", Value::Texts(v)) => {
                self.outbound_subnets_to_ignore.extend(v);
            }
            ("simulate", Value::Bool(v)) => self.simulate = v,
            ("diff", Value::Bool(v)) => self.diff = v,
            ("cleanup", Value::Bool(v)) => self.cleanup = v,
            ("strict-ports", Value::Bool(v)) => self.strict_ports = v,
            ("netns", Value::Text(v)) => self.netns = v,
            ("use-wait-flag", Value::Bool(v)) => self.use_wait_flag = v,
            ("timeout-close-wait-secs", Value::Int(v)) => self.timeout_close_wait_secs = v,
            ("log-format", Value::Text(v)) => self.log_format = v,
            ("log-level", Value::Text(v)) => self.log_level = v,
            ("iptables-mode", Value::Text(v)) => self.iptables_mode = v,
            ("firewall-bin-path", Value::Text(v)) => self.firewall_bin_path = v,
            ("ipv6", Value::Bool(v)) => self.ipv6 = v,
            ("firewall-save-bin-path", Value::Text(_)) => {}
            (name, value) => unreachable!("flag {name} was given {value:?} against its table row"),
        }
    }

    /// The two log settings; checked before everything else.
    pub fn log(&self) -> Result<(Format, Level), ArgError> {
        let format = if self.log_format == "json" {
            Format::Json
        } else {
            Format::Text
        };
        let level = Level::parse(&self.log_level)
            .ok_or_else(|| ArgError::LogLevel(self.log_level.clone()))?;
        Ok((format, level))
    }

    /// Checks everything, in the documented order.
    pub fn resolve(self) -> Result<Config, ArgError> {
        let mut remarks = Vec::new();
        let task = match (self.simulate, self.diff, self.cleanup) {
            (true, true, _) | (_, true, true) => return Err(ArgError::Tasks),
            (true, false, true) => Task::SimulateCleanup,
            (false, false, true) => Task::Cleanup,
            (true, false, false) => Task::Simulate,
            (false, true, false) => Task::Diff,
            (false, false, false) => Task::Apply,
        };
        let mode = self.mode()?;
        let removing = matches!(task, Task::Cleanup | Task::SimulateCleanup);
        let port = |value: i64, error: ArgError| match u16::try_from(value) {
            Ok(0) | Err(_) if !removing => Err(error),
            Ok(port) => Ok(port),
            Err(_) => Ok(0),
        };
        let incoming_port = port(self.incoming_proxy_port, ArgError::IncomingPort)?;
        let outgoing_port = port(self.outgoing_proxy_port, ArgError::OutgoingPort)?;
        let inbound_subnets = subnets(&self.inbound_subnets_to_ignore)?;
        let outbound_subnets = subnets(&self.outbound_subnets_to_ignore)?;
        let proxy_uid = id("proxy-uid", self.proxy_uid)?;
        let proxy_gid = id("proxy-gid", self.proxy_gid)?;
        if proxy_uid.is_none() && proxy_gid.is_none() && !removing {
            remarks.push((
                Level::Warn,
                "neither --proxy-uid nor --proxy-gid names the proxy: its own connections will be redirected to itself".to_owned(),
            ));
        }
        let ports_to_redirect = self
            .ports_to_redirect
            .iter()
            .map(|port| u16::try_from(*port).map_err(|_| ArgError::RedirectPort(*port)))
            .collect::<Result<Vec<u16>, ArgError>>()?;
        let strict = self.strict_ports;
        let mut items = |flag: &str, list: &[String]| port_items(flag, list, strict, &mut remarks);
        let inbound_ignore = items("inbound-ports-to-ignore", &self.inbound_ports_to_ignore)?;
        let outbound_ignore = items("outbound-ports-to-ignore", &self.outbound_ports_to_ignore)?;
        Ok(Config {
            task,
            mode,
            mode_is_explicit: !self.iptables_mode.is_empty(),
            incoming_port,
            outgoing_port,
            proxy_uid,
            proxy_gid,
            ports_to_redirect,
            inbound_ignore,
            outbound_ignore,
            inbound_subnets,
            outbound_subnets,
            netns: (!self.netns.is_empty()).then_some(self.netns),
            wait: self.use_wait_flag,
            close_wait_secs: self.timeout_close_wait_secs,
            ipv6: self.ipv6,
            remarks,
        })
    }

    /// Both flags are checked even when the first decides.
    fn mode(&self) -> Result<Mode, ArgError> {
        let named = match self.iptables_mode.as_str() {
            "" => None,
            "legacy" => Some(Mode::Legacy),
            "nft" => Some(Mode::Nft),
            "plain" => Some(Mode::Plain),
            "native" => Some(Mode::Native),
            _ => return Err(ArgError::Mode),
        };
        let by_path = match self.firewall_bin_path.as_str() {
            "" | "iptables-legacy" => Mode::Legacy,
            "iptables-nft" => Mode::Nft,
            "iptables" => Mode::Plain,
            _ => return Err(ArgError::BinPath),
        };
        Ok(named.unwrap_or(by_path))
    }
}

/// Zero and negative values mean "no rule".
fn id(flag: &'static str, id: i64) -> Result<Option<u32>, ArgError> {
    if id <= 0 {
        return Ok(None);
    }
    match u32::try_from(id) {
        Ok(value) if value < u32::MAX => Ok(Some(value)),
        _ => Err(ArgError::Id { flag, id }),
    }
}

fn subnets(items: &[String]) -> Result<Vec<Subnet>, ArgError> {
    items
        .iter()
        .map(|item| {
            let text = item.trim();
            Subnet::parse(text).ok_or_else(|| ArgError::Subnet(text.to_owned()))
        })
        .collect()
}

/// Bad items are named and skipped, unless they are all there is or `strict` is set.
fn port_items(
    flag: &str,
    items: &[String],
    strict: bool,
    remarks: &mut Vec<(Level, String)>,
) -> Result<Vec<PortRange>, ArgError> {
    let mut ranges: Vec<PortRange> = Vec::with_capacity(items.len());
    let mut first_bad = None;
    for item in items.iter().map(|item| item.trim()) {
        match PortRange::parse(item) {
            Ok(range) => {
                if ranges.contains(&range) {
                    remarks.push((Level::Warn, format!("--{flag} names {item} more than once")));
                } else if range.upper == 0 {
                    remarks.push((
                        Level::Warn,
                        format!("--{flag} names port 0, which no connection uses"),
                    ));
                }
                ranges.push(range);
            }
            Err(reason) => {
                let error = ArgError::PortItem {
                    item: item.to_owned(),
                    reason,
                };
                remarks.push((Level::Error, error.to_string()));
                first_bad.get_or_insert(error);
            }
        }
    }
    match first_bad {
        Some(error) if strict || ranges.is_empty() => Err(error),
        _ => Ok(ranges),
    }
}

/// The text of `--help`.
pub fn help() -> String {
    format!(
        "{PROGRAM} redirects the TCP traffic of a pod to its proxy.\n\n{}",
        usage()
    )
}

/// What follows an error about flags.
pub fn usage() -> String {
    flags::usage(PROGRAM, TABLE)
}

#[cfg(test)]
#[path = "args/tests.rs"]
mod tests;
