//! Fetches the images that requests reference by URL. They replace their URLs as data URLs before the request is read. From then on, the request
//! is the same as one that was sent with the images, also if it is stored or computed again.

mod addresses;
mod fetch;
mod find;
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
pub(crate) use fetch::{allows, split_port};

/// The maximum number of URLs per request.
const MAX_URLS: usize = 32;
/// The maximum number of concurrent fetches per request.
const MAX_CONCURRENT: usize = 4;
/// The maximum number of concurrent fetches of all requests. Each holds a thread for up to [`fetch::TIMEOUT`].
const MAX_THREADS: usize = 16;

/// Returns true if connections to an address are allowed.
pub type AddressRule = fn(IpAddr) -> bool;

/// Fetches the images of requests.
pub(crate) struct ImageUrls {
    /// `None` if no host is allowed.
    fetcher: Option<Arc<Fetcher>>,
    threads: Arc<Semaphore>,
}

impl ImageUrls {
    /// Creates a fetcher for images of these hosts, on addresses that `rule` allows.
    pub(crate) fn new(hosts: &[String], rule: AddressRule) -> Self {
        let fetcher = (!hosts.is_empty()).then(|| Arc::new(Fetcher::new(hosts, rule, fetch::TIMEOUT)));
        Self { fetcher, threads: Arc::new(Semaphore::new(MAX_THREADS)) }
    }

    /// Returns true if a request has image URLs that may be fetched.
    pub(crate) fn needs_fetch(&self, fields: &mut Fields) -> bool {
        self.fetcher.is_some() && !find::urls(fields).is_empty()
    }

    /// Replaces image URLs with the images as data URLs. Returns the bytes that the request grows by, at most `room`.
    pub(crate) async fn insert(
        &self,
        fields: &mut Fields,
        room: u64,
        bodies: &BodyMemory,
    ) -> Result<usize, ApiError> {
        let Some(fetcher) = &self.fetcher else { return Ok(0) };
        let mut urls = find::urls(fields);
        if let Some(first) = urls.get(MAX_URLS) {
            let message = format!(
                "exceeds the limit of {MAX_URLS} image URLs per request; send the other images as data URLs"
            );
            return Err(ApiError::field(first.path.as_str(), message));
        }
        let job = |found: &find::ImageUrl| self.picture(fetcher, found, room, bodies.charge());
        let jobs: Vec<_> = urls.iter().map(job).collect();
        let mut pictures = stream::iter(jobs).buffered(MAX_CONCURRENT);
        let mut data_urls: Vec<(String, Charge)> = Vec::new();
        let mut bytes = 0;
        while let Some(picture) = pictures.next().await {
            let picture = picture?;
            bytes += picture.0.len();
            if bytes as u64 > room {
                let message = "the body and its fetched images are together larger than --max-body allows";
                return Err(ApiError::too_large(message));
            }
            data_urls.push(picture);
        }
        for (found, (data_url, _)) in urls.iter_mut().zip(data_urls) {
            *found.url = data_url;
        }
        Ok(bytes)
    }

    /// Returns one image as a data URL.
    fn picture(
        &self,
        fetcher: &Arc<Fetcher>,
        found: &find::ImageUrl,
        room: u64,
        mut charge: Charge,
    ) -> impl Future<Output = Result<(String, Charge), ApiError>> + use<> {
        let (fetcher, threads) = (Arc::clone(fetcher), Arc::clone(&self.threads));
        let (url, path) = (found.url.clone(), found.path.clone());
        async move {
            let thread = threads.acquire_owned().await;
            let fetch = move || {
                // Held until the thread ends, even after the client disconnects.
                let _thread = thread;
                let max_len = ByteSize((Image::largest_file() as u64).min(room / 4 * 3));
                let data_url = fetcher.data_url(&url, &path, max_len, &mut charge)?;
                Ok((data_url, charge))
            };
            let failed = |_| Err(ApiError::failed("fetching an image was interrupted; see the server's log"));
            spawn_blocking(fetch).await.unwrap_or_else(failed)
        }
    }
}
