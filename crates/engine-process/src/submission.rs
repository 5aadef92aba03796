//! The message that submits sequences.

use std::borrow::Cow;
use std::sync::Arc;

use mlx_core::engine::RemoteRequest;

use crate::message::{Request, Sequence, ToChild};
use crate::sequence::Sequence as Record;

/// Returns the message that submits sequences of one request. Sequences of the same prompt share it.
pub(crate) fn submit_message<'a>(call: u64, is_resumed: bool, records: &[(u64, &'a Record)]) -> ToChild<'a> {
    let mut requests: Vec<(&'a RemoteRequest, Request<'a>)> = Vec::new();
    let mut sequences = Vec::new();
    for &(id, record) in records {
        let request = &record.remote.request;
        let is_same = |known: &&RemoteRequest| {
            Arc::ptr_eq(&known.prompt, &request.prompt) && Arc::ptr_eq(&known.options, &request.options)
        };
        let index = requests.iter().position(|(known, _)| is_same(known)).unwrap_or_else(|| {
            let RemoteRequest { adapter, prompt, options, .. } = request;
            let wire = Request {
                adapter: *adapter,
                prompt: Cow::Borrowed(prompt.as_slice()),
                options: Cow::Borrowed(options.as_ref()),
            };
            requests.push((request, wire));
            requests.len() - 1
        });
        let resume = is_resumed.then_some(Cow::Borrowed(&record.resume));
        sequences.push(Sequence { request: index, id, seed: request.seed, resume });
    }
    let requests = requests.into_iter().map(|(_, wire)| wire).collect();
    ToChild::Submit { call, is_resumed, requests, sequences }
}
