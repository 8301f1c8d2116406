//! A control group of version 1 for the processes of a test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock;

/// The group; removed when dropped, after the last of its processes.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// A group of this controller, such as `memory`, with a name that begins with `name`.
    ///
    /// `None` if it cannot be made.
    #[must_use]
    pub fn new(controller: &str, name: &str) -> Option<Self> {
        let path = Path::new("/sys/fs/cgroup").join(controller);
        let path = path.join(format!("ccl-{name}-{}", std::process::id()));
        let is_made = std::fs::create_dir(&path).is_ok() && path.join("cgroup.procs").exists();
        // Dropped where it is not one, it is removed.
        let group = Self(path);
        is_made.then_some(group)
    }

    /// The group for the test `test`.
    ///
    /// `None` if it cannot be made: the test is then reported as skipped and must return.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    pub fn for_test(controller: &str, test: &str) -> Option<Self> {
        let group = Self::new(controller, test);
        if group.is_none() {
            println!("skipped: {test}: needs root's control groups");
        }
        group
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes one of its files.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn set(&self, file: &str, value: &str) {
        let written = std::fs::write(self.0.join(file), value);
        assert!(written.is_ok(), "{file} of {}: {written:?}", self.0.display());
    }

    /// The words that run the following command in it.
    #[must_use]
    pub fn entry(&self) -> Vec<String> {
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.0.display());
        ["sh", "-c", &script, "sh"].map(String::from).to_vec()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What is frozen could not end.
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        // The kernel frees the group's last process a moment after it was waited for.
        let end = clock::now().after(Duration::from_secs(5));
        while self.0.exists() && std::fs::remove_dir(&self.0).is_err() && clock::now() < end {
            clock::sleep(Duration::from_millis(20));
        }
    }
}
