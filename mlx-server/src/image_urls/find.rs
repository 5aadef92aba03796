//! Finds image URLs in requests: in the parts of messages, items and tool results.

use mlx_json::Value;

use crate::fields::Fields;
use crate::protocol::image::is_remote;

/// An image URL on another host.
pub(super) struct ImageUrl<'a> {
    /// The path of the field.
    pub(super) path: String,
    pub(super) url: &'a mut String,
}

/// Returns the image URLs in the order of the request.
pub(super) fn urls(fields: &mut Fields) -> Vec<ImageUrl<'_>> {
    let mut found = Vec::new();
    for (list, entries) in fields.values_mut() {
        if !matches!(list.as_str(), "messages" | "input") {
            continue;
        }
        for (index, entry) in entries.as_array_mut().into_iter().flatten().enumerate() {
            in_contents(entry, &|| format!("{list}[{index}]"), &mut found);
        }
    }
    found
}

/// Searches the content parts of a message, an item or a tool result.
fn in_contents<'a>(holder: &'a mut Value, path: &dyn Fn() -> String, found: &mut Vec<ImageUrl<'a>>) {
    for (name, parts) in holder.as_object_mut().into_iter().flatten() {
        if !matches!(name.as_str(), "content" | "output") {
            continue;
        }
        for (index, part) in parts.as_array_mut().into_iter().flatten().enumerate() {
            in_part(part, &|| format!("{}.{name}[{index}]", path()), found);
        }
    }
}

fn in_part<'a>(part: &'a mut Value, path: &dyn Fn() -> String, found: &mut Vec<ImageUrl<'a>>) {
    let kind = part.get("type").and_then(Value::as_str);
    let field_path: &[&str] = match kind {
        Some("image_url") => &["image_url", "url"],
        Some("input_image") => &["image_url"],
        Some("image") => &["source", "url"],
        Some("tool_result") => return in_contents(part, path, found),
        _ => return,
    };
    // Image parts of the Messages API, which writes paths with dots.
    let is_dotted = kind == Some("image");
    let url = field_path.iter().try_fold(part, |value, name| value.get_mut(name));
    if let Some(Value::String(url)) = url
        && is_remote(url)
    {
        let path = format!("{}.{}", path(), field_path.join("."));
        let path = if is_dotted { path.replace('[', ".").replace(']', "") } else { path };
        found.push(ImageUrl { path, url });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn paths(body: &Value) -> Vec<String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("an object");
        urls(&mut fields).into_iter().map(|it| it.path).collect()
    }

    #[test]
    fn pictures_are_found_where_the_apis_have_them() {
        let url = "https://a.example/b.png";
        let (chat, responses) = (
            json!({"type": "image_url", "image_url": {"url": url}}),
            json!({"type": "input_image", "image_url": url}),
        );
        let messages = json!({"type": "image", "source": {"type": "url", "url": url}});
        let body = json!({"messages": [
            {"role": "user", "content": "https://a.example"},
            {"role": "user", "content": [{"type": "text", "text": url}, chat]},
            {"role": "tool", "content": [chat]},
        ]});
        assert_eq!(
            paths(&body),
            ["messages[1].content[1].image_url.url", "messages[2].content[0].image_url.url"]
        );
        let body = json!({"input": [{"content": [responses]}, {"type": "function_call_output", "output": [responses]}]});
        assert_eq!(paths(&body), ["input[0].content[0].image_url", "input[1].output[0].image_url"]);
        let result = json!({"type": "tool_result", "content": [messages]});
        let body = json!({"messages": [{"content": [messages, result]}]});
        let expected = ["messages.0.content.0.source.url", "messages.0.content.1.content.0.source.url"];
        assert_eq!(paths(&body), expected);
    }

    #[test]
    fn what_is_no_picture_is_left_alone() {
        let picture = json!({"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}});
        for body in [
            json!({"messages": [{"content": [{"type": "tool_use", "input": {"content": [picture]}}]}]}),
            json!({"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:;base64,AQID"}}]}]}),
            json!({"messages": [{"content": [{"type": "image_url"}, {"type": "image_url", "image_url": 3}, 4]}]}),
            json!({"messages": picture, "tools": [{"content": [picture]}]}),
            json!({"input": ["https://a.example/b.png"], "metadata": {"content": [picture]}}),
        ] {
            assert_eq!(paths(&body), Vec::<String>::new(), "{body}");
        }
    }
}
