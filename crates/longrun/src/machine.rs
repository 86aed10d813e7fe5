//! What the operating system says of this process.

/// The most memory that was ever resident, where the system tells.
pub(crate) fn peak_rss() -> Option<u64> {
    status("VmHWM:")
}

/// The memory that is resident now, where the system tells.
pub(crate) fn rss() -> Option<u64> {
    status("VmRSS:")
}

/// Bytes of memory that are free to take, where the system tells: what is there, less what a group of processes may not
/// have.
pub(crate) fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let free = usize::try_from(field(&text, "MemAvailable:")?).ok()?;
    let group = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<usize>().ok()
    };
    match (group("memory.max"), group("memory.current")) {
        (Some(most), Some(taken)) => Some(free.min(most.saturating_sub(taken))),
        _ => Some(free),
    }
}

/// The name of the processor, where the system tells.
pub(crate) fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn status(name: &str) -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, name)
}

/// The bytes of a line `NAME N kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
