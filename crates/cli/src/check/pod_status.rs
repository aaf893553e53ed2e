//! A pod's state in one word, as `kubectl get pods` shows it in the column STATUS.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// `Running`, `Pending`, `CrashLoopBackOff`, `Init:0/2`, `Completed`, …
pub fn status(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "Unknown".to_owned();
    };
    let phase = status.phase.clone().unwrap_or_default();
    let mut word = status
        .reason
        .clone()
        .filter(|reason| !reason.is_empty())
        .unwrap_or_else(|| phase.clone());
    let initializing = initializing(pod);
    match &initializing {
        Some(init) => word.clone_from(init),
        None => {
            let mut running = false;
            for container in status.container_statuses.iter().flatten().rev() {
                match state(container) {
                    State::Waiting(reason) | State::Terminated(reason) => word = reason,
                    State::Running if container.ready => running = true,
                    State::Running | State::Other => {}
                }
            }
            if word == "Completed" && running {
                let ready = status
                    .conditions
                    .iter()
                    .flatten()
                    .any(|condition| condition.type_ == "Ready" && condition.status == "True");
                word = if ready { "Running" } else { "NotReady" }.to_owned();
            }
        }
    }
    if pod.metadata.deletion_timestamp.is_some() {
        word = match status.reason.as_deref() {
            Some("NodeLost") => "Unknown".to_owned(),
            _ => "Terminating".to_owned(),
        };
    }
    word
}

enum State {
    Waiting(String),
    Terminated(String),
    Running,
    Other,
}

fn state(container: &ContainerStatus) -> State {
    let Some(state) = &container.state else {
        return State::Other;
    };
    if let Some(reason) = state
        .waiting
        .as_ref()
        .and_then(|waiting| waiting.reason.clone())
        && !reason.is_empty()
    {
        return State::Waiting(reason);
    }
    if let Some(terminated) = &state.terminated {
        let reason = terminated
            .reason
            .clone()
            .filter(|reason| !reason.is_empty());
        return State::Terminated(reason.unwrap_or_else(|| match terminated.signal {
            Some(signal) if signal != 0 => format!("Signal:{signal}"),
            _ => format!("ExitCode:{}", terminated.exit_code),
        }));
    }
    if state.running.is_some() {
        State::Running
    } else {
        State::Other
    }
}

/// What the first unfinished init container does; none once all are done or, being sidecars, ready.
fn initializing(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let specs = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: Vec<&str> = specs
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let total = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_ref())
        .map_or(statuses.len(), Vec::len);
    for (at, container) in statuses.iter().enumerate() {
        let sidecar = sidecars.contains(&container.name.as_str());
        let terminated = container
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        if terminated.is_some_and(|terminated| terminated.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) && container.ready {
            continue;
        }
        return Some(match state(container) {
            State::Terminated(reason) => format!("Init:{reason}"),
            State::Waiting(reason) if reason != "PodInitializing" => format!("Init:{reason}"),
            _ => format!("Init:{at}/{total}"),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(name: &str, ready: bool, state: Value) -> Value {
        json!({"name": name, "ready": ready, "started": ready, "state": state, "image": "", "imageID": "", "restartCount": 0})
    }

    #[test]
    fn one_word_per_pod() {
        let running = || container("app", true, json!({"running": {}}));
        for (name, spec, status_of, expected) in [
            (
                "running",
                json!({}),
                json!({"phase": "Running", "containerStatuses": [running()]}),
                "Running",
            ),
            ("pending", json!({}), json!({"phase": "Pending"}), "Pending"),
            (
                "evicted",
                json!({}),
                json!({"phase": "Failed", "reason": "Evicted"}),
                "Evicted",
            ),
            (
                "crash loop",
                json!({}),
                json!({"phase": "Running", "containerStatuses": [
                container("app", false, json!({"waiting": {"reason": "CrashLoopBackOff"}}))]}),
                "CrashLoopBackOff",
            ),
            (
                "completed",
                json!({}),
                json!({"phase": "Succeeded", "containerStatuses": [
                container("app", false, json!({"terminated": {"exitCode": 0, "reason": "Completed"}}))]}),
                "Completed",
            ),
            (
                "exit code",
                json!({}),
                json!({"phase": "Failed", "containerStatuses": [
                container("app", false, json!({"terminated": {"exitCode": 3}}))]}),
                "ExitCode:3",
            ),
            (
                "init",
                json!({"initContainers": [{"name": "i"}, {"name": "j"}]}),
                json!({"phase": "Pending",
                "initContainerStatuses": [container("i", false, json!({"running": {}}))]}),
                "Init:0/2",
            ),
            (
                "init failed",
                json!({"initContainers": [{"name": "i"}]}),
                json!({"phase": "Pending",
                "initContainerStatuses": [container("i", false, json!({"terminated": {"exitCode": 1, "reason": "Error"}}))]}),
                "Init:Error",
            ),
            (
                "native sidecar",
                json!({"initContainers": [{"name": "p", "restartPolicy": "Always"}]}),
                json!({"phase": "Running",
                "initContainerStatuses": [container("p", true, json!({"running": {}}))], "containerStatuses": [running()]}),
                "Running",
            ),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let pod = json!({"metadata": {}, "spec": spec, "status": status_of});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            assert_eq!(status(&pod), expected, "{name}");
        }
    }

    #[test]
    fn a_deleted_pod_is_terminating() {
        let pod = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        assert_eq!(status(&pod), "Terminating");
    }
}
