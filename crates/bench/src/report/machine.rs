//! The machine in one line.

/// CPU, kernel, memory.
pub(super) fn description() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown CPU", |rest| {
            rest.trim_start_matches(['\t', ' ', ':'])
        });
    let cores = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kernel = read("/proc/sys/kernel/osrelease");
    let memory = read("/proc/meminfo");
    let kilobytes: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    let congestion = read("/proc/sys/net/ipv4/tcp_congestion_control");
    format!(
        "Machine: {model}, {cores} cores, {} GB, Linux {}, congestion control {}.",
        kilobytes / (1024 * 1024),
        kernel.trim().split('-').next().unwrap_or_default(),
        congestion.trim()
    )
}
