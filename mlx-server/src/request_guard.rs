//! The resources of a request that was read: the memory of its body, and the slot of its computations. They are free once the guard is
//! dropped.

use mlx_core::engine::Client;

use crate::body_memory::Charge;
use crate::error::ApiError;
use crate::generation::Origin;
use crate::request_log::RequestId;
use crate::state::AppState;
use crate::work::CancelFlag;

/// The resources of a request, held until it is answered.
pub(crate) struct RequestGuard {
    state: AppState,
    charge: Charge,
    bytes: usize,
    /// The client and the id of the request.
    pub(crate) origin: Origin,
}

impl RequestGuard {
    /// Guards a request that was read from so many bytes.
    pub(crate) fn new(state: &AppState, charge: Charge, bytes: usize, origin: Origin) -> Self {
        Self { state: state.clone(), charge, bytes, origin }
    }

    /// Guards a stored response of this client that the server computes again.
    pub(crate) fn of_server(state: &AppState, client: Client, response: &str) -> Self {
        let origin = Origin { client, id: RequestId::of_server(response) };
        Self::new(state, state.bodies.charge(), 0, origin)
    }

    /// Runs a computation for the request. It is cancelled if the client leaves.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelFlag) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.state.host.run(self.origin.client, self.bytes, work).await
    }

    /// Sets the bytes that the request now holds.
    pub(crate) fn set_bytes(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.charge.set(bytes as u64)
    }
}
