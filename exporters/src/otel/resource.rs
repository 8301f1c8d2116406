//! The resource of the sender: values from the environment and from the recorder.

use std::collections::BTreeMap;

use ccl::snapshot::{CommSnapshot, ProcessSnapshot};
use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{ResourceDetector, TelemetryResourceDetector};

use super::settings::Settings;

/// The resource of a process's rank. `program` is its name, if it is another process.
pub(super) fn of(
    process: &ProcessSnapshot,
    comm: &CommSnapshot,
    program: Option<&str>,
    settings: &Settings,
) -> Resource {
    let own = || std::env::current_exe().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let program = program.map(ToString::to_string).or_else(own).unwrap_or_default();
    let mut all: BTreeMap<Key, Value> = BTreeMap::new();
    let found = TelemetryResourceDetector.detect();
    all.extend(found.iter().map(|(key, value)| (key.clone(), value.clone())));
    all.insert("service.name".into(), format!("unknown_service:{program}").into());
    all.insert("process.executable.name".into(), program.into());
    all.insert("process.pid".into(), i64::from(process.pid).into());
    all.insert("host.name".into(), host(process).into());
    let said = settings.attributes.iter().map(|(key, value)| (key.clone().into(), value.clone().into()));
    all.extend(said);
    all.extend(settings.service.iter().map(|name| ("service.name".into(), name.clone().into())));
    // The environment cannot override the job and the rank.
    all.insert("ccl.job".into(), comm.job.to_string().into());
    all.insert("ccl.rank".into(), i64::from(comm.world.0).into());
    let pairs = all.into_iter().map(|(key, value)| KeyValue::new(key, value));
    Resource::builder_empty().with_attributes(pairs).build()
}

/// The host as the job sees it: several may share a kernel, with different `CCL_HOSTID`.
fn host(process: &ProcessSnapshot) -> String {
    match process.host_id.as_str() {
        "" => process.host.clone(),
        id => format!("{}/{id}", process.host),
    }
}

#[cfg(test)]
mod tests {
    use ccl::types::{JobId, Rank};

    use super::*;

    fn check(variables: &[(&str, &str)], host_id: &str, expect: &[(&str, &str)]) {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
        };
        let settings = Settings::read(&variable);
        let process =
            ProcessSnapshot { host: "node".into(), host_id: host_id.into(), pid: 71, ..Default::default() };
        let comm = CommSnapshot { job: JobId(0xab), world: Rank(3), ..Default::default() };
        let resource = of(&process, &comm, Some("train"), &settings);
        for (key, value) in expect {
            let found = resource.get(&Key::new(key.to_string())).map(|value| value.to_string());
            assert_eq!(found.as_deref(), Some(*value), "{key} of {variables:?}");
        }
    }

    #[test]
    fn what_the_environment_says_goes_before_what_was_found_and_the_service_name_before_all() {
        let found = [
            ("service.name", "unknown_service:train"),
            ("process.executable.name", "train"),
            ("process.pid", "71"),
            ("host.name", "node"),
            ("ccl.job", "00000000000000ab"),
            ("ccl.rank", "3"),
            ("telemetry.sdk.language", "rust"),
        ];
        check(&[], "", &found);
        check(&[], "host1", &[("host.name", "node/host1")]);
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=of%20all,host.name=mine,ccl.rank=9");
        check(
            &[attributes],
            "host1",
            &[("service.name", "of all"), ("host.name", "mine"), ("ccl.rank", "3")],
        );
        check(&[attributes, ("OTEL_SERVICE_NAME", "own")], "", &[("service.name", "own")]);
        check(&[attributes, ("OTEL_SERVICE_NAME", "")], "", &[("service.name", "of all")]);
    }
}
