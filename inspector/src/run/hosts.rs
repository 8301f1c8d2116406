//! Emulated hosts: one network namespace each, joined by veth pairs to a bridge in a namespace of
//! its own.
//!
//! No address, interface or name of the machine is touched, and none can collide.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long one step of the setup may take; each is a few milliseconds of kernel work.
const STEP: Duration = Duration::from_secs(10);

/// The network that joins the emulated hosts; removed when dropped.
#[derive(Debug)]
pub(super) struct Hosts {
    hosts: Vec<Holder>,
    switch: Holder,
    /// Whether the namespaces belong to a user namespace of the launcher.
    ///
    /// An ordinary user may create them only there.
    user: bool,
}

/// A process that keeps one namespace alive until its standard input is closed.
#[derive(Debug)]
struct Holder {
    pid: u32,
    child: Child,
}

impl Hosts {
    /// Sets the network up: as root of the machine, else in a user namespace of its own.
    ///
    /// # Errors
    /// Why neither is possible here.
    pub(super) async fn new(nhosts: u32) -> Result<Self, String> {
        match Self::make(nhosts, false).await {
            Ok(hosts) => Ok(hosts),
            Err(as_root) => match Self::make(nhosts, true).await {
                Ok(hosts) => Ok(hosts),
                Err(as_user) if as_user == as_root => Err(as_user),
                Err(as_user) => Err(format!("{as_root}; {as_user}")),
            },
        }
    }

    async fn make(nhosts: u32, user: bool) -> Result<Self, String> {
        let first: &[&str] = if user { &["--new-user"] } else { &[] };
        let switch = Holder::new(first).await?;
        let owner = switch.pid.to_string();
        let joined = ["--in-user-of", owner.as_str()];
        let further: &[&str] = if user { &joined } else { &[] };
        let mut network = Self { hosts: Vec::new(), switch, user };
        network.configure(network.switch.pid, "link add ccl type bridge\nlink set ccl up\n").await?;
        for host in 0..nhosts {
            let holder = Holder::new(further).await?;
            let (pid, switch) = (holder.pid, network.switch.pid);
            network.hosts.push(holder);
            network.configure(pid, &commands_in_host(host, switch)).await?;
            network
                .configure(switch, &format!("link set host{host} master ccl\nlink set host{host} up\n"))
                .await?;
        }
        Ok(network)
    }

    /// The arguments with which a helper enters a host.
    pub(super) fn entry(&self, host: u32) -> Vec<String> {
        self.entry_of(self.hosts[host as usize].pid)
    }

    fn entry_of(&self, pid: u32) -> Vec<String> {
        let user = if self.user { vec!["--user".to_string()] } else { Vec::new() };
        [vec!["--of".to_string(), pid.to_string()], user].concat()
    }

    /// Runs commands of `ip` inside the namespace of a holder.
    async fn configure(&self, pid: u32, commands: &str) -> Result<(), String> {
        let mut entry = self.entry_of(pid);
        if self.user {
            entry.push("--administer".to_string());
        }
        let mut ip = enter(&entry);
        ip.args(["ip", "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = ip.kill_on_drop(true).spawn().map_err(|e| format!("starting ip: {e}"))?;
        let run = async {
            let mut input = child.stdin.take();
            if let Some(input) = &mut input {
                input.write_all(commands.as_bytes()).await?;
            }
            drop(input);
            child.wait_with_output().await
        };
        let output = match timeout(STEP, run).await {
            Ok(Ok(output)) => output,
            Ok(Err(e)) => return Err(format!("running ip: {e}")),
            Err(_) => return Err(format!("ip did not end within {} s", STEP.as_secs())),
        };
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(said.lines().next().unwrap_or("ip failed").trim_start_matches("ccl-inspect: ").to_string())
    }

    /// Removes the network and waits for its holders.
    pub(super) async fn close(self) {
        for Holder { mut child, .. } in self.hosts.into_iter().chain([self.switch]) {
            drop(child.stdin.take());
            if timeout(STEP, child.wait()).await.is_err() {
                // It is killed at the latest when the child is dropped.
                let _ = child.start_kill();
            }
        }
    }
}

impl Holder {
    async fn new(arguments: &[&str]) -> Result<Self, String> {
        let mut command = helper("hold");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|e| format!("starting a namespace's holder: {e}"))?;
        let pid = child.id().ok_or("a namespace's holder ended at once")?;
        let mut answer = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut reader = BufReader::new(stdout.take(4096));
            // An answer that cannot be read counts as no answer.
            let _ = timeout(STEP, reader.read_line(&mut answer)).await;
        }
        match answer.trim() {
            "ready" => Ok(Self { pid, child }),
            "" => Err("a namespace's holder does not answer".to_string()),
            why => Err(why.to_string()),
        }
    }
}

/// The address of an emulated host; 10.231.0.0/16 has more than a machine can run.
pub(super) fn address(host: u32) -> String {
    let number = host + 1;
    format!("10.231.{}.{}", number / 250, number % 250 + 1)
}

fn commands_in_host(host: u32, switch: u32) -> String {
    format!(
        "link set lo up\n\
         link add eth0 type veth peer name host{host} netns {switch}\n\
         address add {}/16 dev eth0\n\
         link set eth0 up\n",
        address(host)
    )
}

/// A copy of this program, in its own process group.
///
/// So the terminal's signals reach only the launcher.
fn helper(verb: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(verb).process_group(0);
    command
}

/// A command that enters namespaces and executes the arguments added to it.
///
/// It enters none if `entry` is empty.
pub(super) fn enter(entry: &[String]) -> Command {
    let mut command = helper("enter");
    command.arg("--parent").arg(std::process::id().to_string()).args(entry).arg("--");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ() {
        let mut addresses: Vec<_> = (0..5000).map(address).collect();
        assert_eq!(addresses[..2], ["10.231.0.2", "10.231.0.3"]);
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 5000);
    }
}
