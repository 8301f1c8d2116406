//! Another user of this machine, for tests that run as root: a user without groups and privileges.
//!
//! ```no_run
//! # use ccl_tests::other_user::OtherUser;
//! let Some(other) = OtherUser::for_test("the_name_of_the_test") else { return };
//! // In a forked child that is the other user; what it returns comes back.
//! let tried = other.act(|| std::fs::read_to_string("/etc/shadow").map_err(|e| e.to_string()));
//! assert!(tried.is_err());
//! // A program of this workspace, copied to where the other user may run it.
//! let output = other.command("ccl-inspect").arg("ps").output().unwrap();
//! ```

use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::program;

/// The uid and gid of the other user.
///
/// They are assigned to no user, and are not those for unmapped users (65534).
pub const UID: u32 = 65533;

/// The other user, with a folder of its own; the folder is removed when this is dropped.
#[derive(Debug)]
pub struct OtherUser {
    folder: tempfile::TempDir,
}

impl OtherUser {
    /// The other user for the test `name`.
    ///
    /// `None` if the test is not root and so cannot become another user: the test is then reported
    /// as skipped and must return.
    ///
    /// # Panics
    /// If root cannot create a folder.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    pub fn for_test(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: {name}: needs root, to start processes of another user");
            return None;
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(mode).tempdir().expect("a temporary folder");
        chown(folder.path(), Some(UID), Some(UID)).expect("root gives folders away");
        Some(Self { folder })
    }

    /// A folder of the other user, with mode 0700.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A copy of a program of this workspace that the other user may run.
    ///
    /// The workspace may lie where that user cannot read it.
    ///
    /// # Panics
    /// If the program was not built or cannot be copied.
    #[must_use]
    pub fn copy(&self, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        if !copy.exists() {
            // A partial copy under the final name could be run by a test beside this one.
            let half = tempfile::NamedTempFile::new_in(self.folder.path()).expect("a file");
            std::fs::copy(program(name), half.path()).expect("a copy");
            half.into_temp_path().persist(&copy).expect("a copy under its name");
        }
        copy
    }

    /// A command that runs a program of this workspace as the other user, to be extended.
    ///
    /// Its runtime folder is [`OtherUser::folder`].
    ///
    /// # Panics
    /// As [`OtherUser::copy`].
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.copy(name));
        // If a uid is set and the caller is root, the standard library drops all groups too.
        command.uid(UID).gid(UID).current_dir(self.folder.path());
        command.env("CCL_RUNTIME_DIR", self.folder.path()).env("HOME", self.folder.path());
        command
    }

    /// The words that run the following program as the other user.
    ///
    /// They are for [`crate::job::Setting::wrap`]. The program is replaced by its copy, and its
    /// runtime folder is [`OtherUser::folder`].
    ///
    /// # Panics
    /// As [`OtherUser::copy`].
    #[must_use]
    pub fn words(&self, name: &str) -> Vec<String> {
        let (uid, gid) = (format!("--reuid={UID}"), format!("--regid={UID}"));
        let runtime = format!("CCL_RUNTIME_DIR={}", self.folder.path().display());
        let script = format!("shift; exec '{}' \"$@\"", self.copy(name).display());
        ["setpriv", &uid, &gid, "--clear-groups", "env", &runtime, "sh", "-c", &script, "sh"]
            .map(String::from)
            .to_vec()
    }

    /// Runs `work` in a forked child as the other user, and returns the result.
    ///
    /// The child has one thread: it must not need locks that other threads of the test may hold, so
    /// it prints nothing.
    ///
    /// # Errors
    /// Those of `work`, or how the child ended instead.
    ///
    /// # Panics
    /// If the machine refuses to fork.
    pub fn act(&self, work: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
        let (mut from_child, mut to_parent) = std::io::pipe().expect("a pipe");
        // SAFETY: the child runs `work` and exits without returning into the test; glibc makes its
        // allocator usable there.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork refused");
        if pid == 0 {
            let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                become_other()?;
                work()
            }));
            let (good, text) = match tried {
                Ok(Ok(text)) => (true, text),
                Ok(Err(text)) => (false, text),
                Err(_) => (false, "the child panicked".to_string()),
            };
            let _ = to_parent.write_all(text.as_bytes());
            // SAFETY: it ends this child, which has nothing to clean up.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        drop(to_parent);
        let mut text = String::new();
        let _ = from_child.read_to_string(&mut text);
        let mut status = 0;
        // SAFETY: `status` is a place for the result; the child is ours.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => Ok(text),
            (true, _) => Err(text),
            (false, _) => Err(format!("the child ended with wait status {status:#x}: {text}")),
        }
    }
}

/// Gives up all rights of root permanently.
fn become_other() -> Result<(), String> {
    let check = |status: libc::c_int| {
        (status == 0).then_some(()).ok_or_else(|| std::io::Error::last_os_error().to_string())
    };
    // SAFETY: none of these takes memory, except an empty list of groups.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(UID, UID, UID))?;
        check(libc::setresuid(UID, UID, UID))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_user_has_nothing_of_root() {
        let Some(other) = OtherUser::for_test("the_other_user_has_nothing_of_root") else { return };
        let secret = tempfile::NamedTempFile::new().expect("a file of root");
        let path = secret.path().to_path_buf();
        let tried = other.act(|| std::fs::read_to_string(&path).map_err(|e| e.to_string()));
        assert!(tried.is_err_and(|why| why.contains("Permission denied")));
        let mine = other.folder().join("mine");
        assert_eq!(
            other.act(|| std::fs::write(&mine, "x").map(|()| "written".into()).map_err(|e| e.to_string())),
            Ok("written".into())
        );
        assert!(other.act(|| panic!("as it may")).is_err());
        let id = Command::new("id").arg("-G").uid(UID).gid(UID).output().expect("id runs");
        assert_eq!(String::from_utf8_lossy(&id.stdout).trim(), UID.to_string());
    }
}
