//! Command-line syntax as scripts written for Linkerd expect it: `--flag value`, `--flag=value`,
//! `-p4143`, bundled short flags, booleans only with `=`, ignored positionals, Go's error texts.
//! Gets a flag table and arguments, hands each `(flag, value)` pair to the caller.

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    Ints,
    Text,
    Texts,
}

/// One row of the flag table.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    /// Shown in the usage text; empty when there is nothing to show.
    pub default: &'static str,
    pub help: &'static str,
}

/// A value as typed, after its syntax was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Int(i64),
    Ints(Vec<i64>),
    Text(String),
    Texts(Vec<String>),
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("unknown flag: --{0}")]
    Unknown(String),
    #[error("unknown shorthand flag: '{0}' in -{1}")]
    UnknownShort(char, String),
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag needs an argument: {0}")]
    Missing(String),
    #[error("invalid argument {value:?} for {flag:?} flag: {reason}")]
    Invalid {
        value: String,
        flag: String,
        reason: String,
    },
}

/// What the line asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Run(Vec<(&'static str, Value)>),
    Help,
}

/// Reads a command line (without the program name).
pub fn parse(table: &'static [Flag], args: &[String]) -> Result<Request, FlagError> {
    let mut values = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            break;
        }
        if let Some(long) = arg.strip_prefix("--") {
            if long.starts_with(['-', '=']) {
                return Err(FlagError::Syntax(arg.clone()));
            }
            let (name, inline) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            if name == "help" {
                return Ok(Request::Help);
            }
            let flag = table
                .iter()
                .find(|flag| flag.name == name)
                .ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
            let text = match inline {
                Some(text) => text,
                None if flag.kind == Kind::Bool => "true".to_owned(),
                None => rest
                    .next()
                    .cloned()
                    .ok_or_else(|| FlagError::Missing(format!("--{name}")))?,
            };
            values.push((flag.name, value(flag, &text)?));
        } else if arg.len() > 1
            && arg.starts_with('-')
            && short(table, &arg[1..], &mut rest, &mut values)?
        {
            return Ok(Request::Help);
        }
    }
    Ok(Request::Run(values))
}

/// One word of short flags; says whether help was asked for.
fn short<'a>(
    table: &'static [Flag],
    word: &str,
    rest: &mut impl Iterator<Item = &'a String>,
    values: &mut Vec<(&'static str, Value)>,
) -> Result<bool, FlagError> {
    let mut left = word;
    while let Some(letter) = left.chars().next() {
        let tail = &left[letter.len_utf8()..];
        if letter == 'h' {
            return Ok(true);
        }
        let flag = table
            .iter()
            .find(|flag| flag.short == Some(letter))
            .ok_or_else(|| FlagError::UnknownShort(letter, left.to_owned()))?;
        let text = if let Some(inline) = tail.strip_prefix('=') {
            inline.to_owned()
        } else if flag.kind == Kind::Bool {
            values.push((flag.name, Value::Bool(true)));
            left = tail;
            continue;
        } else if !tail.is_empty() {
            tail.to_owned()
        } else {
            rest.next()
                .cloned()
                .ok_or_else(|| FlagError::Missing(format!("'{letter}' in -{left}")))?
        };
        values.push((flag.name, value(flag, &text)?));
        break;
    }
    Ok(false)
}

fn value(flag: &Flag, text: &str) -> Result<Value, FlagError> {
    let parsed = match flag.kind {
        Kind::Bool => parse_bool(text).map(Value::Bool),
        Kind::Int => parse_int(text).map(Value::Int),
        Kind::Ints => text
            .split(',')
            .map(parse_decimal)
            .collect::<Result<_, _>>()
            .map(Value::Ints),
        Kind::Text => Ok(Value::Text(text.to_owned())),
        Kind::Texts => csv_record(text).map(Value::Texts),
    };
    parsed.map_err(|reason| FlagError::Invalid {
        value: text.to_owned(),
        flag: match flag.short {
            Some(short) => format!("-{short}, --{}", flag.name),
            None => format!("--{}", flag.name),
        },
        reason,
    })
}

fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!(
            "strconv.ParseBool: parsing {text:?}: invalid syntax"
        )),
    }
}

/// Go's base-0 integers: decimal, `0x`, `0o`, `0b`, leading-zero octal, `_` between digits of a
/// prefixed number.
fn parse_int(text: &str) -> Result<i64, String> {
    let fail = |why: &str| format!("strconv.ParseInt: parsing {text:?}: {why}");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = if let Some(body) = lower.strip_prefix("0x") {
        (16, body)
    } else if let Some(body) = lower.strip_prefix("0b") {
        (2, body)
    } else if let Some(body) = lower.strip_prefix("0o") {
        (8, body)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    let body = if radix == 10 {
        body.to_owned()
    } else {
        body.replace('_', "")
    };
    if body.is_empty() || !body.chars().all(|c| c.is_digit(radix)) {
        return Err(fail("invalid syntax"));
    }
    let size = i128::from_str_radix(&body, radix).map_err(|_| fail("value out of range"))?;
    i64::try_from(if negative { -size } else { size }).map_err(|_| fail("value out of range"))
}

fn parse_decimal(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("strconv.Atoi: parsing {text:?}: invalid syntax"));
    }
    text.parse()
        .map_err(|_| format!("strconv.Atoi: parsing {text:?}: value out of range"))
}

/// One CSV record: commas separate, double quotes group, a doubled quote is a quote.
fn csv_record(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut fields = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        let mut field = String::new();
        if chars.peek() == Some(&'"') {
            chars.next();
            loop {
                match chars.next() {
                    Some('"') if chars.peek() == Some(&'"') => {
                        chars.next();
                        field.push('"');
                    }
                    Some('"') => break,
                    Some(c) => field.push(c),
                    None => return Err("extraneous or missing \" in quoted-field".to_owned()),
                }
            }
            if chars.peek().is_some_and(|c| *c != ',') {
                return Err("extraneous or missing \" in quoted-field".to_owned());
            }
        } else {
            while let Some(c) = chars.next_if(|c| *c != ',') {
                if c == '"' {
                    return Err("bare \" in non-quoted-field".to_owned());
                }
                field.push(c);
            }
        }
        fields.push(field);
        if chars.next().is_none() {
            return Ok(fields);
        }
    }
}

/// The usage text: one line per flag, sorted by name, help included.
pub fn usage(program: &str, table: &[Flag]) -> String {
    let mut rows: Vec<(String, String, String)> = table
        .iter()
        .map(|flag| {
            let kind = match flag.kind {
                Kind::Bool => "",
                Kind::Int => " int",
                Kind::Ints => " ints",
                Kind::Text => " string",
                Kind::Texts => " strings",
            };
            let short = flag
                .short
                .map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
            let default = if flag.default.is_empty() {
                String::new()
            } else {
                format!(" (default {})", flag.default)
            };
            (
                flag.name.to_owned(),
                format!("  {short}--{}{kind}", flag.name),
                format!("{}{default}", flag.help),
            )
        })
        .collect();
    rows.push((
        "help".to_owned(),
        "  -h, --help".to_owned(),
        format!("help for {program}"),
    ));
    rows.sort();
    let width = rows
        .iter()
        .map(|(_, left, _)| left.len())
        .max()
        .unwrap_or(0);
    let mut text = format!("Usage:\n  {program} [flags]\n\nFlags:\n");
    for (_, left, right) in rows {
        text.push_str(&format!("{left:width$}   {right}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Flag] = &[
        Flag {
            name: "port",
            short: Some('p'),
            kind: Kind::Int,
            default: "-1",
            help: "a port",
        },
        Flag {
            name: "redirect",
            short: Some('r'),
            kind: Kind::Ints,
            default: "",
            help: "ports",
        },
        Flag {
            name: "ignore",
            short: None,
            kind: Kind::Texts,
            default: "",
            help: "items",
        },
        Flag {
            name: "wait",
            short: Some('w'),
            kind: Kind::Bool,
            default: "",
            help: "wait",
        },
        Flag {
            name: "mode",
            short: None,
            kind: Kind::Text,
            default: "",
            help: "mode",
        },
    ];

    fn read(line: &[&str]) -> Result<Request, String> {
        let args: Vec<String> = line.iter().map(|arg| (*arg).to_owned()).collect();
        parse(TABLE, &args).map_err(|error| error.to_string())
    }

    fn texts(items: &[&str]) -> Value {
        Value::Texts(items.iter().map(|item| (*item).to_owned()).collect())
    }

    #[test]
    fn accepted_lines() {
        type Case = (&'static [&'static str], Vec<(&'static str, Value)>);
        let cases: Vec<Case> = vec![
            (&[], vec![]),
            (&["--port", "4143"], vec![("port", Value::Int(4143))]),
            (&["--port=0x102F"], vec![("port", Value::Int(4143))]),
            (&["--port=010"], vec![("port", Value::Int(8))]),
            (&["-p", "-1"], vec![("port", Value::Int(-1))]),
            (&["-p4143"], vec![("port", Value::Int(4143))]),
            (&["-p=4143"], vec![("port", Value::Int(4143))]),
            (
                &["-wp", "1"],
                vec![("wait", Value::Bool(true)), ("port", Value::Int(1))],
            ),
            (
                &["-r", "9090,9099", "-r", "1"],
                vec![
                    ("redirect", Value::Ints(vec![9090, 9099])),
                    ("redirect", Value::Ints(vec![1])),
                ],
            ),
            (&["--wait=false"], vec![("wait", Value::Bool(false))]),
            (&["--wait", "false"], vec![("wait", Value::Bool(true))]),
            (&["--ignore", ""], vec![("ignore", texts(&[]))]),
            (&["--ignore", "1, 2"], vec![("ignore", texts(&["1", " 2"]))]),
            (
                &["--ignore", "\"1,2\",3"],
                vec![("ignore", texts(&["1,2", "3"]))],
            ),
            (&["--ignore", "1,"], vec![("ignore", texts(&["1", ""]))]),
            (&["word", "-"], vec![]),
            (&["--", "--nonsense"], vec![]),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), Ok(Request::Run(expected)), "{line:?}");
        }
        for line in [&["-h"][..], &["--help"], &["-wh"]] {
            assert_eq!(read(line), Ok(Request::Help), "{line:?}");
        }
    }

    #[test]
    fn refused_lines() {
        let cases: &[(&[&str], &str)] = &[
            (&["--nope"], "unknown flag: --nope"),
            (&["--nope=1"], "unknown flag: --nope"),
            (&["-x"], "unknown shorthand flag: 'x' in -x"),
            (&["--=1"], "bad flag syntax: --=1"),
            (&["---x"], "bad flag syntax: ---x"),
            (&["--port"], "flag needs an argument: --port"),
            (&["-p"], "flag needs an argument: 'p' in -p"),
            (
                &["-r", "x"],
                "invalid argument \"x\" for \"-r, --redirect\" flag: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            (
                &["-r", ""],
                "invalid argument \"\" for \"-r, --redirect\" flag: strconv.Atoi: parsing \"\": invalid syntax",
            ),
            (
                &["-r", "1,0x2"],
                "invalid argument \"1,0x2\" for \"-r, --redirect\" flag: strconv.Atoi: parsing \"0x2\": invalid syntax",
            ),
            (
                &["--port", "abc"],
                "invalid argument \"abc\" for \"-p, --port\" flag: strconv.ParseInt: parsing \"abc\": invalid syntax",
            ),
            (
                &["--port", "99999999999999999999"],
                "invalid argument \"99999999999999999999\" for \"-p, --port\" flag: strconv.ParseInt: parsing \"99999999999999999999\": value out of range",
            ),
            (
                &["--wait=maybe"],
                "invalid argument \"maybe\" for \"-w, --wait\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                &["--ignore", "\"1"],
                "invalid argument \"\\\"1\" for \"--ignore\" flag: extraneous or missing \" in quoted-field",
            ),
        ];
        for (line, text) in cases {
            assert_eq!(read(line), Err((*text).to_owned()), "{line:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_an_answer(line in proptest::collection::vec("[-=,a-z0-9\"é]{0,12}", 0..6)) {
            let _ = parse(TABLE, &line);
        }
    }
}
