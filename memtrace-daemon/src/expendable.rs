//! Work that can block for ever: /proc of a process that is stuck in a driver, files on a dead
//! network mount, a driver's library. It runs on threads that can be given up.
//!
//! A thread takes jobs from a queue. When one job takes longer than the deadline, a watch
//! gives the thread up, says so, and starts another. Nothing here ever waits for a worker.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Takes a lock; a thread that panicked while holding it does not matter to us.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that calls short functions about once a second. They must not block.
pub struct Watch {
    shared: Arc<WatchShared>,
}

struct WatchShared {
    tasks: Mutex<Vec<Task>>,
    stopped: Mutex<bool>,
    wake: Condvar,
}

struct Task {
    period: Duration,
    due: Instant,
    /// Says whether it wants to be called again.
    run: Box<dyn FnMut() -> bool + Send>,
}

impl Watch {
    /// How often the thread looks whether something is due.
    const TICK: Duration = Duration::from_secs(1);

    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start(name: &str) -> io::Result<Self> {
        let shared = Arc::new(WatchShared {
            tasks: Mutex::new(Vec::new()),
            stopped: Mutex::new(false),
            wake: Condvar::new(),
        });
        let for_thread = Arc::clone(&shared);
        thread::Builder::new().name(name.into()).spawn(move || for_thread.run())?;
        Ok(Self { shared })
    }

    /// Has `run` called every `period` (rounded up to whole seconds) until it returns false.
    pub fn every(&self, period: Duration, run: impl FnMut() -> bool + Send + 'static) {
        let task = Task { period, due: Instant::now(), run: Box::new(run) };
        lock(&self.shared.tasks).push(task);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *lock(&self.shared.stopped) = true;
        self.shared.wake.notify_all();
    }
}

impl WatchShared {
    fn run(&self) {
        loop {
            let stopped = lock(&self.stopped);
            let (stopped, _) = self
                .wake
                .wait_timeout_while(stopped, Watch::TICK, |stopped| !*stopped)
                .unwrap_or_else(PoisonError::into_inner);
            if *stopped {
                return;
            }
            drop(stopped);
            let now = Instant::now();
            lock(&self.tasks).retain_mut(|task| {
                if task.due > now {
                    return true;
                }
                task.due = now + task.period;
                (task.run)()
            });
        }
    }
}

/// What does the jobs. It is made on its own thread, and need not be `Send`.
pub trait Worker {
    /// One piece of work.
    type Job: Clone + Send + 'static;
    /// What comes of it.
    type Out;
    /// Does one job. May block or panic: then the job is given up.
    fn work(&mut self, job: &Self::Job) -> Self::Out;
    /// Called now and then while there is nothing to do.
    fn idle(&mut self) {}
}

/// Why a job was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It took longer than the deadline; its thread is still in it.
    Late,
    /// It panicked.
    Panicked,
    /// So many threads are stuck that there are no new ones.
    NoThreads,
}

/// Bounds of an [`Expendable`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Jobs that may wait.
    pub waiting: usize,
    /// How long one job may take.
    pub deadline: Duration,
    /// After how long without a job `idle` is called.
    pub idle: Duration,
    /// Threads that may be stuck at a time.
    pub stuck: usize,
}

/// A queue of jobs and the thread that does them. Clones share it.
pub struct Expendable<J> {
    shared: Arc<Shared<J>>,
}

impl<J> Clone for Expendable<J> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<J> {
    limits: Limits,
    state: Mutex<State<J>>,
    wake: Condvar,
}

struct State<J> {
    queue: VecDeque<J>,
    /// Raised when a thread is given up; an older thread's results count no more.
    generation: u64,
    busy: Option<Busy<J>>,
    stuck: usize,
    given_up: u64,
    halted: bool,
    closed: bool,
}

struct Busy<J> {
    since: Instant,
    job: Option<J>,
}

enum Next<J> {
    Job(J),
    Idle,
    End,
}

impl<J: Clone + Send + 'static> Expendable<J> {
    /// Starts a thread. `make` makes what works, on that thread. `deliver` takes what comes of
    /// a job, on that thread too. `given_up` hears of jobs that were given up, and may hand the
    /// job back to be tried again; it must not block.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start<W>(
        watch: &Watch,
        name: &'static str,
        limits: Limits,
        make: impl Fn() -> W + Send + Sync + 'static,
        deliver: impl Fn(W::Out) + Send + Sync + 'static,
        given_up: impl Fn(J, GivenUp) -> Option<J> + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        W: Worker<Job = J> + 'static,
    {
        let shared = Arc::new(Shared {
            limits,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                generation: 0,
                busy: None,
                stuck: 0,
                given_up: 0,
                halted: false,
                closed: false,
            }),
            wake: Condvar::new(),
        });
        let hooks = Arc::new((make, deliver, given_up));
        let spawn = {
            let hooks = Arc::clone(&hooks);
            move |shared: &Arc<Shared<J>>, generation: u64| -> io::Result<()> {
                let (hooks, shared) = (Arc::clone(&hooks), Arc::clone(shared));
                let body = move || {
                    let (make, deliver, given_up) = &*hooks;
                    shared.run(generation, make, deliver, given_up);
                };
                thread::Builder::new().name(name.into()).spawn(body).map(drop)
            }
        };
        spawn(&shared, 0)?;
        let weak: Weak<Shared<J>> = Arc::downgrade(&shared);
        watch.every(Watch::TICK, move || {
            let Some(shared) = weak.upgrade() else { return false };
            shared.watch(name, &spawn, &hooks.2)
        });
        Ok(Self { shared })
    }

    /// Adds a job; never blocks.
    ///
    /// # Errors
    /// Gives the job back where there is no room for it, or no thread.
    pub fn push(&self, job: J) -> Result<(), J> {
        let mut state = lock(&self.shared.state);
        if state.halted || state.queue.len() >= self.shared.limits.waiting {
            return Err(job);
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Threads that are stuck now, and jobs given up since the start.
    #[must_use]
    pub fn stuck(&self) -> (usize, u64) {
        let state = lock(&self.shared.state);
        (state.stuck, state.given_up)
    }

    /// Lets the thread end after its present job.
    pub fn close(&self) {
        lock(&self.shared.state).closed = true;
        self.shared.wake.notify_all();
    }
}

impl<J: Clone> Shared<J> {
    fn run<W: Worker<Job = J>>(
        &self,
        generation: u64,
        make: &impl Fn() -> W,
        deliver: &impl Fn(W::Out),
        given_up: &impl Fn(J, GivenUp) -> Option<J>,
    ) {
        let mut worker = make();
        loop {
            match self.next(generation) {
                Next::End => return,
                Next::Idle => {
                    // A cache that panics while it is emptied is replaced like any other.
                    if catch_unwind(AssertUnwindSafe(|| worker.idle())).is_err() {
                        worker = make();
                    }
                    if !self.done(generation) {
                        return;
                    }
                }
                Next::Job(job) => {
                    let out = catch_unwind(AssertUnwindSafe(|| worker.work(&job)));
                    if !self.done(generation) {
                        return;
                    }
                    match out {
                        Ok(out) => deliver(out),
                        Err(_) => {
                            worker = make();
                            self.give_up(job, GivenUp::Panicked, given_up);
                        }
                    }
                }
            }
        }
    }

    fn next(&self, generation: u64) -> Next<J> {
        let mut state = lock(&self.state);
        let mut waited = false;
        loop {
            if state.closed || state.generation != generation {
                return Next::End;
            }
            if let Some(job) = state.queue.pop_front() {
                state.busy = Some(Busy { since: Instant::now(), job: Some(job.clone()) });
                return Next::Job(job);
            }
            if waited {
                state.busy = Some(Busy { since: Instant::now(), job: None });
                return Next::Idle;
            }
            let wait = self.wake.wait_timeout(state, self.limits.idle);
            let (guard, timeout) = wait.unwrap_or_else(PoisonError::into_inner);
            (state, waited) = (guard, timeout.timed_out());
        }
    }

    /// Whether this thread has not been given up meanwhile.
    fn done(&self, generation: u64) -> bool {
        let mut state = lock(&self.state);
        if state.generation == generation {
            state.busy = None;
            return true;
        }
        state.stuck = state.stuck.saturating_sub(1);
        false
    }

    fn give_up(&self, job: J, why: GivenUp, hear: &impl Fn(J, GivenUp) -> Option<J>) {
        lock(&self.state).given_up += 1;
        if let Some(again) = hear(job, why) {
            lock(&self.state).queue.push_front(again);
            self.wake.notify_one();
        }
    }
}

impl<J: Clone + Send + 'static> Shared<J> {
    fn watch(
        self: &Arc<Self>,
        name: &str,
        spawn: &impl Fn(&Arc<Self>, u64) -> io::Result<()>,
        hear: &impl Fn(J, GivenUp) -> Option<J>,
    ) -> bool {
        let mut state = lock(&self.state);
        if state.closed {
            return false;
        }
        let late = state.busy.as_ref().is_some_and(|b| b.since.elapsed() > self.limits.deadline);
        if !late && !state.halted {
            return true;
        }
        let job = if late { state.busy.take().and_then(|busy| busy.job) } else { None };
        if late {
            state.generation += 1;
            state.stuck += 1;
            tracing::warn!(
                thread = name,
                stuck = state.stuck,
                "a job took too long; its thread is given up"
            );
        }
        let generation = state.generation;
        state.halted = state.stuck > self.limits.stuck;
        let halted = state.halted;
        let waiting = if halted { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        if let Some(job) = job {
            self.give_up(job, GivenUp::Late, hear);
        }
        for job in waiting {
            lock(&self.state).given_up += 1;
            let _not_again = hear(job, GivenUp::NoThreads);
        }
        if !halted && let Err(error) = spawn(self, generation) {
            lock(&self.state).halted = true;
            tracing::error!(thread = name, %error, "no thread could be started; the next try is in a second");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Sleeper;

    impl Worker for Sleeper {
        type Job = &'static str;
        type Out = &'static str;
        fn work(&mut self, job: &Self::Job) -> Self::Out {
            match *job {
                "hang" => loop {
                    thread::park();
                },
                "panic" => panic!("on purpose"),
                other => other,
            }
        }
    }

    #[derive(Debug, PartialEq)]
    enum Heard {
        Done(&'static str),
        GivenUp(&'static str, GivenUp),
    }

    fn start(stuck: usize) -> (Watch, Expendable<&'static str>, mpsc::Receiver<Heard>) {
        let watch = Watch::start("test-watch").unwrap();
        let (send, receive) = mpsc::channel();
        let heard = send.clone();
        let limits = Limits {
            waiting: 2,
            deadline: Duration::from_millis(50),
            idle: Duration::from_secs(60),
            stuck,
        };
        let jobs = Expendable::start(
            &watch,
            "test-worker",
            limits,
            || Sleeper,
            move |out| send.send(Heard::Done(out)).unwrap(),
            move |job, why| {
                heard.send(Heard::GivenUp(job, why)).unwrap();
                None
            },
        )
        .unwrap();
        (watch, jobs, receive)
    }

    #[test]
    fn a_job_that_hangs_is_given_up_and_the_next_one_is_done() {
        let (_watch, jobs, heard) = start(4);
        jobs.push("hang").unwrap();
        jobs.push("after").unwrap();
        assert_eq!(heard.recv().unwrap(), Heard::GivenUp("hang", GivenUp::Late));
        assert_eq!(heard.recv().unwrap(), Heard::Done("after"));
        assert_eq!(jobs.stuck(), (1, 1));
    }

    #[test]
    fn a_job_that_panics_is_given_up_and_the_next_one_is_done() {
        let (_watch, jobs, heard) = start(4);
        jobs.push("panic").unwrap();
        jobs.push("after").unwrap();
        assert_eq!(heard.recv().unwrap(), Heard::GivenUp("panic", GivenUp::Panicked));
        assert_eq!(heard.recv().unwrap(), Heard::Done("after"));
    }

    #[test]
    fn too_many_stuck_threads_answer_everything_at_once() {
        let (_watch, jobs, heard) = start(0);
        jobs.push("hang").unwrap();
        jobs.push("after").unwrap();
        assert_eq!(heard.recv().unwrap(), Heard::GivenUp("hang", GivenUp::Late));
        assert_eq!(heard.recv().unwrap(), Heard::GivenUp("after", GivenUp::NoThreads));
        assert_eq!(jobs.push("later"), Err("later"));
    }

    #[test]
    fn what_does_not_fit_comes_back() {
        let (_watch, jobs, _heard) = start(4);
        jobs.push("hang").unwrap();
        while lock(&jobs.shared.state).busy.is_none() {
            thread::yield_now();
        }
        jobs.push("one").unwrap();
        jobs.push("two").unwrap();
        assert_eq!(jobs.push("three"), Err("three"));
    }
}
