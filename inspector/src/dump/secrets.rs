//! Which environment variables of a process may leave the machine, and how they are written.

use ccl::config::ROWS;

/// The settings of OpenTelemetry that its exporters read.
const OTEL: &[&str] = &[
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_PROPAGATORS",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_LOGS_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
];
/// The settings of one exporter; they begin with `OTEL_EXPORTER_OTLP_` and may name a signal.
const OTLP: &[&str] = &["ENDPOINT", "PROTOCOL", "TIMEOUT", "COMPRESSION", "INSECURE", "HEADERS"];
/// The replacement for a value that is not shown.
const MASKED: &str = "...";
/// Hexadecimal digits in a row that may be a key.
///
/// 32 bytes, as in job secrets and the key of a unique id.
const KEY_DIGITS: usize = 64;

/// The settings in an environment as the kernel shows it, by name.
///
/// Values that may be secret are masked.
pub(super) fn settings(environment: &[u8]) -> Vec<(String, String)> {
    let variables = environment.split(|byte| *byte == 0).filter_map(|one| {
        let text = String::from_utf8_lossy(one);
        let (name, value) = text.split_once('=')?;
        is_setting(name).then(|| (name.to_string(), masked(name, value)))
    });
    let mut settings: Vec<_> = variables.collect();
    settings.sort();
    settings
}

fn is_setting(name: &str) -> bool {
    let of_otlp = |rest: &str| {
        let rest = ["TRACES_", "METRICS_", "LOGS_"].iter().find_map(|s| rest.strip_prefix(s)).unwrap_or(rest);
        OTLP.contains(&rest)
    };
    ROWS.iter().any(|row| row.name == name)
        || OTEL.contains(&name)
        || name.strip_prefix("OTEL_EXPORTER_OTLP_").is_some_and(of_otlp)
}

fn masked(name: &str, value: &str) -> String {
    // Headers carry tokens.
    if name.contains("SECRET") || name.ends_with("HEADERS") || holds_a_key(value) {
        return MASKED.to_string();
    }
    // An address may carry a name and a password before the host, and a token after the path.
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_string() };
    let (place, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let place =
        place.rsplit_once('@').map_or_else(|| place.to_string(), |(_, rest)| format!("{MASKED}@{rest}"));
    let query = if query.is_empty() { String::new() } else { format!("?{MASKED}") };
    format!("{scheme}://{place}{query}")
}

fn holds_a_key(value: &str) -> bool {
    value.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() >= KEY_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variable: &str, expect: Option<&str>) {
        let found = settings(variable.as_bytes());
        let written: Vec<_> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(written, expect.into_iter().collect::<Vec<_>>(), "{variable}");
    }

    #[test]
    fn only_settings_are_shown() {
        check("CCL_TIMEOUT=5", Some("CCL_TIMEOUT=5"));
        check("OTEL_SERVICE_NAME=train=1", Some("OTEL_SERVICE_NAME=train=1"));
        check("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc", Some("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc"));
        for other in
            ["HOME=/root", "CCL_SOMETHING=1", "OTEL_MY_TOKEN=1", "AWS_SECRET_ACCESS_KEY=1", "CCL_TIMEOUT"]
        {
            check(other, None);
        }
        let both = settings(b"CCL_LEVEL=2\0PATH=/bin\0CCL_ALGO=ring\0");
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(both, [pair("CCL_ALGO", "ring"), pair("CCL_LEVEL", "2")]);
    }

    #[test]
    fn secrets_are_masked() {
        check("CCL_JOB_SECRET=hush", Some("CCL_JOB_SECRET=..."));
        check("CCL_JOB_SECRET_FILE=/hush", Some("CCL_JOB_SECRET_FILE=..."));
        check("OTEL_EXPORTER_OTLP_HEADERS=authorization=hush", Some("OTEL_EXPORTER_OTLP_HEADERS=..."));
        check("OTEL_EXPORTER_OTLP_LOGS_HEADERS=a=hush", Some("OTEL_EXPORTER_OTLP_LOGS_HEADERS=..."));
        check(&format!("CCL_COMM_ID={}", "a7".repeat(128)), Some("CCL_COMM_ID=..."));
        check("CCL_COMM_ID=10.0.0.1:29500", Some("CCL_COMM_ID=10.0.0.1:29500"));
        check(
            "OTEL_EXPORTER_OTLP_ENDPOINT=https://me:hush@host:4317/v1?token=hush",
            Some("OTEL_EXPORTER_OTLP_ENDPOINT=https://...@host:4317/v1?..."),
        );
        check(
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://host?token=hush",
            Some("OTEL_EXPORTER_OTLP_ENDPOINT=http://host?..."),
        );
    }
}
