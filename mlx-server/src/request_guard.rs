//! The resources of a parsed request: the memory of its body, and access to the slots for its computations. Dropping the guard releases
//! them.

use mlx_core::engine::Client;

use crate::body_memory::Charge;
use crate::error::ApiError;
use crate::generation::Origin;
use crate::request_log::RequestId;
use crate::state::AppState;
use crate::work::CancelFlag;

/// The resources of a request, held until its answer is complete.
pub(crate) struct RequestGuard {
    state: AppState,
    charge: Charge,
    bytes: usize,
    /// The client and the id of the request.
    pub(crate) origin: Origin,
}

impl RequestGuard {
    /// Guards a request with a body of this many bytes.
    pub(crate) fn new(state: &AppState, charge: Charge, bytes: usize, origin: Origin) -> Self {
        Self { state: state.clone(), charge, bytes, origin }
    }

    /// Guards a stored response that the server recomputes for this client.
    pub(crate) fn for_stored_response(state: &AppState, client: Client, response: &str) -> Self {
        let origin = Origin { client, id: RequestId::from_response_id(response) };
        Self::new(state, state.bodies.charge(), 0, origin)
    }

    /// Runs a computation for the request. It is cancelled when the client disconnects.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancelFlag) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.state.cpu_slots.run(self.origin.client, self.bytes, work).await
    }

    /// Runs a computation that charges the memory it needs, like [`run`](Self::run).
    pub(crate) async fn run_charged<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&CancelFlag, &mut Charge) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let mut charge = std::mem::replace(&mut self.charge, self.state.bodies.charge());
        let work = move |cancel: &CancelFlag| Ok((work(cancel, &mut charge), charge));
        let (result, charge) = self.run(work).await?;
        self.charge = charge;
        result
    }

    /// Sets the number of bytes that the request now uses.
    pub(crate) fn set_bytes(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.charge.set(bytes as u64)
    }
}
