//! The calls that a child answers, and the receivers of its sequences' events.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use mlx_core::engine::{
    Canceller, Engine, Event, EventSink, GenerationRequest, RequestOptions, Resume, Usage,
};
use mlx_core::{Error, Result};

use crate::memory::with_memory;
use crate::message::{Checked, FromChild, Reply, Request, Sequence};
use crate::outbox::Output;
use crate::wire_error::WireError;

/// The engine of the child, and its running sequences.
pub(crate) struct Calls {
    engine: Engine,
    outbox: Sender<Output>,
    sinks: Sinks,
}

/// The receivers of the running sequences, by id.
type Sinks = Arc<Mutex<BTreeMap<u64, Weak<Sink>>>>;

impl Calls {
    pub(crate) fn new(engine: Engine, outbox: Sender<Output>) -> Self {
        Self { engine, outbox, sinks: Arc::default() }
    }

    /// Returns true if checking the request takes no time worth a thread.
    pub(crate) fn is_quick(request: &Request) -> bool {
        let RequestOptions { images, audio, constraint, exact, .. } = request.options.as_ref();
        images.is_empty() && audio.is_empty() && constraint.is_none() && *exact != Some(true)
    }

    pub(crate) fn check(&self, call: u64, request: Request) {
        let checked = caught(|| self.checked(request))
            .map(|request| Reply::Checked(Checked { seed: request.seed(), exactness: request.exactness() }));
        self.reply(call, checked);
    }

    fn checked(&self, request: Request) -> Result<GenerationRequest> {
        let Request { adapter, prompt, options } = request;
        self.handle(adapter)?.request(prompt.into_owned(), &options)
    }

    fn handle(&self, adapter: usize) -> Result<Engine> {
        adapter
            .checked_sub(1)
            .map_or_else(|| Ok(self.engine.clone()), |place| self.engine.with_adapter(place))
    }

    pub(crate) fn exactness(&self, call: u64, adapter: usize) {
        let level = caught(|| Ok(Reply::Exactness(self.handle(adapter)?.exactness())));
        self.reply(call, level);
    }

    pub(crate) fn last_miss(&self, call: u64) {
        self.reply(call, Ok(Reply::LastMiss(self.engine.last_miss())));
    }

    pub(crate) fn submit(
        &self,
        call: u64,
        is_resumed: bool,
        requests: Vec<Request>,
        sequences: Vec<Sequence>,
    ) {
        let ids: Vec<u64> = sequences.iter().map(|sequence| sequence.id).collect();
        let submitted = caught(|| self.submitted(is_resumed, requests, sequences));
        // Nobody waits for the answer to a resumed request.
        for id in ids.into_iter().filter(|_| is_resumed && submitted.is_err()) {
            self.send(FromChild::Lost { id });
        }
        self.send(FromChild::Stats(with_memory(self.engine.stats())));
        self.reply(call, submitted.map(|()| Reply::Submitted));
    }

    fn submitted(&self, is_resumed: bool, requests: Vec<Request>, sequences: Vec<Sequence>) -> Result<()> {
        let requests = requests.into_iter().map(|request| self.checked(request));
        let requests = requests.collect::<Result<Vec<_>>>()?;
        let (mut checked, mut sinks) = (Vec::new(), Vec::new());
        for Sequence { request, id, seed, resume } in sequences {
            let unknown = || Error::Internal("a sequence names no request".into());
            let request = requests.get(request).ok_or_else(unknown)?.with_seed(seed);
            let resume = resume.map_or_else(Resume::default, std::borrow::Cow::into_owned);
            checked.push(self.engine.resumed(request, resume)?);
            let sink = Arc::new(Sink::new(id, self.outbox.clone(), Arc::clone(&self.sinks)));
            lock(&self.sinks).insert(id, Arc::downgrade(&sink));
            sinks.push(sink);
        }
        let receivers = sinks.iter().map(|sink| Arc::clone(sink) as Arc<dyn EventSink>).collect();
        let flags = self.engine.submit_to(checked, receivers, is_resumed)?;
        for (sink, flag) in sinks.iter().zip(flags) {
            sink.canceller.set(flag).ok();
        }
        Ok(())
    }

    pub(crate) fn cancel(&self, id: u64) {
        let sink = lock(&self.sinks).get(&id).and_then(Weak::upgrade);
        if let Some(canceller) = sink.as_ref().and_then(|sink| sink.canceller.get()) {
            canceller.cancel();
        }
    }

    fn reply(&self, call: u64, reply: Result<Reply>) {
        self.send(FromChild::Reply { call, reply: reply.map_err(WireError::from) });
    }

    fn send(&self, message: FromChild) {
        self.outbox.send(Output::Message(message)).ok();
    }
}

/// Sends the events of a sequence to the parent.
struct Sink {
    id: u64,
    outbox: Sender<Output>,
    state: Mutex<SinkState>,
    canceller: OnceLock<Canceller>,
    sinks: Sinks,
}

#[derive(Default)]
struct SinkState {
    usage: Usage,
    has_ended: bool,
}

impl Sink {
    fn new(id: u64, outbox: Sender<Output>, sinks: Sinks) -> Self {
        Self { id, outbox, state: Mutex::default(), canceller: OnceLock::new(), sinks }
    }

    fn message(&self, message: FromChild) {
        self.outbox.send(Output::Message(message)).ok();
    }
}

impl EventSink for Sink {
    fn start(&self) {
        self.message(FromChild::Started { id: self.id });
    }

    fn send(&self, event: Event) {
        lock(&self.state).has_ended |= matches!(event, Event::Done(_));
        self.message(FromChild::Event { id: self.id, event });
    }

    fn record(&self, usage: &Usage) {
        let mut state = lock(&self.state);
        // The other counts follow from the tokens.
        let continued = |usage: &Usage| (usage.prompt_tokens, usage.cached_tokens, usage.drafts, usage.miss);
        if continued(&state.usage) != continued(usage) {
            state.usage = *usage;
            self.message(FromChild::Usage { id: self.id, usage: *usage });
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        lock(&self.sinks).remove(&self.id);
        if !lock(&self.state).has_ended {
            self.message(FromChild::Lost { id: self.id });
        }
    }
}

/// Returns an error if `answer` panics. Only this call fails then, and not the process.
fn caught<T>(answer: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
        Err(Error::Internal("a call of the engine panicked; its log has the cause".into()))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_call_is_its_error() {
        let outcome = caught::<()>(|| panic!("a broken grammar"));
        assert!(matches!(outcome, Err(Error::Internal(_))));
    }
}
