//! `bench watched`: the cost of being watched for a job.

use std::path::PathBuf;
use std::time::Duration;

use ccl::clock;
use ccl::control::wire::Client;
use rustix::process::Signal;

use crate::statistics::{median, middle};
use crate::{RANKS, ours_in, within};

/// Measures the cost of being watched.
///
/// A client attaches, subscribes at 10 Hz and leaves again, this many times, while ranks call back
/// to back. Turns with and without the client alternate. Prints medians, and means beside them
/// because the client has no processor of its own.
pub(crate) fn watched(times: usize) {
    const WINDOW: Duration = Duration::from_millis(250);
    const EVERY: Duration = Duration::from_millis(100);
    println!("attached and left {times} times, subscribed every {} ms", EVERY.as_millis());
    for (bytes, ms) in [(8, 1.0), (64 << 10, 2.0)] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let pair = ours_in(folder.path(), bytes, ms);
        pair.signal(Signal::CONT);
        let runtime = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        let inside =
            runtime.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap().flatten());
        let sockets: Vec<PathBuf> = inside
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|e| e == "sock"))
            .collect();
        assert_eq!(sockets.len(), RANKS as usize, "each rank has a control socket");
        let mut windows = [Vec::new(), Vec::new()];
        for _ in 0..times {
            let began = clock::now();
            clock::sleep(WINDOW);
            let between = clock::now();
            let mut watchers: Vec<_> = sockets
                .iter()
                .map(|path| {
                    Client::connect_within(path, Duration::from_secs(5)).unwrap().subscribe(EVERY).unwrap()
                })
                .collect();
            while clock::now().since(between) < WINDOW {
                for watcher in &mut watchers {
                    watcher.next(Duration::from_secs(5)).unwrap();
                }
            }
            drop(watchers);
            windows[0].push((began.0, between.0));
            windows[1].push((between.0, clock::now().0));
        }
        let batches = pair.end();
        let of = |windows: &[(u64, u64)]| -> Vec<f64> {
            let inside = |at: u64| windows.iter().any(|(from, to)| (*from..=*to).contains(&at));
            batches
                .windows(2)
                .filter(|two| inside(two[0].0) && inside(two[1].0))
                .map(|two| two[1].1)
                .collect()
        };
        let [alone, watched] = [of(&windows[0]), of(&windows[1])];
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        println!(
            "  {bytes} bytes: alone {} us (mean {:.3}), watched {} us (mean {:.3}); {} and {} batches",
            middle(&alone),
            mean(&alone),
            middle(&watched),
            mean(&watched),
            alone.len(),
            watched.len()
        );
        // The same windows, compared one by one, show the effect of chance.
        let each: Vec<f64> = windows[0]
            .iter()
            .zip(&windows[1])
            .filter_map(|(a, b)| Some((within(&batches, *b)? - within(&batches, *a)?) * 1e3))
            .collect();
        println!(
            "  watching adds {:.1} ns to the median; window by window {} ns",
            (median(watched) - median(alone)) * 1e3,
            middle(&each)
        );
    }
}
