//! What the operating system says of this process.

/// The most memory that was ever resident, where the system tells.
pub(crate) fn peak_rss() -> Option<u64> {
    status("VmHWM:")
}

/// The memory that is resident now, where the system tells.
pub(crate) fn rss() -> Option<u64> {
    status("VmRSS:")
}

/// The name of the processor, where the system tells.
pub(crate) fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn status(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
