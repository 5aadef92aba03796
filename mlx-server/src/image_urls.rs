//! Pictures that requests name by URL. They are fetched before a request is read, and stand in it as data URLs from then on: it is the
//! same request as one that was sent with the pictures, also where it is stored or computed again.

mod addresses;
mod fetch;
mod places;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use chat_format::Image;
use futures_util::{StreamExt, stream};
use mlx_options::ByteSize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body_memory::{BodyMemory, Charge};
use crate::error::ApiError;
use crate::fields::Fields;
pub(crate) use addresses::is_public;
use fetch::Fetcher;
pub(crate) use fetch::split_port;

/// The maximum number of URLs of one request.
const MAX_URLS: usize = 32;
/// The maximum number that are fetched at once for one request.
const MAX_CONCURRENT: usize = 4;
/// The maximum number that are fetched at once for all requests. Each holds a thread, for [`fetch::TIMEOUT`] at most.
const MAX_THREADS: usize = 16;

/// Whether a connection may be made to an address.
pub type AddressRule = fn(IpAddr) -> bool;

/// Fetches the pictures of requests.
pub(crate) struct ImageUrls {
    /// `None` if no host is allowed.
    fetcher: Option<Arc<Fetcher>>,
    threads: Arc<Semaphore>,
}

impl ImageUrls {
    /// Pictures of these hosts, on addresses that the rule allows.
    pub(crate) fn new(hosts: &[String], rule: AddressRule) -> Self {
        let fetcher = (!hosts.is_empty()).then(|| Arc::new(Fetcher::new(hosts, rule, fetch::TIMEOUT)));
        Self { fetcher, threads: Arc::new(Semaphore::new(MAX_THREADS)) }
    }

    /// Whether a request names pictures that may be fetched.
    pub(crate) fn has_to_fetch(&self, fields: &mut Fields) -> bool {
        self.fetcher.is_some() && !places::urls(fields).is_empty()
    }

    /// Puts the pictures in the place of their URLs. The bytes that the request grows by are returned, and are at most `room`.
    pub(crate) async fn insert(
        &self,
        fields: &mut Fields,
        room: u64,
        bodies: &BodyMemory,
    ) -> Result<usize, ApiError> {
        let Some(fetcher) = &self.fetcher else { return Ok(0) };
        let mut urls = places::urls(fields);
        if let Some(first) = urls.get(MAX_URLS) {
            let message = format!(
                "is one URL too many: {MAX_URLS} images are fetched for a request; give the others as data URLs"
            );
            return Err(ApiError::field(first.place.as_str(), message));
        }
        let job = |found: &places::Found| self.picture(fetcher, found, room, bodies.charge());
        let jobs: Vec<_> = urls.iter().map(job).collect();
        let mut pictures = stream::iter(jobs).buffered(MAX_CONCURRENT);
        let mut data_urls: Vec<(String, Charge)> = Vec::new();
        let mut bytes = 0;
        while let Some(picture) = pictures.next().await {
            let picture = picture?;
            bytes += picture.0.len();
            if bytes as u64 > room {
                let message =
                    "the body and the images that it names by URL are larger than --max-body together";
                return Err(ApiError::too_large(message));
            }
            data_urls.push(picture);
        }
        for (found, (data_url, _)) in urls.iter_mut().zip(data_urls) {
            *found.url = data_url;
        }
        Ok(bytes)
    }

    /// One picture as a data URL.
    fn picture(
        &self,
        fetcher: &Arc<Fetcher>,
        found: &places::Found,
        room: u64,
        mut charge: Charge,
    ) -> impl Future<Output = Result<(String, Charge), ApiError>> + use<> {
        let (fetcher, threads) = (Arc::clone(fetcher), Arc::clone(&self.threads));
        let (url, place) = (found.url.clone(), found.place.clone());
        async move {
            let thread = threads.acquire_owned().await;
            let fetch = move || {
                // Held until the thread has ended, even if the client has left.
                let _thread = thread;
                let most = ByteSize((Image::largest_file() as u64).min(room / 4 * 3));
                let data_url = fetcher.data_url(&url, &place, most, &mut charge)?;
                Ok((data_url, charge))
            };
            let failed = |_| Err(ApiError::failed("fetching an image was interrupted; see the server's log"));
            spawn_blocking(fetch).await.unwrap_or_else(failed)
        }
    }
}
