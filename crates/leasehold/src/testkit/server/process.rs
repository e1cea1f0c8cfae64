//! The process of a server.

use std::process::{Child, Command, ExitStatus};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;
use std::{io, path::Path, thread};

use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

/// A process that leads a group. It is kept until it was collected, so that its number is its own whenever it is used.
#[derive(Debug, Default)]
pub(super) struct Process(Mutex<Option<Child>>);

impl Process {
    /// Starts one, which must not run.
    pub(super) fn start(&self, command: Command) -> io::Result<()> {
        *self.0.lock() = Some(spawn(command)?);
        Ok(())
    }

    pub(super) fn id(&self) -> Option<u32> {
        self.0.lock().as_ref().map(Child::id)
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        self.with(|child| Ok(kill_process(Pid::from_child(child), signal)?))
    }

    /// Stops the group, and comes back when its leader has stopped.
    pub(super) fn stop(&self) -> io::Result<()> {
        self.with(|child| {
            kill_process_group(Pid::from_child(child), Signal::STOP)?;
            look(child, WaitIdOptions::STOPPED | WaitIdOptions::EXITED).map(drop)
        })
    }

    pub(super) fn cont(&self) -> io::Result<()> {
        self.with(|child| Ok(kill_process_group(Pid::from_child(child), Signal::CONT)?))
    }

    /// Kills the group. Does nothing if it does not run.
    pub(super) fn kill(&self) -> io::Result<()> {
        match self.0.lock().take() {
            Some(child) => bury(child).map(drop),
            None => Ok(()),
        }
    }

    /// Its status if it has ended, and none if it does not within this time. What is left of its group is killed.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let pause = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        loop {
            if self.with(|child| look(child, WaitIdOptions::EXITED | WaitIdOptions::NOHANG))? {
                return self.0.lock().take().map(bury).transpose();
            }
            if waited >= patience {
                return Ok(None);
            }
            thread::sleep(pause);
            waited += pause;
        }
    }

    fn with<T>(&self, act: impl FnOnce(&Child) -> io::Result<T>) -> io::Result<T> {
        self.0.lock().as_ref().map_or_else(|| Err(io::Error::other("the server does not run")), act)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // There is nobody to tell, and nothing more to be done.
        drop(self.kill());
    }
}

/// Whether the process is in such a state, which is left for others to see.
fn look(child: &Child, states: WaitIdOptions) -> io::Result<bool> {
    let id = WaitId::Pid(Pid::from_child(child));
    Ok(retry_on_intr(|| waitid(id.clone(), states | WaitIdOptions::NOWAIT))?.is_some())
}

/// Kills the group, whose number is taken as long as its leader was not collected, and collects the leader.
fn bury(mut child: Child) -> io::Result<ExitStatus> {
    // It may have ended by itself, which is as good.
    kill_process_group(Pid::from_child(&child), Signal::KILL).ok();
    child.wait()
}

/// A command that ends with the process that [`spawn`]s it.
pub(super) fn command(program: &Path) -> Command {
    if cfg!(target_os = "linux") {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Spawns on a thread that lives as long as the process: the signal comes when the *thread* ends that spawned.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        let work = move || {
            for (mut command, answer) in queue {
                drop(answer.send(command.spawn()));
            }
        };
        // Where there is no thread to be had, the orders are not taken.
        drop(thread::Builder::new().name("servers".to_owned()).spawn(work));
        orders
    });
    let (answer, spawned) = mpsc::channel();
    drop(SPAWNER.send((command, answer)));
    spawned.recv().unwrap_or_else(|_| Err(io::Error::other("there is no thread that starts servers")))
}
