//! Pages of lists that are ordered by time.

use serde::Deserialize;

use crate::error::ApiError;

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// The oldest item first.
    Asc,
    /// The newest item first.
    #[default]
    Desc,
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) has_more: bool,
}

/// Returns the page of at most `limit` items after the one with the id `after`. `items` begin with the oldest one.
pub(crate) fn page<T>(
    mut items: Vec<T>,
    id: impl Fn(&T) -> &str,
    order: Order,
    (limit, max): (usize, usize),
    after: Option<&str>,
) -> Result<Page<T>, ApiError> {
    if !(1..=max).contains(&limit) {
        return Err(ApiError::field("limit", format!("is {limit}; it must be from 1 to {max}")));
    }
    if order == Order::Desc {
        items.reverse();
    }
    if let Some(after) = after {
        let index = items.iter().position(|item| id(item) == after);
        let index = index
            .ok_or_else(|| ApiError::field("after", format!("is {after:?}, which is not in the list")))?;
        items.drain(..=index);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(Page { items, has_more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join_to_the_whole_list() {
        for (order, expected) in [(Order::Asc, ["a", "b", "c"]), (Order::Desc, ["c", "b", "a"])] {
            let (mut all, mut after) = (Vec::new(), None);
            loop {
                let next = page(vec!["a", "b", "c"], |item| item, order, (2, 9), after).expect("valid");
                all.extend(next.items);
                after = all.last().copied();
                if !next.has_more {
                    break;
                }
            }
            assert_eq!(all, expected);
        }
        for (limit, after, field) in [(0, None, "limit"), (10, None, "limit"), (1, Some("d"), "after")] {
            let error = page(vec!["a"], |item| item, Order::Asc, (limit, 9), after).expect_err(field);
            assert_eq!(error.param(), Some(field));
        }
    }
}
