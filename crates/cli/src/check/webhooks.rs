//! `linkerd-webhooks-and-apisvc-tls`: the certificates with which the API server calls our webhooks.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::Facts,
    identity::{expiring_soon, in_period, issued, outside_period, pair, will_expire},
};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
};
use linkerd_tls::{Certificate, certificates_from_pem};

/// A webhook of the control plane.
#[derive(Clone, Copy, Debug)]
struct Webhook {
    /// `proxy-injector`, the middle of all its names.
    name: &'static str,
    mutating: bool,
    /// Older control planes have none.
    optional: bool,
}

const INJECTOR: Webhook = Webhook {
    name: "proxy-injector",
    mutating: true,
    optional: false,
};
const PROFILES: Webhook = Webhook {
    name: "sp-validator",
    mutating: false,
    optional: false,
};
const POLICY: Webhook = Webhook {
    name: "policy-validator",
    mutating: false,
    optional: true,
};

pub fn category() -> Category<Facts> {
    let valid = |webhook: Webhook, anchor: &'static str| {
        Check::new(
            format!("{} webhook has valid cert", webhook.name),
            anchor,
            move |facts| Box::pin(valid(facts, webhook)),
        )
        .fatal()
    };
    let lasting = |webhook: Webhook, anchor: &'static str| {
        let description = format!("{} cert is valid for at least 60 days", webhook.name);
        Check::new(description, anchor, move |facts| {
            Box::pin(lasting(facts, webhook))
        })
        .warning()
    };
    Category {
        id: "linkerd-webhooks-and-apisvc-tls",
        checks: vec![
            valid(INJECTOR, "l5d-proxy-injector-webhook-cert-valid"),
            lasting(
                INJECTOR,
                "l5d-proxy-injector-webhook-cert-not-expiring-soon",
            ),
            valid(PROFILES, "l5d-sp-validator-webhook-cert-valid"),
            lasting(PROFILES, "l5d-sp-validator-webhook-cert-not-expiring-soon"),
            valid(POLICY, "l5d-policy-validator-webhook-cert-valid"),
            lasting(
                POLICY,
                "l5d-policy-validator-webhook-cert-not-expiring-soon",
            ),
        ],
    }
}

async fn valid(facts: &mut Facts, webhook: Webhook) -> Verdict {
    let anchors = anchors(facts, webhook).await?;
    let (chain, key) = certificate(facts, webhook).await?;
    outside_period(&anchors, facts.now)?;
    in_period(&chain[0], facts.now)
        .map_err(|error| Problem::failed(format!("certificate is {error}")))?;
    let foreign =
        |error: String| Problem::failed(format!("cert is not issued by the trust anchor: {error}"));
    issued(&chain, &anchors).map_err(foreign)?;
    let wanted = format!("linkerd-{}.{}.svc", webhook.name, facts.namespace());
    let names: Vec<&str> = chain[0].names.iter().map(|name| name.as_str()).collect();
    if !names.contains(&wanted.as_str()) {
        let names = names.join(", ");
        return Err(foreign(format!(
            "x509: certificate is valid for {names}, not {wanted}"
        )));
    }
    pair(&chain, &key).map_err(Problem::Failed)
}

async fn lasting(facts: &mut Facts, webhook: Webhook) -> Verdict {
    let (chain, _) = certificate(facts, webhook).await?;
    if let Some(error) = will_expire(&chain[0], facts.now) {
        return Err(Problem::failed(format!("certificate {error}")));
    }
    expiring_soon(&chain[1..], facts.now)
}

/// What the API server believes in when it calls the webhook.
async fn anchors(facts: &Facts, webhook: Webhook) -> Result<Vec<Certificate>, Problem> {
    let name = format!("linkerd-{}-webhook-config", webhook.name);
    let bundles: Option<Vec<Option<ByteString>>> = if webhook.mutating {
        let found: Option<MutatingWebhookConfiguration> = facts.named(&name).await?;
        found.map(|found| {
            let webhooks = found.webhooks.unwrap_or_default().into_iter();
            webhooks
                .map(|webhook| webhook.client_config.ca_bundle)
                .collect()
        })
    } else {
        let found: Option<ValidatingWebhookConfiguration> = facts.named(&name).await?;
        found.map(|found| {
            let webhooks = found.webhooks.unwrap_or_default().into_iter();
            webhooks
                .map(|webhook| webhook.client_config.ca_bundle)
                .collect()
        })
    };
    let Some(bundles) = bundles else {
        if webhook.optional {
            return Err(Problem::skip(format!("{} is not installed", webhook.name)));
        }
        let kind = if webhook.mutating {
            "mutating"
        } else {
            "validating"
        };
        return Err(Problem::failed(format!(
            "{kind}webhookconfigurations.admissionregistration.k8s.io \"{name}\" not found"
        )));
    };
    let [bundle] = &bundles[..] else {
        return Err(Problem::failed(format!(
            "expected 1 webhooks, found {}",
            bundles.len()
        )));
    };
    let bundle = bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
    certificates_from_pem(bundle)
        .map_err(|error| Problem::failed(format!("failed to read the caBundle of {name}: {error}")))
}

/// The certificate with those above it, and the private key.
async fn certificate(
    facts: &Facts,
    webhook: Webhook,
) -> Result<(Vec<Certificate>, Vec<u8>), Problem> {
    let name = format!("linkerd-{}-k8s-tls", webhook.name);
    let mut keys = ["tls.crt", "tls.key"];
    let mut secret: Option<Secret> = facts.named_in(facts.namespace(), &name).await?;
    if secret.is_none() {
        keys = ["crt.pem", "key.pem"];
        let old = format!("linkerd-{}-tls", webhook.name);
        secret = facts.named_in(facts.namespace(), &old).await?;
    }
    let Some(secret) = secret else {
        if webhook.optional {
            return Err(Problem::skip(format!("{} is not installed", webhook.name)));
        }
        return Err(Problem::failed(format!("secrets \"{name}\" not found")));
    };
    let mut data = secret.data.unwrap_or_default();
    let found = secret.metadata.name.unwrap_or(name);
    let mut part = |key: &str| {
        data.remove(key)
            .ok_or_else(|| Problem::failed(format!("key {key} needs to exist in secret {found}")))
    };
    let (chain, key) = (part(keys[0])?, part(keys[1])?);
    let chain = certificates_from_pem(&chain.0).map_err(|error| {
        Problem::failed(format!(
            "failed to read the certificate in secret {found}: {error}"
        ))
    })?;
    Ok((chain, key.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says, now, verdict};
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use linkerd_tls::{Key, issuer::generate::self_signed_server};
    use serde_json::{Value, json};
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(86_400);

    fn server(dns: &str, days: u32) -> (Certificate, Key) {
        let from = now() - DAY * 10;
        self_signed_server(dns, (from, from + DAY * days)).expect("a certificate")
    }

    fn configuration(webhook: Webhook, anchors: &[&Certificate]) -> Value {
        let (prefix, plural) = if webhook.mutating {
            ("Mutating", "m")
        } else {
            ("Validating", "v")
        };
        let webhooks: Vec<Value> = anchors
            .iter()
            .map(|anchor| {
                json!({"name": plural, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                    "clientConfig": {"caBundle": STANDARD.encode(anchor.to_pem())}})
            })
            .collect();
        json!({"kind": format!("{prefix}WebhookConfiguration"), "apiVersion": "admissionregistration.k8s.io/v1",
            "metadata": {"name": format!("linkerd-{}-webhook-config", webhook.name)}, "webhooks": webhooks})
    }

    fn secret(webhook: Webhook, certificate: &Certificate, key: &Key) -> Value {
        json!({"kind": "Secret", "apiVersion": "v1",
            "metadata": {"name": format!("linkerd-{}-k8s-tls", webhook.name), "namespace": "linkerd"},
            "data": {"tls.crt": STANDARD.encode(certificate.to_pem()),
                "tls.key": STANDARD.encode(key.to_sec1_pem().expect("a key"))}})
    }

    #[tokio::test]
    async fn good_certificates_pass() {
        let mut objects = Vec::new();
        for webhook in [INJECTOR, PROFILES, POLICY] {
            let (certificate, key) = server(&format!("linkerd-{}.linkerd.svc", webhook.name), 365);
            objects.push(configuration(webhook, &[&certificate]));
            objects.push(secret(webhook, &certificate, &key));
        }
        let mut facts = Fake::of(objects).facts();
        let category = category();
        assert_eq!(category.checks.len(), 6);
        for check in &category.checks {
            assert_says(&category, &check.description, &mut facts, "").await;
        }
    }

    #[tokio::test]
    async fn each_trouble_has_its_message() {
        let name = "linkerd-sp-validator.linkerd.svc";
        let (certificate, key) = server(name, 365);
        let (other, other_key) = server("other.linkerd.svc", 365);
        let (expired, expired_key) = server(name, 5);
        let mut keyless = secret(PROFILES, &certificate, &key);
        keyless["data"]
            .as_object_mut()
            .expect("data")
            .shift_remove("tls.key");
        let missing = "validatingwebhookconfigurations.admissionregistration.k8s.io \"linkerd-sp-validator-webhook-config\" not found";
        let expired_anchor = verdict_of(&expired);
        for (case, objects, error) in [
            ("no configuration", vec![], missing.to_owned()),
            ("two webhooks", vec![configuration(PROFILES, &[&certificate, &other])], "expected 1 webhooks, found 2".to_owned()),
            ("no secret", vec![configuration(PROFILES, &[&certificate])], "secrets \"linkerd-sp-validator-k8s-tls\" not found".to_owned()),
            ("no key", vec![configuration(PROFILES, &[&certificate]), keyless], "key tls.key needs to exist in secret linkerd-sp-validator-k8s-tls".to_owned()),
            ("other anchor", vec![configuration(PROFILES, &[&other]), secret(PROFILES, &certificate, &key)],
                "cert is not issued by the trust anchor: x509: certificate signed by unknown authority".to_owned()),
            ("other name", vec![configuration(PROFILES, &[&other]), secret(PROFILES, &other, &other_key)],
                format!("cert is not issued by the trust anchor: x509: certificate is valid for other.linkerd.svc, not {name}")),
            ("other key", vec![configuration(PROFILES, &[&certificate]), secret(PROFILES, &certificate, &other_key)],
                "tls: Public and private key do not match".to_owned()),
            ("expired", vec![configuration(PROFILES, &[&certificate]), secret(PROFILES, &expired, &expired_key)],
                "certificate is not valid anymore. Expired on 2025-12-27T00:00:00Z".to_owned()),
            ("expired anchor", vec![configuration(PROFILES, &[&expired]), secret(PROFILES, &certificate, &key)], expired_anchor),
        ] {
            let mut facts = Fake::of(objects).facts();
            let found = verdict(&category(), "sp-validator webhook has valid cert", &mut facts).await;
            assert_eq!(found, Err(Problem::Failed(error)), "{case}");
        }
    }

    fn verdict_of(anchor: &Certificate) -> String {
        match outside_period(std::slice::from_ref(anchor), now()) {
            Err(Problem::Failed(error)) => {
                assert!(
                    error.starts_with("anchors not within their validity period:\n\t* "),
                    "{error}"
                );
                error
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn certificates_near_their_end_warn() {
        let (certificate, key) = server("linkerd-proxy-injector.linkerd.svc", 30);
        let objects = vec![
            configuration(INJECTOR, &[&certificate]),
            secret(INJECTOR, &certificate, &key),
        ];
        let mut facts = Fake::of(objects).facts();
        let error = "certificate will expire on 2026-01-21T00:00:00Z (20 days left)";
        assert_says(
            &category(),
            "proxy-injector cert is valid for at least 60 days",
            &mut facts,
            error,
        )
        .await;
    }

    /// Control planes of old called the Secret, and what is in it, otherwise.
    #[tokio::test]
    async fn the_older_secret_is_read() {
        let (certificate, key) = server("linkerd-proxy-injector.linkerd.svc", 365);
        let mut old = secret(INJECTOR, &certificate, &key);
        old["metadata"]["name"] = json!("linkerd-proxy-injector-tls");
        let keys = old["data"].clone();
        old["data"] = json!({"crt.pem": keys["tls.crt"], "key.pem": keys["tls.key"]});
        let mut keyless = old.clone();
        keyless["data"] = json!({"crt.pem": keys["tls.crt"]});
        let row = "proxy-injector webhook has valid cert";
        let lost = "key key.pem needs to exist in secret linkerd-proxy-injector-tls";
        for (secret, error) in [(old, ""), (keyless, lost)] {
            let objects = vec![configuration(INJECTOR, &[&certificate]), secret];
            assert_says(&category(), row, &mut Fake::of(objects).facts(), error).await;
        }
    }

    #[tokio::test]
    async fn a_chain_near_its_end_warns() {
        let (certificate, key) = server("linkerd-proxy-injector.linkerd.svc", 365);
        let (above, _) = server("above.linkerd.svc", 30);
        let mut chained = secret(INJECTOR, &certificate, &key);
        let chain = format!("{}{}", certificate.to_pem(), above.to_pem());
        chained["data"]["tls.crt"] = json!(STANDARD.encode(chain));
        let mut facts = Fake::of(vec![chained]).facts();
        let row = "proxy-injector cert is valid for at least 60 days";
        let found = verdict(&category(), row, &mut facts).await;
        assert!(
            matches!(&found, Err(Problem::Failed(error)) if error.starts_with("Anchors expiring soon:\n\t* ")
                && error.ends_with(" will expire on 2026-01-21T00:00:00Z (20 days left)")),
            "{found:?}"
        );
    }

    /// The rows of the other two webhooks fail as those of the validator of profiles do.
    #[tokio::test]
    async fn every_webhook_fails_in_its_own_rows() {
        for webhook in [INJECTOR, PROFILES, POLICY] {
            let dns = format!("linkerd-{}.linkerd.svc", webhook.name);
            let (expired, expired_key) = server(&dns, 5);
            let (ending, ending_key) = server(&dns, 30);
            let valid = format!("{} webhook has valid cert", webhook.name);
            let lasting = format!("{} cert is valid for at least 60 days", webhook.name);
            let (good, _) = server(&dns, 365);
            let objects = vec![
                configuration(webhook, &[&good]),
                secret(webhook, &expired, &expired_key),
            ];
            let error = "certificate is not valid anymore. Expired on 2025-12-27T00:00:00Z";
            assert_says(&category(), &valid, &mut Fake::of(objects).facts(), error).await;
            let objects = vec![secret(webhook, &ending, &ending_key)];
            let error = "certificate will expire on 2026-01-21T00:00:00Z (20 days left)";
            assert_says(&category(), &lasting, &mut Fake::of(objects).facts(), error).await;
        }
    }

    #[tokio::test]
    async fn the_policy_validator_may_be_absent() {
        let mut facts = Fake::of(vec![]).facts();
        for description in [
            "policy-validator webhook has valid cert",
            "policy-validator cert is valid for at least 60 days",
        ] {
            let skipped = verdict(&category(), description, &mut facts).await;
            assert!(matches!(skipped, Err(Problem::Skip(_))), "{description}");
        }
    }
}
