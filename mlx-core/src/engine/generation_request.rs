//! A request that an engine has checked, in this process or in another one.

use super::options::Exactness;
use super::remote::RemoteRequest;
use super::request::CheckedRequest;

/// A request that an engine has checked against its model and its memory. [`Engine::request`](super::Engine::request) creates it.
#[derive(Debug, Clone)]
pub struct GenerationRequest {
    /// The id of the engine that checked it and may run it.
    pub(super) checked_by: u64,
    pub(super) body: RequestBody,
}

/// The request, where its engine runs.
#[derive(Debug, Clone)]
pub(super) enum RequestBody {
    Local(Box<CheckedRequest>),
    Remote(RemoteRequest),
}

impl GenerationRequest {
    /// Returns the seed of the draws, which the request set or the operating system supplied.
    pub fn seed(&self) -> u64 {
        match &self.body {
            RequestBody::Local(request) => request.params.seed,
            RequestBody::Remote(request) => request.seed,
        }
    }

    /// Returns a copy of the request with another seed.
    #[must_use]
    pub fn with_seed(&self, seed: u64) -> Self {
        let mut request = self.clone();
        match &mut request.body {
            RequestBody::Local(request) => request.params.seed = seed,
            RequestBody::Remote(request) => request.seed = seed,
        }
        request
    }

    /// Returns the exactness of the result. A text that may outgrow the context is approximate from the start.
    pub fn exactness(&self) -> Exactness {
        match &self.body {
            RequestBody::Local(request) => request.exactness,
            RequestBody::Remote(request) => request.exactness,
        }
    }

    /// Returns the number of prompt tokens.
    pub fn prompt_tokens(&self) -> usize {
        match &self.body {
            RequestBody::Local(request) => request.prompt.len(),
            RequestBody::Remote(request) => request.prompt.len(),
        }
    }
}
