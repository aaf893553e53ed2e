//! A certificate as text, in the layout that OpenSSL made common.

use anyhow::{Result, anyhow};
use std::fmt::Write as _;
use x509_parser::{
    prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate, X509Extension},
    public_key::PublicKey,
    time::ASN1Time,
};

/// Bytes on a line of hexadecimal numbers: of keys, and of signatures.
const KEY_LINE: usize = 15;
const SIGNATURE_LINE: usize = 18;

/// The whole certificate. `now` is for the time that is left to it.
pub fn text(der: &[u8], now: i64) -> Result<String> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| anyhow!("not a certificate: {error}"))?;
    let mut out = String::from("Certificate:\n    Data:\n");
    let version = certificate.version().0;
    let serial = certificate.raw_serial();
    let oid = certificate.signature_algorithm.algorithm.to_id_string();
    let algorithm = algorithm(&oid);
    let validity = certificate.validity();
    let mut line = |indent: usize, text: &str| {
        let _ = writeln!(out, "{:indent$}{text}", "");
    };
    line(8, &format!("Version: {} (0x{version:x})", version + 1));
    match <[u8; 8]>::try_from(&padded(serial)[..]) {
        Ok(bytes) => {
            let number = u64::from_be_bytes(bytes);
            line(8, &format!("Serial Number: {number} (0x{number:x})"));
        }
        Err(_) => {
            line(8, "Serial Number:");
            line(12, &hex(serial));
        }
    }
    line(4, &format!("Signature Algorithm: {algorithm}"));
    line(8, &format!("Issuer: {}", certificate.issuer()));
    line(8, "Validity");
    line(12, &format!("Not Before: {}", time(validity.not_before)));
    line(12, &format!("Not After : {}", time(validity.not_after)));
    line(
        12,
        &format!("Time Left : {}", left(validity.not_after.timestamp() - now)),
    );
    line(8, format!("Subject: {}", certificate.subject()).trim_end());
    line(8, "Subject Public Key Info:");
    match certificate.public_key().parsed() {
        Ok(PublicKey::EC(point)) => {
            let bytes = point.data();
            let half = bytes.len().saturating_sub(1) / 2;
            line(12, "Public Key Algorithm: ECDSA");
            line(16, &format!("Public-Key: ({} bit)", half * 8));
            for (name, coordinate) in ["X:", "Y:"].into_iter().zip(bytes[1..].chunks(half.max(1))) {
                line(16, name);
                for row in rows(coordinate, KEY_LINE) {
                    line(20, &row);
                }
            }
            let curve = match half {
                32 => "P-256",
                48 => "P-384",
                66 => "P-521",
                _ => "unknown",
            };
            line(16, &format!("Curve: {curve}"));
        }
        Ok(PublicKey::RSA(key)) => {
            line(12, "Public Key Algorithm: RSA");
            line(16, &format!("Public-Key: ({} bit)", key.key_size()));
            line(16, "Modulus:");
            for row in rows(key.modulus, KEY_LINE) {
                line(20, &row);
            }
            let exponent = key.try_exponent().unwrap_or_default();
            line(16, &format!("Exponent: {exponent} (0x{exponent:x})"));
        }
        _ => {
            let name = certificate.public_key().algorithm.algorithm.to_id_string();
            line(12, &format!("Public Key Algorithm: {name}"));
        }
    }
    if !certificate.extensions().is_empty() {
        line(8, "X509v3 extensions:");
    }
    for extension in certificate.extensions() {
        let (name, value) = describe(extension);
        let critical = if extension.critical { " critical" } else { "" };
        line(12, &format!("{name}:{critical}"));
        for part in value {
            line(16, &part);
        }
    }
    line(0, "");
    line(4, &format!("Signature Algorithm: {algorithm}"));
    for row in rows(&certificate.signature_value.data, SIGNATURE_LINE) {
        line(9, &row);
    }
    Ok(out)
}

fn describe(extension: &X509Extension<'_>) -> (String, Vec<String>) {
    let (name, value) = match extension.parsed_extension() {
        ParsedExtension::KeyUsage(usage) => {
            let all = [
                (usage.digital_signature(), "Digital Signature"),
                (usage.non_repudiation(), "Non Repudiation"),
                (usage.key_encipherment(), "Key Encipherment"),
                (usage.data_encipherment(), "Data Encipherment"),
                (usage.key_agreement(), "Key Agreement"),
                (usage.key_cert_sign(), "Certificate Sign"),
                (usage.crl_sign(), "CRL Sign"),
                (usage.encipher_only(), "Encipher Only"),
                (usage.decipher_only(), "Decipher Only"),
            ];
            ("Key Usage", vec![chosen(&all)])
        }
        ParsedExtension::ExtendedKeyUsage(usage) => {
            let all = [
                (usage.any, "Any Extended Key Usage"),
                (usage.server_auth, "TLS Web Server Authentication"),
                (usage.client_auth, "TLS Web Client Authentication"),
                (usage.code_signing, "Code Signing"),
                (usage.email_protection, "E-mail Protection"),
                (usage.time_stamping, "Time Stamping"),
                (usage.ocsp_signing, "OCSP Signing"),
            ];
            ("Extended Key Usage", vec![chosen(&all)])
        }
        ParsedExtension::BasicConstraints(constraints) => {
            let mut value = format!("CA:{}", if constraints.ca { "TRUE" } else { "FALSE" });
            if let Some(length) = constraints.path_len_constraint {
                let _ = write!(value, ", pathlen:{length}");
            }
            ("Basic Constraints", vec![value])
        }
        ParsedExtension::SubjectKeyIdentifier(id) => ("Subject Key Identifier", vec![hex(id.0)]),
        ParsedExtension::AuthorityKeyIdentifier(id) => {
            let id = id
                .key_identifier
                .as_ref()
                .map(|id| format!("keyid:{}", hex(id.0)));
            ("Authority Key Identifier", id.into_iter().collect())
        }
        ParsedExtension::SubjectAlternativeName(names) => {
            let names: Vec<String> = names.general_names.iter().map(alternative).collect();
            ("Subject Alternative Name", vec![names.join(", ")])
        }
        _ => {
            let oid = extension.oid.to_id_string();
            return (oid, rows(extension.value, KEY_LINE).collect());
        }
    };
    (format!("X509v3 {name}"), value)
}

fn alternative(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => format!("DNS:{name}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::RFC822Name(mail) => format!("email:{mail}"),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).map_or_else(
                |_| hex(bytes),
                |ip| format!("IP Address:{}", std::net::Ipv4Addr::from(ip)),
            ),
            16 => <[u8; 16]>::try_from(*bytes).map_or_else(
                |_| hex(bytes),
                |ip| format!("IP Address:{}", std::net::Ipv6Addr::from(ip)),
            ),
            _ => hex(bytes),
        },
        other => other.to_string(),
    }
}

fn chosen(all: &[(bool, &str)]) -> String {
    let set = all.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join(", ")
}

fn algorithm(oid: &str) -> &str {
    match oid {
        "1.2.840.10045.4.3.2" => "ECDSA-SHA256",
        "1.2.840.10045.4.3.3" => "ECDSA-SHA384",
        "1.2.840.10045.4.3.4" => "ECDSA-SHA512",
        "1.2.840.113549.1.1.11" => "SHA256-RSA",
        "1.2.840.113549.1.1.12" => "SHA384-RSA",
        "1.2.840.113549.1.1.13" => "SHA512-RSA",
        "1.3.101.112" => "Ed25519",
        other => other,
    }
}

/// `Nov 20 22:20:19 2020 UTC`
fn time(at: ASN1Time) -> String {
    let at = at.to_datetime();
    let month = at.month().to_string();
    let (month, day) = (&month[..3], at.day());
    let (hour, minute, second) = (at.hour(), at.minute(), at.second());
    format!(
        "{month} {day} {hour:02}:{minute:02}:{second:02} {} UTC",
        at.year()
    )
}

/// `23h59m`, `364d`, `none (expired)`
pub fn left(seconds: i64) -> String {
    match seconds {
        ..=0 => "none (expired)".to_owned(),
        1..172_800 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn padded(serial: &[u8]) -> Vec<u8> {
    let serial = match serial.iter().position(|byte| *byte != 0) {
        Some(first) => &serial[first..],
        None => &[],
    };
    let mut out = vec![0; 8_usize.saturating_sub(serial.len())];
    out.extend_from_slice(serial);
    out
}

fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(":")
}

/// Lines of that many bytes; each but the last ends in a colon.
fn rows(bytes: &[u8], width: usize) -> impl Iterator<Item = String> {
    let count = bytes.len().div_ceil(width);
    bytes.chunks(width).enumerate().map(move |(at, row)| {
        let colon = if at + 1 < count { ":" } else { "" };
        format!("{}{colon}", hex(row))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linkerd_tls::certificates_from_pem;

    #[test]
    fn the_layout_is_the_common_one() {
        let pem = include_str!("certificate_text/leaf.pem");
        let der = &certificates_from_pem(pem.as_bytes()).expect("a certificate")[0].der;
        // Half a day before its end.
        let (_, parsed) = X509Certificate::from_der(der).expect("a certificate");
        let now = parsed.validity().not_after.timestamp() - 43_260;
        let expected = include_str!("certificate_text/leaf.txt");
        assert_eq!(text(der, now).expect("text"), expected);
    }

    #[test]
    fn time_that_is_left() {
        for (seconds, expected) in [
            (0, "none (expired)"),
            (86_340, "23h59m"),
            (3 * 86_400, "3d"),
        ] {
            assert_eq!(left(seconds), expected);
        }
    }

    #[test]
    fn large_serials_are_bytes() {
        assert_eq!(padded(&[0, 1, 2]).len(), 8);
        assert_eq!(padded(&[1; 20]).len(), 20);
    }
}
