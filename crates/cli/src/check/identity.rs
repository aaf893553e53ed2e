//! `linkerd-identity` and `linkerd-identity-data-plane`: the trust anchors and the issuer, and
//! whether proxies believe in the same anchors.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, MESHED, name, place},
};
use crate::trust;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use linkerd_tls::{
    Certificate, KeyKind, TrustAnchors, certificates_from_pem, provider,
    rustls::{
        self,
        pki_types::{PrivateKeyDer, pem::PemObject as _},
        sign::CertifiedKey,
    },
};
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub const ISSUER: &str = "linkerd-identity-issuer";
pub const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";
const SHA256_RSA: &str = "1.2.840.113549.1.1.11";
const SOON: Duration = Duration::from_secs(60 * 86_400);

/// The issuer's certificate with those above it, and the trust anchors.
#[derive(Debug)]
pub struct Credentials {
    anchors: Vec<Certificate>,
    chain: Vec<Certificate>,
}

pub fn category() -> Category<Facts> {
    let on =
        |description: &str, anchor: &'static str, look: fn(&Credentials, SystemTime) -> Verdict| {
            Check::new(description, anchor, move |facts: &mut Facts| {
                Box::pin(async move { look(credentials(facts)?, facts.now) })
            })
        };
    Category {
        id: "linkerd-identity",
        checks: vec![
            Check::new(
                "certificate config is valid",
                "l5d-identity-cert-config-valid",
                |facts| Box::pin(load(facts)),
            )
            .fatal()
            .informs(&["linkerd-identity"]),
            on(
                "trust anchors are using supported crypto algorithm",
                "l5d-identity-trustAnchors-use-supported-crypto",
                |found, _| {
                    let bad = found
                        .anchors
                        .iter()
                        .filter_map(|anchor| line(anchor, supported(anchor, true)));
                    listed("Invalid trustAnchors:", bad)
                },
            )
            .fatal(),
            on(
                "trust anchors are within their validity period",
                "l5d-identity-trustAnchors-are-time-valid",
                |found, now| {
                    let bad = found
                        .anchors
                        .iter()
                        .filter_map(|anchor| line(anchor, in_period(anchor, now)));
                    listed("Invalid anchors:", bad)
                },
            )
            .fatal(),
            on(
                "trust anchors are valid for at least 60 days",
                "l5d-identity-trustAnchors-not-expiring-soon",
                |found, now| expiring_soon(&found.anchors, now),
            )
            .warning(),
            on(
                "issuer cert is using supported crypto algorithm",
                "l5d-identity-issuer-cert-uses-supported-crypto",
                |found, _| {
                    supported(&found.chain[0], false)
                        .map_err(|error| Problem::failed(format!("issuer certificate {error}")))
                },
            )
            .fatal(),
            on(
                "issuer cert is within its validity period",
                "l5d-identity-issuer-cert-is-time-valid",
                |found, now| {
                    in_period(&found.chain[0], now)
                        .map_err(|error| Problem::failed(format!("issuer certificate is {error}")))
                },
            )
            .fatal(),
            on(
                "issuer cert is valid for at least 60 days",
                "l5d-identity-issuer-cert-not-expiring-soon",
                |found, now| match will_expire(&found.chain[0], now) {
                    Some(error) => Err(Problem::failed(format!("issuer certificate {error}"))),
                    None => Ok(()),
                },
            )
            .warning(),
            on(
                "issuer cert is issued by the trust anchor",
                "l5d-identity-issuer-cert-issued-by-trust-anchor",
                |found, _| issued(&found.chain, &found.anchors).map_err(Problem::Failed),
            ),
        ],
    }
}

pub fn data_plane() -> Category<Facts> {
    let description = "data plane proxies certificate match CA";
    Category {
        id: "linkerd-identity-data-plane",
        checks: vec![
            Check::new(
                description,
                "l5d-identity-data-plane-proxies-certs-match-ca",
                |facts| Box::pin(same_anchors(facts)),
            )
            .warning(),
        ],
    }
}

fn credentials(facts: &Facts) -> Result<&Credentials, Problem> {
    facts
        .credentials
        .as_ref()
        .ok_or_else(|| Problem::skip("the certificates could not be read"))
}

async fn load(facts: &mut Facts) -> Verdict {
    let external = facts.value_text("identity.issuer.scheme") == "kubernetes.io/tls";
    let (certificate, key) = if external {
        ("tls.crt", "tls.key")
    } else {
        ("crt.pem", "key.pem")
    };
    let secret: Secret = facts
        .named_in(facts.namespace(), ISSUER)
        .await?
        .ok_or_else(|| Problem::failed(format!("secrets \"{ISSUER}\" not found")))?;
    let data = secret.data.unwrap_or_default();
    let part = |key: &str, what: &str| {
        data.get(key).map(|bytes| bytes.0.clone()).ok_or_else(|| {
            Problem::failed(format!(
                "key {key} containing the {what} needs to exist in secret {ISSUER} if --identity-external-issuer={external}"
            ))
        })
    };
    let certificate = part(certificate, "issuer certificate")?;
    let key = part(key, "issuer key")?;
    // The anchors that the control plane hands to its proxies come first, also when cert-manager keeps
    // the issuer: after a rotation that nobody told the control plane of, these are the ones in use,
    // and the new issuer fails against them here as it does in the mesh.
    let configured = facts.value_text("identityTrustAnchorsPEM").trim();
    let anchors = if !configured.is_empty() {
        configured.as_bytes().to_vec()
    } else if external && !facts.is_set("identity.externalCA") {
        part("ca.crt", "trust anchors")?
    } else {
        trust_roots(facts).await?.into_bytes()
    };
    let anchors = certificates_from_pem(&anchors)
        .map_err(|error| Problem::failed(format!("failed to read the trust anchors: {error}")))?;
    let chain = certificates_from_pem(&certificate).map_err(|error| {
        Problem::failed(format!("failed to read the issuer certificate: {error}"))
    })?;
    pair(&chain, &key).map_err(Problem::Failed)?;
    facts.credentials = Some(Credentials { anchors, chain });
    Ok(())
}

/// Whether the private key belongs to the first certificate.
pub(super) fn pair(chain: &[Certificate], key: &[u8]) -> Result<(), String> {
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("failed to read the private key: {error}"))?;
    let chain = chain
        .iter()
        .map(|certificate| certificate.der.clone())
        .collect();
    match CertifiedKey::from_der(chain, key, &provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err("tls: Public and private key do not match".to_owned())
        }
        Err(error) => Err(format!("failed to read the private key: {error}")),
    }
}

async fn trust_roots(facts: &Facts) -> Result<String, Problem> {
    let map: ConfigMap = facts
        .named_in(facts.namespace(), TRUST_ROOTS)
        .await?
        .ok_or_else(|| Problem::failed(format!("configmaps \"{TRUST_ROOTS}\" not found")))?;
    map.data
        .and_then(|mut data| data.remove("ca-bundle.crt"))
        .ok_or_else(|| {
            Problem::failed(format!(
                "key ca-bundle.crt needs to exist in configmap {TRUST_ROOTS}"
            ))
        })
}

/// A certificate in a list: serial number, name and what is wrong.
fn line(certificate: &Certificate, verdict: Result<(), String>) -> Option<String> {
    let error = verdict.err()?;
    let serial = X509Certificate::from_der(&certificate.der).map_or_else(
        |_| certificate.serial.clone(),
        |(_, parsed)| parsed.tbs_certificate.serial.to_string(),
    );
    let common_name = certificate.common_name.as_deref().unwrap_or_default();
    Some(format!("\n\t* {serial} {common_name} {error}"))
}

fn listed(heading: &str, lines: impl Iterator<Item = String>) -> Verdict {
    let lines: String = lines.collect();
    if lines.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!("{heading}{lines}")))
}

fn supported(certificate: &Certificate, rsa: bool) -> Result<(), String> {
    let signature = X509Certificate::from_der(&certificate.der)
        .map(|(_, parsed)| parsed.signature_algorithm.algorithm.to_id_string())
        .unwrap_or_default();
    match certificate.key {
        KeyKind::EcdsaP256 if signature == ECDSA_SHA256 || signature == SHA256_RSA => Ok(()),
        KeyKind::EcdsaP256 => Err(format!(
            "must be signed with ECDSA-SHA256 or SHA256-RSA, instead {signature} was used"
        )),
        KeyKind::EcdsaP384 => {
            Err("must use P-256 curve for public key, instead P-384 was used".to_owned())
        }
        KeyKind::EcdsaP521 => {
            Err("must use P-256 curve for public key, instead P-521 was used".to_owned())
        }
        KeyKind::Rsa(2048 | 4096) if rsa && signature == SHA256_RSA => Ok(()),
        KeyKind::Rsa(2048 | 4096) if rsa => Err(format!(
            "must be signed with SHA256-RSA, instead {signature} was used"
        )),
        KeyKind::Rsa(bits) if rsa => Err(format!(
            "RSA must use 2048 or 4096 bit keys, instead {bits} bits were used"
        )),
        other => Err(format!(
            "must use ECDSA P-256 for public key, instead {other} was used"
        )),
    }
}

fn date(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(
        |_| "a date beyond the calendar".to_owned(),
        |time| time.to_string(),
    )
}

pub(super) fn in_period(certificate: &Certificate, now: SystemTime) -> Result<(), String> {
    if now < certificate.not_before {
        return Err(format!(
            "not valid before: {}",
            date(certificate.not_before)
        ));
    }
    if now > certificate.not_after {
        return Err(format!(
            "not valid anymore. Expired on {}",
            date(certificate.not_after)
        ));
    }
    Ok(())
}

/// The anchors outside of their period, as lines of a list.
pub(super) fn outside_period(anchors: &[Certificate], now: SystemTime) -> Verdict {
    let bad = anchors
        .iter()
        .filter_map(|anchor| line(anchor, in_period(anchor, now)));
    listed("anchors not within their validity period:", bad)
}

pub(super) fn will_expire(certificate: &Certificate, now: SystemTime) -> Option<String> {
    let days = certificate.days_left(now);
    (now + SOON > certificate.not_after).then(|| {
        format!(
            "will expire on {} ({days} days left)",
            date(certificate.not_after)
        )
    })
}

pub(super) fn expiring_soon(anchors: &[Certificate], now: SystemTime) -> Verdict {
    let soon = anchors.iter().filter_map(|anchor| {
        let error = will_expire(anchor, now)?;
        line(anchor, Err(error))
    });
    listed("Anchors expiring soon:", soon)
}

/// Whether the chain leads to an anchor.
pub(super) fn issued(chain: &[Certificate], anchors: &[Certificate]) -> Result<(), String> {
    let unknown = || "x509: certificate signed by unknown authority".to_owned();
    let anchors =
        TrustAnchors::from_certificates(anchors.to_vec()).map_err(|error| error.to_string())?;
    let mut certificate = chain.first().ok_or_else(unknown)?;
    // Each step goes up, so that no more steps than certificates are needed.
    for _ in chain {
        if certificate.is_issued_under(&anchors) {
            return Ok(());
        }
        let above = chain.iter().find(|above| {
            let alone = TrustAnchors::from_certificates(vec![(*above).clone()]);
            alone.is_ok_and(|alone| certificate.is_issued_under(&alone))
        });
        certificate = above.ok_or_else(unknown)?;
    }
    Err(unknown())
}

async fn same_anchors(facts: &mut Facts) -> Verdict {
    let roots = trust_roots(facts).await?;
    let roots = TrustAnchors::from_pem("linkerd-identity-trust-roots", roots.as_bytes())
        .map_err(|error| Problem::failed(error.to_string()))?;
    let pods: Vec<Pod> = facts.data_plane(MESHED).await?;
    let same = |anchors: &TrustAnchors| anchors.same_as(&roots);
    let stale = trust::doubters(&facts.client()?, pods, facts.namespace(), same).await;
    let lines = stale
        .iter()
        .map(|pod| match &facts.settings.data_plane_namespace {
            Some(_) => format!("\n\t* {}", name(pod)),
            None => format!("\n\t* {}", place(pod)),
        });
    listed(
        "Some pods do not have the current trust bundle and must be restarted:",
        lines,
    )
}

#[cfg(test)]
mod tests;
