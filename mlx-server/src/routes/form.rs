//! Walks the parts of a form within limits: texts become fields, and the file goes to its receiver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::multipart::MultipartError;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use bytes::Bytes;
use futures_util::StreamExt;
use mlx_json::{Map, Value};

use super::body::{DRAIN_TIMEOUT, too_slow};
use crate::error::ApiError;
use crate::fields::Fields;

/// The maximum number of parts of a form.
const MAX_PARTS: usize = 64;
/// The maximum bytes of a part that is not the file.
const MAX_TEXT: usize = 64 << 10;
/// The bytes after which the parser must return a part or a chunk of one. Until then it holds them in memory.
const MAX_UNPARSED: usize = 8 << 20;
/// Like [`MAX_UNPARSED`], for the remainder of a rejected form.
const MAX_DRAINED: usize = 64 << 20;

/// Receives the bytes of the part `file`.
pub(super) trait FileReceiver: Send {
    /// Takes the next bytes; `None` at the end.
    fn take(&mut self, chunk: Option<Bytes>) -> impl Future<Output = Result<(), ApiError>> + Send;
}

/// A form in progress.
pub(super) struct Form {
    parts: Multipart,
    /// The maximum time between two chunks.
    timeout: Duration,
    /// The bytes that may arrive until the parser returns something.
    left: Arc<AtomicUsize>,
}

impl Form {
    /// Begins to read the form of a request.
    pub(super) async fn new(request: Request, timeout: Duration) -> Result<Self, ApiError> {
        let left = Arc::new(AtomicUsize::new(MAX_UNPARSED));
        let mut request = request.map(|body| bounded(body, Arc::clone(&left)));
        // Our own limits hold, not axum's.
        DefaultBodyLimit::disable().apply(&mut request);
        let parts = Multipart::from_request(request, &()).await;
        let parts = parts.map_err(|error| ApiError::body(format!("the body is not a form: {error}")))?;
        Ok(Self { parts, timeout, left })
    }

    /// Returns the texts of the form as fields, and passes its file on. The fields have the name of the file in its place. `value` converts
    /// texts. A name that ends in `[]` is a list.
    pub(super) async fn fields(
        &mut self,
        value: fn(&str, String) -> Value,
        file: &mut impl FileReceiver,
    ) -> Result<Fields, ApiError> {
        let Self { parts, timeout, left } = self;
        let (mut all, mut count) = (Map::new(), 0);
        while let Some(mut part) = in_time(parts.next_field(), *timeout, left).await? {
            count += 1;
            if count > MAX_PARTS {
                return Err(ApiError::body(format!("the form has more than {MAX_PARTS} parts")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            if all.contains_key(&name) {
                return Err(ApiError::field(name, "occurs twice in the form"));
            }
            if name == "file" {
                all.insert(name, part.file_name().unwrap_or("file").into());
                while let Some(chunk) = in_time(part.chunk(), *timeout, left).await? {
                    file.take(Some(chunk)).await?;
                }
                file.take(None).await?;
                continue;
            }
            let mut bytes = Vec::new();
            while let Some(chunk) = in_time(part.chunk(), *timeout, left).await? {
                bytes.extend_from_slice(&chunk);
                if bytes.len() > MAX_TEXT {
                    let message = format!("is longer than the {MAX_TEXT} bytes that are allowed");
                    return Err(ApiError::field(name, message));
                }
            }
            let text =
                String::from_utf8(bytes).map_err(|_| ApiError::field(name.as_str(), "is not UTF-8"))?;
            let Some(list) = name.strip_suffix("[]") else {
                let value = value(&name, text);
                all.insert(name, value);
                continue;
            };
            match all.entry(list.to_owned()).or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(items) => items.push(value(list, text)),
                other => *other = Value::Array(vec![value(list, text)]),
            }
        }
        Ok(Fields::of(all))
    }

    /// Reads the remainder of a rejected form for a while: a client that is still sending would not read the response.
    pub(super) async fn drain(&mut self) {
        self.left.store(MAX_DRAINED, Ordering::Relaxed);
        let rest = async { while let Ok(Some(_)) = self.parts.next_field().await {} };
        tokio::time::timeout(DRAIN_TIMEOUT, rest).await.ok();
    }
}

/// Returns a body that fails once `left` bytes have arrived.
fn bounded(body: Body, left: Arc<AtomicUsize>) -> Body {
    Body::from_stream(body.into_data_stream().map(move |chunk| {
        let chunk = chunk?;
        let spend = |left: usize| (left > 0).then(|| left.saturating_sub(chunk.len()));
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(_) => Ok(chunk),
            Err(_) => Err(axum::Error::new("the form has a part with too long a head")),
        }
    }))
}

/// Waits for a part of a form, or a chunk of it.
async fn in_time<T>(
    next: impl Future<Output = Result<T, MultipartError>>,
    timeout: Duration,
    left: &AtomicUsize,
) -> Result<T, ApiError> {
    left.store(MAX_UNPARSED, Ordering::Relaxed);
    let next = tokio::time::timeout(timeout, next).await.map_err(|_| too_slow())?;
    next.map_err(|error| ApiError::body(format!("the form is not complete: {}", error.body_text())))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(usize);

    impl FileReceiver for Count {
        async fn take(&mut self, chunk: Option<Bytes>) -> Result<(), ApiError> {
            self.0 += chunk.map_or(0, |chunk| chunk.len());
            Ok(())
        }
    }

    /// Returns the outcome of a form in frames of 64 KiB, and the bytes of its file.
    fn read(head: &str, filler: usize, end: &str) -> (Result<Fields, ApiError>, usize, usize) {
        let frames = [Bytes::from(head.to_owned())]
            .into_iter()
            .chain((0..filler).map(|_| Bytes::from(vec![b'x'; 64 << 10])))
            .chain([Bytes::from(end.to_owned())]);
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let frames = frames.inspect(move |frame| _ = count.fetch_add(frame.len(), Ordering::Relaxed));
        let body = Body::from_stream(futures_util::stream::iter(frames.map(Ok::<_, axum::Error>)));
        let request =
            Request::builder().method("POST").header("content-type", "multipart/form-data; boundary=b");
        let request = request.body(body).expect("a request");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut file = Count(0);
        let fields = runtime.block_on(async {
            let mut form = Form::new(request, Duration::from_mins(1)).await.expect("a form");
            form.fields(|_, text| text.into(), &mut file).await
        });
        (fields, file.0, sent.load(Ordering::Relaxed))
    }

    #[test]
    fn a_head_without_an_end_is_bounded_in_memory() {
        let frames = 4 * MAX_UNPARSED / (64 << 10);
        for head in ["--b\r\nX: ", "no boundary", "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"]
        {
            let (fields, _, sent) = read(head, frames, "");
            assert!(fields.is_err(), "{head}");
            assert!(sent <= MAX_UNPARSED + (128 << 10), "{head}: {sent} bytes were read");
        }
    }

    #[test]
    fn lists_and_a_second_part_of_a_name() {
        let part = |name: &str, text: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
        };
        let form = [part("a", "1"), part("l[]", "2"), part("l[]", "3"), "--b--\r\n".into()].concat();
        let fields = read(&form, 0, "").0.expect("a form");
        let expected = mlx_json::Map::from_iter([
            ("a".to_owned(), "1".into()),
            ("l".to_owned(), Value::Array(vec!["2".into(), "3".into()])),
        ]);
        assert_eq!(fields.peek("a").cloned(), expected.get("a").cloned());
        assert_eq!(fields.peek("l").cloned(), expected.get("l").cloned());
        let twice = [part("a", "1"), part("a", "2"), "--b--\r\n".into()].concat();
        assert_eq!(
            read(&twice, 0, "").0.err().and_then(|error| error.param().map(str::to_owned)),
            Some("a".into())
        );
    }
}
