//! What readers of the recorder see of the ports of open devices: their state and counts once a
//! second, and what a device reports by itself at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::hca::{Hca, OPEN};
use super::port::Gid;
use crate::clock::{self, Ns};
use crate::config::Settings;
use crate::event::{DeviceName, Event, publish};
use crate::notice::{self, Level};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::recorder::{PortCounts, PortSample, Recorder};
use crate::snapshot::PortStanding;
use crate::sys::verbs::{About, Address, AsyncEvent, Context};

/// The counters of a device that are added up, by the count of the recorder that they become.
/// Drivers have different names: the first ones are those of the driver of soft-RoCE, the last ones
/// mlx5's.
const COUNTERS: [&[&str]; 4] = [
    &["completer_retry_err", "local_ack_timeout_err"],
    &["rcvd_seq_err", "packet_seq_err"],
    &["rcvd_rnr_err", "rnr_nak_retry_err"],
    &["retry_exceeded_err", "retry_rnr_exceeded_err"],
];

/// What is told of an open device.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// The task that reads what the device reports. It ends before the device is closed.
    reports: Option<Handle>,
    /// The ports that are used, with their addresses.
    ports: BTreeMap<u8, Option<Gid>>,
}

impl Watched {
    /// Tells of a port of this device from now on.
    pub(super) fn add(&self, hca: &Arc<Hca>, settings: &Settings, port: u8, gid: Option<Gid>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.ports.insert(port, gid);
        if told.reports.is_none() {
            let task = Reports {
                hca: Arc::downgrade(hca),
                context: Arc::clone(hca.context()),
                settings: settings.clone(),
                last: BTreeMap::new(),
            };
            // Without the task the device works, and nobody hears what it reports.
            told.reports = Service::get().and_then(|service| service.add(task)).ok();
        }
    }

    fn ports(&self) -> Vec<(u8, Option<Gid>)> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.ports.iter().map(|(port, gid)| (*port, *gid)).collect()
    }
}

/// Reads what a device reports by itself.
struct Reports {
    /// Weak: the device has this task.
    hca: Weak<Hca>,
    context: Arc<Context>,
    settings: Settings,
    /// By port, what was reported last.
    last: BTreeMap<u8, u32>,
}

impl Task for Reports {
    fn interests(&self, out: &mut Vec<Interest>) {
        out.push(Interest { fd: self.context.events(), read: true, write: false });
    }

    fn turn(&mut self, _: Ns) -> Turn {
        let mut events = Vec::new();
        while let Some(event) = self.context.event() {
            events.push(event);
        }
        // What was sampled before may not be so any more. A sample ends rows that it leaves out,
        // which an event may have.
        if let Some(recorder) = Recorder::of_process().filter(|_| !events.is_empty()) {
            sample(&recorder);
        }
        events.iter().for_each(|event| self.tell(event));
        Turn::Again(None)
    }
}

impl Reports {
    fn tell(&mut self, event: &AsyncEvent) {
        let (name, code) = (self.context.name(), event.code);
        // After these nothing completes that would tell.
        if matches!(code, AsyncEvent::DEVICE_FATAL | AsyncEvent::QUEUE_ERROR)
            && let Some(hca) = self.hca.upgrade()
        {
            hca.fail(format!("the device {name} reported {}", event.name()));
        }
        let (port, place) = match event.about {
            About::Port(port) => (port, format!("device {name} port {port}")),
            About::Device => (0, format!("device {name}")),
            // The completions of its work requests tell.
            About::QueuePair(_) | About::Queue => return,
        };
        if let Some(recorder) = Recorder::of_process() {
            recorder.port_event(name, port, code, clock::raw());
            let device = DeviceName::of(name);
            publish(&mut recorder.events(), || Event::PortChanged { port, code, device });
        }
        let is_bad = matches!(code, AsyncEvent::PORT_ERROR | AsyncEvent::DEVICE_FATAL);
        let level = if is_bad { Level::Warn } else { Level::Info };
        if self.last.insert(port, code) != Some(code) {
            notice::say(&self.settings, level, &format!("{place}: {}", event.name()));
        }
    }
}

/// Samples the ports of all open devices.
pub(crate) fn sample(recorder: &Recorder) {
    // Who holds it may wait for this thread.
    let Ok(open) = OPEN.try_lock() else { return };
    let open: Vec<Arc<Hca>> = open.iter().filter_map(Weak::upgrade).collect();
    let samples: Vec<PortSample> = open.iter().flat_map(|hca| ports_of(hca)).collect();
    recorder.sample_ports(&samples, clock::raw());
}

fn ports_of(hca: &Hca) -> Vec<PortSample> {
    let context = hca.context();
    let sample = |(port, gid): (u8, Option<Gid>)| {
        let state = context.port(port).ok()?;
        Some(PortSample {
            device: hca.name().to_string(),
            port,
            address: gid.map_or(Address::Lid(state.lid), |gid| Address::Gid(gid.address)),
            layer: state.link_layer.into(),
            state: PortStanding::numbered(u8::try_from(state.state).unwrap_or(0)),
            speed_mbps: state.speed_mbps(),
            counts: counts(hca.name(), port),
        })
    };
    hca.watched().ports().into_iter().filter_map(sample).collect()
}

/// What a device counts.
fn counts(device: &str, port: u8) -> PortCounts {
    let read = |name: &&str| {
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters/{name}");
        std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    COUNTERS.map(|names| names.iter().filter_map(read).reduce(u64::saturating_add))
}
